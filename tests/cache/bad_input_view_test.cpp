// Oracle: the comments of quire_view, quire_view_append_args and quire_view_attention_args. A
// refused call changes neither pages nor outputs.
#include <limits>

#include "support/bad_values.hpp"
#include "support/raw_calls.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kDimK = 32;
constexpr std::uint32_t kDimV = 16;
constexpr std::uint32_t kCount = 3;

// Two sequences of two KV heads, a row of four pages each, K8V4 above K4V2.
struct Scene {
  RawRegion pool;
  RawRegion workspace;
  std::vector<std::int32_t> table = std::vector<std::int32_t>(2 * 2 * 4);
  std::vector<std::uint32_t> tokens = std::vector<std::uint32_t>(2 * 2 * 2, 5);
  std::vector<std::int32_t> position = {9, 9};
  std::vector<float> k, v, q, out, lse;
  quire_view view = QUIRE_VIEW_INIT;
  quire_view_append_args append = QUIRE_VIEW_APPEND_ARGS_INIT;
  quire_view_attention_args attention = QUIRE_VIEW_ATTENTION_ARGS_INIT;
  quire_error error = QUIRE_ERROR_INIT;
  std::uint64_t page_bytes = 0;

  Scene() {
    Rng rng(81);
    k = rng.normals(2 * kCount * 2 * kDimK);
    v = rng.normals(2 * kCount * 2 * kDimV);
    q = rng.normals(2 * 2 * 4 * kDimK);
    out.assign(2 * 2 * 4 * kDimV, -9.0f);
    lse.assign(2 * 2 * 4, -9.0f);
    describe_layout();
    pool.allocate(17 * page_bytes);  // the first one is nobody's
    describe_view();
    describe_calls();
    std::uint64_t bytes = 0;
    REQUIRE(quire_view_workspace(&attention, &bytes) == QUIRE_OK);
    workspace.allocate(bytes);
    attention.workspace = workspace.data();
    attention.workspace_bytes = bytes;
  }

  void describe_layout() {
    view.layout.head_dim_k = kDimK;
    view.layout.head_dim_v = kDimV;
    view.layout.tier_count = 2;
    view.layout.tier[0] = {{QUIRE_GRID_AFFINE, 8, 0, 0}, {QUIRE_GRID_AFFINE, 4, 0, 0}};
    view.layout.tier[1] = {{QUIRE_GRID_AFFINE, 4, 0, 0}, {QUIRE_GRID_AFFINE, 2, 0, 0}};
    quire_layout layout = QUIRE_LAYOUT_INIT;
    REQUIRE(quire_layout_make(&view.layout, &layout) == QUIRE_OK);
    page_bytes = layout.page_bytes;
  }

  void describe_view() {
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(i);
    view.q_heads = 4;
    view.kv_heads = 2;
    view.sequences = 2;
    view.pool = pool.data() + page_bytes;
    view.table = table.data();
    view.table_sequence_stride = 8;
    view.table_head_stride = 4;
    view.table_capacity = 4;
    view.tokens = tokens.data();
    view.tokens_sequence_stride = 4;
    view.tokens_head_stride = 2;
  }

  void describe_calls() {
    append.view = &view;
    append.first_token = 5;
    append.count = kCount;
    append.first_position = 5;
    append.k = {k.data(), QUIRE_F32, 0, 0, 0, 0};
    append.v = {v.data(), QUIRE_F32, 0, 0, 0, 0};
    append.error = &error;
    attention.view = &view;
    attention.rows = 2;
    attention.first_position = position.data();
    attention.q = {q.data(), QUIRE_F32, 0, 0, 0, 0};
    attention.out = {out.data(), QUIRE_F32, 0, 0, 0, 0};
    attention.lse = lse.data();
    attention.error = &error;
  }

  std::ptrdiff_t page_end() const { return static_cast<std::ptrdiff_t>(page_bytes); }

