// Wrong arguments of quire_view_*. Oracle: quire.h: the status, the field that is named, and that
// outputs and pages are untouched.
#include <functional>
#include <limits>

#include "support/attention_view.hpp"

namespace quire {
namespace {

constexpr quire_status kWrong = QUIRE_INVALID_ARGUMENT;
constexpr std::uint32_t kDim = 64;

quire_layout_desc two_tiers() {
  quire_layout_desc desc = QUIRE_LAYOUT_DESC_INIT;
  desc.head_dim_k = desc.head_dim_v = kDim;
  desc.tier_count = 2;
  desc.page_bytes = 2048;
  desc.tier[0] = {{QUIRE_GRID_AFFINE, 4, 0, 0}, {QUIRE_GRID_AFFINE, 4, 0, 0}};
  desc.tier[1] = {{QUIRE_GRID_AFFINE, 2, 0, 0}, {QUIRE_GRID_AFFINE, 2, 0, 0}};
  return desc;
}

// A good view with tokens in it, and copies that a test can spoil.
class Fixture {
 public:
  explicit Fixture(const quire_layout_desc& layout = two_tiers())
      : rng(1), box(layout, 4, 2, 2, 6, test::Blocks::kPagePerHead, rng) {
    k = rng.normals(100 * 2 * kDim);
    v = rng.normals(100 * 2 * kDim);
    q = rng.normals(2 * 16 * 4 * kDim);
    out.assign(q.size(), -7.0f);
    lse.assign(2 * 16 * 4, -7.0f);
    for (std::uint32_t s = 0; s < 2; ++s) {
      box.append(s, 0, 40, 0, k.data(), v.data());
      if (layout.tier_count == 2) box.append(s, 1, 40, 40, k.data(), v.data());
    }
    workspace = test::Bytes(1 << 20);
  }

  quire_view_attention_args attention_args() {
    quire_view_attention_args args = QUIRE_VIEW_ATTENTION_ARGS_INIT;
    args.view = &view;
    args.first_position = positions;
    args.q = rows_of(q.data());
    args.out = rows_of(out.data());
    args.lse = lse.data();
    args.workspace = workspace.data();
    args.workspace_bytes = workspace.size();
    args.error = &error;
    return args;
  }

  quire_view_append_args append_args() {
    quire_view_append_args args = QUIRE_VIEW_APPEND_ARGS_INIT;
    args.view = &view;
    args.first_token = 40;
    args.count = 2;
    args.first_position = 40;
    args.k = rows_of(k.data());
    args.v = rows_of(v.data());
    args.error = &error;
    return args;
  }

  std::vector<std::uint8_t> pages() const {
    return std::vector<std::uint8_t>(box.memory().data(),
                                     box.memory().data() + box.memory().size());
  }

  void refused_attention(quire_status status,
                         const char* field,
                         const std::function<void(quire_view_attention_args&)>& change) {
    view = box.view;
    error = QUIRE_ERROR_INIT;
    quire_view_attention_args args = attention_args();
    change(args);
    INFO("attention " << field);
    CHECK(quire_view_attention(&args) == status);
    if (args.struct_size >= sizeof(args)) CHECK(std::string(error.field) == field);
    for (const float x : out) REQUIRE(x == -7.0f);
    for (const float x : lse) REQUIRE(x == -7.0f);
  }

  void refused_append(quire_status status,
                      const char* field,
                      const std::function<void(quire_view_append_args&)>& change) {
    view = box.view;
    error = QUIRE_ERROR_INIT;
    const std::vector<std::uint8_t> before = pages();
    quire_view_append_args args = append_args();
    change(args);
    INFO("append " << field);
    CHECK(quire_view_append(&args) == status);
    if (args.struct_size >= sizeof(args)) CHECK(std::string(error.field) == field);
    const bool same = pages() == before;
    REQUIRE(same);
  }

  // Both calls refuse the view.
  void refused_view(quire_status status,
                    const char* field,
                    const std::function<void(quire_view&)>& change) {
    refused_attention(status, field, [&](auto&) { change(view); });
    refused_append(status, field, [&](auto&) { change(view); });
  }