  void refuse(const Refusal& want, bool attends) {
    const std::vector<unsigned char> pages = pool.copy();
    const std::vector<float> out_before = out;
    const std::vector<float> lse_before = lse;
    error = QUIRE_ERROR_INIT;
    const quire_status status =
        attends ? quire_view_attention(&attention) : quire_view_append(&append);
    CHECK(pool.guards_intact());
    CHECK(workspace.guards_intact());
    CHECK(std::equal(pages.begin(), pages.begin() + page_end(), pool.data()));
    CHECK(status == want.status);
    if (status == QUIRE_OK) return;
    CHECK(pages == pool.copy());
    CHECK(out == out_before);
    CHECK(lse == lse_before);
    require_error(error, want);
  }
};

void* one_byte_on(const void* data) {
  return const_cast<unsigned char*>(static_cast<const unsigned char*>(data)) + 1;
}

// Wrong for every call that takes a view.
const Bad<Scene> kBadView[] = {
    {"flags", [](Scene& s) { s.view.flags = 1; }, {QUIRE_ABI_MISMATCH, "flags", "", 0, 1}},
    {"size 0",
     [](Scene& s) { s.view.struct_size = 0; },
     {QUIRE_ABI_MISMATCH, "struct_size", "", sizeof(quire_view), 0}},
    {"layout size 0",
     [](Scene& s) { s.view.layout.struct_size = 0; },
     {QUIRE_ABI_MISMATCH, "struct_size", "", sizeof(quire_layout_desc), 0}},
    {"layout flags",
     [](Scene& s) { s.view.layout.flags = 8; },
     {QUIRE_ABI_MISMATCH, "flags", "", -1, 8}},
    {"head dim 8", [](Scene& s) { s.view.layout.head_dim_k = 8; }, {1, "head_dim_k", "16 to 256"}},
    {"no KV heads", [](Scene& s) { s.view.kv_heads = 0; }, {1, "view.kv_heads", "at least 1"}},
    {"G below 1", [](Scene& s) { s.view.q_heads = 0; }, {1, "view.q_heads", "64 times", 2, 0}},
    {"G not whole", [](Scene& s) { s.view.q_heads = 3; }, {1, "view.q_heads", "64 times", 2, 3}},
    {"G of 65", [](Scene& s) { s.view.q_heads = 130; }, {1, "view.q_heads", "64 times", 2, 130}},
    {"no sequences", [](Scene& s) { s.view.sequences = 0; }, {1, "view.sequences", "at least 1"}},
    {"no pool", [](Scene& s) { s.view.pool = nullptr; }, {1, "view.pool", "not NULL"}},
    {"odd pool",
     [](Scene& s) { s.view.pool = s.pool.data() + s.page_bytes + 32; },
     {QUIRE_MISALIGNED, "view.pool", "64 bytes", 64}},
    {"no table", [](Scene& s) { s.view.table = nullptr; }, {1, "view.table", "not NULL"}},
    {"no tokens", [](Scene& s) { s.view.tokens = nullptr; }, {1, "view.tokens", "not NULL"}},
    {"odd page stride",
     [](Scene& s) { s.view.page_stride = 4000; },
     {1, "view.page_stride", "multiple of 64", -1, 4000}},
    {"pages that overlap",
     [](Scene& s) { s.view.page_stride = 64; },
     {1, "view.page_stride", "page_bytes", -1, 64}},
    {"odd head stride",
     [](Scene& s) { s.view.head_stride = 32; },
     {1, "view.head_stride", "multiple of 64", -1, 32}},
    {"heads within a page",
     [](Scene& s) { s.view.head_stride = 64; },
     {1, "view.head_stride", "page_bytes", -1, 64}},
    {"heads on one page",
     [](Scene& s) { s.view.table_head_stride = 0; },
     {1, "view.table_head_stride", "not 0"}},
    {"two tiers without positions",
     [](Scene& s) { s.view.layout.flags = QUIRE_LAYOUT_NO_POSITION; },
     {1, "tier_count", "1 with QUIRE_LAYOUT_NO_POSITION", 1, 2}},
    {"an id of -1 in use", [](Scene& s) { s.table[4] = -1; }, {1, "view.table", "0 or more"}},
    {"an id of -1 in the low tier",
     [](Scene& s) { s.table[3 * 4 + 3] = -1; },
     {1, "view.table", "0 or more"}},
    {"tokens beyond the row",
     [](Scene& s) { s.tokens[7] = 1000; },
     {1, "view.tokens", "table_capacity", 4}},
    {"tokens whose pages wrap",
     [](Scene& s) { s.tokens[6] = QUIRE_ALL; },
     {1, "view.tokens", "table_capacity", 4}},
    {"a table of no capacity",
     [](Scene& s) { s.view.table_capacity = 0; },
     {1, "view.tokens", "table_capacity", 0}},
};

const Bad<Scene> kBadAppend[] = {
    {"no view", [](Scene& s) { s.append.view = nullptr; }, {1, "view", "not NULL"}},
    {"tier 2", [](Scene& s) { s.append.tier = 2; }, {1, "tier", "tier_count", 2, 2}},
    {"beyond the row",
     [](Scene& s) { s.append.first_token = 1000; },
     {QUIRE_CAPACITY, "count", "table_capacity", -1, 1003}},
    {"beyond 2^32",
     [](Scene& s) { s.append.first_token = QUIRE_ALL; },
     {QUIRE_CAPACITY, "count", "table_capacity"}},
    {"position -1", [](Scene& s) { s.append.first_position = -1; }, {1, "first_position", "0"}},
    {"position 2^24",
     [](Scene& s) { s.append.first_position = 1 << 24; },
     {1, "first_position", "16777215"}},
    {"last position 2^24",
     [](Scene& s) { s.append.first_position = (1 << 24) - 2; },
     {1, "first_position", "16777215"}},
    {"a page of -1 to be written",
     [](Scene& s) {
       for (std::size_t row = 0; row < 4; ++row) s.table[row * 4 + 1] = -1;
       s.append.first_token = 128;
     },
     {1, "view.table", "0 or more"}},
    {"no K", [](Scene& s) { s.append.k.data = nullptr; }, {1, "k", "not NULL"}},
    {"no V", [](Scene& s) { s.append.v.data = nullptr; }, {1, "v", "not NULL"}},
    {"K dtype 0", [](Scene& s) { s.append.k.dtype = 0; }, {1, "k", "QUIRE_F32"}},
    {"V between floats",
     [](Scene& s) { s.append.v.data = one_byte_on(s.v.data()); },
     {QUIRE_MISALIGNED, "v", "aligned", 4, 1}},
    {"flags", [](Scene& s) { s.append.flags = 1; }, {QUIRE_ABI_MISMATCH, "flags", "", 0, 1}},
};

void run_nothing(void*, std::uint32_t, void (*)(void*, std::uint32_t), void*) {}
const quire_parallel kNoRun = {nullptr, nullptr, 1, 0};
const quire_parallel kNoWidth = {run_nothing, nullptr, 0, 0};
const quire_parallel kTooWide = {run_nothing, nullptr, 1025, 0};

const Bad<Scene> kBadAttention[] = {
    {"no view", [](Scene& s) { s.attention.view = nullptr; }, {1, "view", "not NULL"}},
    {"17 rows", [](Scene& s) { s.attention.rows = 17; }, {1, "rows", "16", 16, 17}},
    {"65 splits", [](Scene& s) { s.attention.splits = 65; }, {1, "splits", "64", 64, 65}},
    {"base 7", [](Scene& s) { s.attention.lse_base_2 = 7; }, {1, "lse_base_2", "0 or 1", 1, 7}},
    {"no run", [](Scene& s) { s.attention.parallel = &kNoRun; }, {1, "parallel.run"}},
    {"no width", [](Scene& s) { s.attention.parallel = &kNoWidth; }, {1, "parallel.width"}},
    {"too wide", [](Scene& s) { s.attention.parallel = &kTooWide; }, {1, "parallel.width"}},
    {"no q", [](Scene& s) { s.attention.q.data = nullptr; }, {1, "q", "not NULL"}},
    {"no out", [](Scene& s) { s.attention.out.data = nullptr; }, {1, "out", "not NULL"}},
    {"out dtype 0", [](Scene& s) { s.attention.out.dtype = 0; }, {1, "out", "QUIRE_F32"}},
    {"q between floats",
     [](Scene& s) { s.attention.q.data = one_byte_on(s.q.data()); },
     {QUIRE_MISALIGNED, "q", "aligned", 4, 1}},
    {"scale negative", [](Scene& s) { s.attention.rule.scale = -1; }, {1, "rule.scale"}},
    {"no positions",
     [](Scene& s) { s.attention.first_position = nullptr; },
     {1, "first_position", "not NULL"}},
    {"a position beyond 2^24",
     [](Scene& s) { s.position[1] = std::numeric_limits<std::int32_t>::max(); },
     {1, "first_position", "16777215"}},
    {"no workspace", [](Scene& s) { s.attention.workspace = nullptr; }, {1, "workspace"}},
    {"odd workspace",
     [](Scene& s) { s.attention.workspace = s.workspace.data() + 64; },
     {QUIRE_MISALIGNED, "workspace", "128", 128}},
    {"a byte too little",
     [](Scene& s) { s.attention.workspace_bytes -= 1; },
     {QUIRE_MEMORY_TOO_SMALL, "workspace_bytes", "quire_view_workspace"}},
    {"flags", [](Scene& s) { s.attention.flags = 1; }, {QUIRE_ABI_MISMATCH, "flags", "", 0, 1}},
};