  test::Rng rng;
  test::ViewBox box;
  quire_view view = QUIRE_VIEW_INIT;
  std::vector<float> k, v, q, out, lse;
  std::int32_t positions[2] = {79, 79};
  test::Bytes workspace;
  quire_error error = QUIRE_ERROR_INIT;
};

TEST_CASE("view calls name what is wrong with the view", "[attention][view][errors]") {
  Fixture f;
  f.refused_view(QUIRE_ABI_MISMATCH, "struct_size", [](auto& w) { w.struct_size = 8; });
  f.refused_view(QUIRE_ABI_MISMATCH, "flags", [](auto& w) { w.flags = 1; });
  f.refused_view(kWrong, "view.pool", [](auto& w) { w.pool = nullptr; });
  f.refused_view(
      QUIRE_MISALIGNED, "view.pool", [](auto& w) { w.pool = static_cast<char*>(w.pool) + 32; });
  f.refused_view(kWrong, "view.page_stride", [](auto& w) { w.page_stride = 2048 + 32; });
  f.refused_view(kWrong, "view.head_stride", [](auto& w) { w.head_stride = 8; });
  f.refused_view(kWrong, "view.table", [](auto& w) { w.table = nullptr; });
  f.refused_view(kWrong, "view.tokens", [](auto& w) { w.tokens = nullptr; });
  f.refused_view(kWrong, "view.kv_heads", [](auto& w) { w.kv_heads = 0; });
  f.refused_view(kWrong, "view.q_heads", [](auto& w) { w.q_heads = 3; });
  f.refused_view(kWrong, "view.q_heads", [](auto& w) { w.q_heads = 0; });
  f.refused_view(kWrong, "view.q_heads", [](auto& w) { w.q_heads = 130; });
  f.refused_view(kWrong, "view.sequences", [](auto& w) { w.sequences = 0; });
  f.refused_view(kWrong, "tier_count", [](auto& w) { w.layout.tier_count = 3; });
  f.refused_view(kWrong, "head_dim_k", [](auto& w) { w.layout.head_dim_k = 40; });
  f.refused_view(kWrong, "bits", [](auto& w) { w.layout.tier[1].k.bits = 5; });
  f.refused_view(QUIRE_UNSUPPORTED, "flags", [](auto& w) { w.layout.flags = QUIRE_LAYOUT_BIAS; });
  f.refused_attention(kWrong, "view", [](auto& a) { a.view = nullptr; });
  f.refused_append(kWrong, "view", [](auto& a) { a.view = nullptr; });
}

TEST_CASE("the layout inside a view is checked like one alone", "[attention][view][errors]") {
  Fixture f;
  f.refused_view(QUIRE_ABI_MISMATCH, "flags", [](auto& w) { w.layout.flags = 64; });
  f.refused_view(QUIRE_ABI_MISMATCH, "struct_size", [](auto& w) { w.layout.struct_size = 8; });
}

TEST_CASE("rows that do not fit the table are refused", "[attention][view][errors]") {
  for (const std::uint32_t tokens : {1000u, 0x80000000u, 0xffffffffu}) {
    for (std::size_t at = 0; at < 8; ++at) {
      Fixture f;
      f.box.tokens()[at] = tokens;
      INFO("tokens " << tokens << " at " << at);
      f.refused_attention(kWrong, "view.tokens", [](auto&) {});
    }
  }
}

TEST_CASE("negative page ids of stored tokens are refused", "[attention][view][errors]") {
  for (const std::size_t at : {std::size_t{0}, std::size_t{5}, std::size_t{6}, std::size_t{23}}) {
    Fixture f;
    f.box.table()[at] = -1;
    f.refused_view(kWrong, "view.table", [](auto&) {});
  }
}

// The pages that an append writes are its own business, whatever the counts say.
TEST_CASE("an append into a page that is not there is refused", "[attention][view][errors]") {
  Fixture f;
  // The pool starts behind a guard, so that a write before it is seen and not lost.
  test::Bytes guarded(f.box.memory().size() + 8192);
  std::copy_n(f.box.memory().data(), f.box.memory().size(), guarded.data() + 8192);
  const quire_layout& layout = f.box.layout();
  for (const std::uint32_t page : {2u, 3u}) {
    std::vector<std::int32_t> table = f.box.table();
    table[page] = -1;  // no token of the high tier there yet
    f.view = f.box.view;
    f.view.pool = guarded.data() + 8192;
    f.view.table = table.data();
    quire_view_append_args args = f.append_args();
    args.first_token = page * layout.tier[0].tokens;
    args.first_position = 90;
    CHECK(quire_view_append(&args) == kWrong);
    CHECK(std::string(f.error.field) == "view.table");
    for (std::size_t i = 0; i < 8192; ++i) REQUIRE(guarded.data()[i] == 0xff);
  }
}

TEST_CASE("view append names the argument that is wrong", "[attention][view][errors]") {
  Fixture f;
  f.refused_append(QUIRE_ABI_MISMATCH, "struct_size", [](auto& a) { a.struct_size = 16; });
  f.refused_append(QUIRE_ABI_MISMATCH, "flags", [](auto& a) { a.flags = 1; });
  f.refused_append(kWrong, "tier", [](auto& a) { a.tier = 2; });
  f.refused_append(QUIRE_CAPACITY, "count", [](auto& a) { a.count = 1000; });
  f.refused_append(QUIRE_CAPACITY, "count", [](auto& a) { a.first_token = 0xffffffffu; });
  f.refused_append(kWrong, "first_position", [](auto& a) { a.first_position = -1; });
  f.refused_append(kWrong, "k", [](auto& a) { a.k.data = nullptr; });
  f.refused_append(kWrong, "k", [](auto& a) { a.k.dtype = 7; });
  f.refused_append(kWrong, "v", [](auto& a) { a.v.data = nullptr; });
  f.refused_append(kWrong, "v", [](auto& a) { a.v.dtype = 0; });
  f.k[70] = 70000.0f;
  f.refused_append(QUIRE_BAD_VALUE, "k", [](auto&) {});
  REQUIRE(f.error.given == 70);
  f.k[70] = 0.0f;
  f.v[3] = std::nanf("");
  f.refused_append(QUIRE_BAD_VALUE, "v", [](auto&) {});
  f.v[3] = 0.0f;
  REQUIRE(quire_view_append(nullptr) == kWrong);
  f.view = f.box.view;
  const quire_view_append_args good = f.append_args();
  REQUIRE(quire_view_append(&good) == QUIRE_OK);
}

// Positions are kept below 2^24, so that they are exact in fp32 (quire/core/types.hpp).
TEST_CASE("positions beyond 2^24 are refused by view calls", "[attention][view][errors]") {
  Fixture f;
  f.refused_append(kWrong, "first_position", [](auto& a) { a.first_position = 1 << 24; });
  f.refused_append(kWrong, "first_position", [](auto& a) { a.first_position = (1 << 24) - 1; });
  f.positions[1] = std::numeric_limits<std::int32_t>::max() - 20;
  f.refused_attention(kWrong, "first_position", [](auto&) {});
}

// Without stored positions a token's position is its index.
TEST_CASE("a layout without positions takes implied positions only", "[attention][view][errors]") {
  quire_layout_desc layout = two_tiers();
  layout.tier_count = 1;
  layout.flags = QUIRE_LAYOUT_NO_POSITION;
  Fixture f(layout);
  f.refused_append(kWrong, "first_position", [](auto& a) { a.first_position = 41; });
  f.refused_append(kWrong, "first_position", [](auto& a) { a.first_position = 0; });
}

TEST_CASE("view attention names the argument that is wrong", "[attention][view][errors]") {
  Fixture f;
  f.refused_attention(QUIRE_ABI_MISMATCH, "struct_size", [](auto& a) { a.struct_size = 16; });
  f.refused_attention(QUIRE_ABI_MISMATCH, "flags", [](auto& a) { a.flags = 1; });
  f.refused_attention(kWrong, "rows", [](auto& a) { a.rows = 17; });
  f.refused_attention(kWrong, "splits", [](auto& a) { a.splits = 65; });
  f.refused_attention(kWrong, "lse_base_2", [](auto& a) { a.lse_base_2 = 2; });
  f.refused_attention(kWrong, "q", [](auto& a) { a.q.data = nullptr; });
  f.refused_attention(kWrong, "out", [](auto& a) { a.out.dtype = 0; });
  f.refused_attention(kWrong, "rule.scale", [](auto& a) { a.rule.scale = -2.0f; });
  f.refused_attention(kWrong, "rule.soft_cap", [](auto& a) { a.rule.soft_cap = std::nanf(""); });
  f.refused_attention(kWrong, "rule.sliding_window", [](auto& a) { a.rule.sliding_window = -3; });
  f.refused_attention(kWrong, "first_position", [](auto& a) { a.first_position = nullptr; });
  f.refused_attention(kWrong, "workspace", [](auto& a) { a.workspace = nullptr; });
  f.refused_attention(QUIRE_MISALIGNED, "workspace", [](auto& a) {
    a.workspace = static_cast<char*>(a.workspace) + 64;
  });
  const quire_parallel wide = {
      [](void*, std::uint32_t, void (*)(void*, std::uint32_t), void*) {}, nullptr, 1025, 0};
  const quire_parallel none = {nullptr, nullptr, 1, 0};
  f.refused_attention(kWrong, "parallel.width", [&](auto& a) { a.parallel = &wide; });
  f.refused_attention(kWrong, "parallel.run", [&](auto& a) { a.parallel = &none; });
  f.q[0] = std::nanf("");
  f.refused_attention(QUIRE_BAD_VALUE, "q", [](auto&) {});
  f.q[0] = 0.0f;
  f.refused_attention(QUIRE_MEMORY_TOO_SMALL, "workspace_bytes", [](auto& a) {
    REQUIRE(quire_view_workspace(&a, &a.workspace_bytes) == QUIRE_OK);
    --a.workspace_bytes;
  });
  REQUIRE(f.error.needed == f.error.given + 1);
  REQUIRE(quire_view_attention(nullptr) == kWrong);
}

TEST_CASE("view workspace is asked for without data", "[attention][view][errors]") {
  Fixture f;
  f.view = f.box.view;
  quire_view_attention_args args = QUIRE_VIEW_ATTENTION_ARGS_INIT;
  args.view = &f.view;
  std::uint64_t bytes = 0;
  REQUIRE(quire_view_workspace(&args, &bytes) == QUIRE_OK);
  REQUIRE(bytes > 0);
  REQUIRE(quire_view_workspace(&args, nullptr) == kWrong);
  args.rows = 17;
  const std::uint64_t before = bytes;
  REQUIRE(quire_view_workspace(&args, &bytes) == kWrong);
  REQUIRE(bytes == before);
}

}  // namespace
}  // namespace quire