template <std::size_t kSize>
void refuse_all(const Bad<Scene> (&table)[kSize], bool attends) {
  for (const Bad<Scene>& bad : table) {
    INFO(bad.what);
    Scene scene;
    bad.spoil(scene);
    scene.refuse(bad.want, attends);
  }
}

}  // namespace

TEST_CASE("append refuses a wrong view", "[cache][bad_input]") { refuse_all(kBadView, false); }

TEST_CASE("attention over a view refuses a wrong view", "[cache][bad_input]") {
  refuse_all(kBadView, true);
}

TEST_CASE("append to a view refuses wrong arguments", "[cache][bad_input]") {
  refuse_all(kBadAppend, false);
  CHECK(quire_view_append(nullptr) == QUIRE_INVALID_ARGUMENT);
}

TEST_CASE("attention over a view refuses wrong arguments", "[cache][bad_input]") {
  refuse_all(kBadAttention, true);
  CHECK(quire_view_attention(nullptr) == QUIRE_INVALID_ARGUMENT);
}

TEST_CASE("the workspace of a view refuses what the call refuses by shape", "[cache][bad_input]") {
  Scene scene;
  std::uint64_t bytes = 77;
  CHECK(quire_view_workspace(nullptr, &bytes) == QUIRE_INVALID_ARGUMENT);
  CHECK(quire_view_workspace(&scene.attention, nullptr) == QUIRE_INVALID_ARGUMENT);
  scene.attention.rows = 17;
  CHECK(quire_view_workspace(&scene.attention, &bytes) == QUIRE_INVALID_ARGUMENT);
  scene.attention.rows = 1;
  scene.view.q_heads = 5;
  CHECK(quire_view_workspace(&scene.attention, &bytes) == QUIRE_INVALID_ARGUMENT);
  CHECK(bytes == 77);
}

TEST_CASE("a bad number anywhere in a view's K, V or q is refused", "[cache][bad_input]") {
  Scene s;
  for_bad_values(s.k, s.k.size(), false, [&](const quire_rows& rows, std::int64_t at) {
    s.append.k = rows;
    s.refuse({QUIRE_BAD_VALUE, "k", "65504", -1, at}, false);
  });
  s.append.k = {s.k.data(), QUIRE_F32, 0, 0, 0, 0};
  for_bad_values(s.v, s.v.size(), false, [&](const quire_rows& rows, std::int64_t at) {
    s.append.v = rows;
    s.refuse({QUIRE_BAD_VALUE, "v", "65504", -1, at}, false);
  });
  s.append.v = {s.v.data(), QUIRE_F32, 0, 0, 0, 0};
  for_bad_values(s.q, s.q.size(), true, [&](const quire_rows& rows, std::int64_t at) {
    s.attention.q = rows;
    s.refuse({QUIRE_BAD_VALUE, "q", "1e30", -1, at}, true);
  });
  s.attention.q = {s.q.data(), QUIRE_F32, 0, 0, 0, 0};
  s.append.first_token = 0;
  s.append.count = kCount;
  CHECK(quire_view_append(&s.append) == QUIRE_OK);
  s.tokens.assign(s.tokens.size(), 0);
  for (std::size_t i = 0; i < s.tokens.size(); i += 2) s.tokens[i] = kCount;
  CHECK(quire_view_attention(&s.attention) == QUIRE_OK);
}

}  // namespace quire::test
