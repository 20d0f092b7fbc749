// quire_view_*: an engine's own blocks as pages. Oracle: a cache (whose attention other tests
// compare with the double oracle) that holds the same tokens, bit by bit.
#include "support/attention_cache.hpp"
#include "support/attention_threads.hpp"
#include "support/attention_view.hpp"

namespace quire {
namespace {

using test::Blocks;
using test::CacheBox;
using test::CacheSpec;
using test::ViewBox;

constexpr std::uint32_t kKvHeads = 3, kQHeads = 6, kDk = 64, kDv = 96;

struct Kind {
  const char* name;
  quire_format tier[2];
  std::uint32_t tiers;
  std::uint32_t flags;
};

constexpr quire_vector_format kF16 = {QUIRE_GRID_F16, 16, 0, 0};
constexpr quire_vector_format affine(std::uint32_t bits, std::uint32_t transform) {
  return {QUIRE_GRID_AFFINE, bits, 32, transform};
}
constexpr quire_vector_format table(std::uint32_t bits, std::uint32_t transform) {
  return {QUIRE_GRID_SYMMETRIC_TABLE, bits, 0, transform};
}

constexpr Kind kKinds[] = {
    {"f16", {{kF16, kF16}, {}}, 1, 0},
    {"K8V4 + K4V2", {{affine(8, 0), affine(4, 0)}, {affine(4, 0), affine(2, 0)}}, 2, 0},
    {"rotated",
     {{affine(6, 3), table(4, 1)}, {table(4, 3), table(2, 1)}},
     2,
     QUIRE_LAYOUT_NO_SCORE},
    {"no position",
     {{table(3, 1), affine(3, 2)}, {}},
     1,
     QUIRE_LAYOUT_NO_SCORE | QUIRE_LAYOUT_NO_POSITION},
};

// A cache without a ring, so that it stores what a view stores.
CacheSpec cache_spec(const Kind& kind) {
  const bool foreign = kind.tiers == 2;
  CacheSpec spec(
      foreign ? QUIRE_RECIPE_FOREIGN : QUIRE_RECIPE_KEEP_ALL, kKvHeads, kQHeads / kKvHeads, kDk);
  spec.group.layout.head_dim_v = kDv;
  spec.group.layout.tier[0] = kind.tier[0];
  spec.group.layout.tier[1] = kind.tier[1];
  spec.group.layout.tier_count = kind.tiers;
  spec.group.layout.flags = kind.flags;
  spec.group.transform_seed = 9;
  spec.group.sink_tokens = spec.policy.sink_tokens = QUIRE_NONE;
  spec.group.recent_window = spec.policy.recent_window = QUIRE_NONE;
  spec.sequences = 3;
  return spec;
}

// Cache and view with the same three sequences.
class Pair {
 public:
  Pair(const Kind& kind, Blocks blocks, std::uint64_t seed)
      : box(cache_spec(kind), seed),
        view(box.spec.group.layout, kQHeads, kKvHeads, 3, 24, blocks, box.rng) {
    view.view.transform_seed = 9;
    k_offset_ = box.rng.normals(kKvHeads * kDk, 2.0f);
    v_offset_ = box.rng.normals(kKvHeads * kDv, 2.0f);
    for (const float x : k_offset_) k_half_.push_back(float_to_half(x));
    for (const float x : v_offset_) v_half_.push_back(float_to_half(x));
    view.view.k_offset = k_half_.data();
    view.view.v_offset = v_half_.data();
    const std::uint32_t lengths[] = {150, 1, 257};
    for (std::uint32_t s = 0; s < 3; ++s) add_sequence(kind, s, lengths[s]);
  }

  CacheBox box;
  ViewBox view;
  std::vector<std::int32_t> last;  // position of the newest token

 private:
  void add_sequence(const Kind& kind, std::uint32_t s, std::uint32_t length) {
    quire_seq_open_args open = QUIRE_SEQ_OPEN_ARGS_INIT;
    open.policy = &box.spec.policy;
    if ((kind.tier[0].k.transform & QUIRE_TRANSFORM_OFFSET) != 0) open.k_offset = k_offset_.data();
    if ((kind.tier[0].v.transform & QUIRE_TRANSFORM_OFFSET) != 0) open.v_offset = v_offset_.data();
    std::int32_t slot = -1;
    CacheBox::need(box.cache.open(open, &slot));
    const std::vector<float> k = box.rng.normals(std::size_t{length} * kKvHeads * kDk);
    const std::vector<float> v = box.rng.normals(std::size_t{length} * kKvHeads * kDv);
    const std::uint32_t high = kind.tiers == 1 ? length : length / 3;
    std::vector<std::uint8_t> plan(std::size_t{kKvHeads} * length, 1);
    for (std::uint32_t h = 0; h < kKvHeads; ++h)
      std::fill_n(plan.begin() + h * length, high, std::uint8_t{0});
    CacheBox::need(box.cache.prefill_begin(slot, length));
    quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
    args.slot = slot;
    args.k = rows_of(k.data());
    args.v = rows_of(v.data());
    args.plan = kind.tiers == 2 ? plan.data() : nullptr;
    CacheBox::need(box.cache.prefill_layer(args));
    CacheBox::need(box.cache.prefill_end(slot));
    view.append(s, 0, high, 0, k.data(), v.data());
    if (kind.tiers == 2) {
      view.append(s,
                  1,
                  length - high,
                  static_cast<std::int32_t>(high),
                  k.data() + std::size_t{high} * kKvHeads * kDk,
                  v.data() + std::size_t{high} * kKvHeads * kDv);
    }
    last.push_back(static_cast<std::int32_t>(length) - 1);
  }

  std::vector<float> k_offset_, v_offset_;
  std::vector<std::uint16_t> k_half_, v_half_;
};

void require_equal(Pair& pair, const quire_view_attention_args& args) {
  const std::uint32_t rows = args.rows == 0 ? 1 : args.rows;
  const std::vector<float> q = pair.box.rng.normals(std::size_t{3} * rows * kQHeads * kDk, 1.5f);
  quire_view_attention_args call = args;
  call.first_position = pair.last.data();
  const test::ViewResult got = test::attend_view(pair.view.view, call, q.data());
  for (std::uint32_t s = 0; s < 3; ++s) {
    test::QuerySpec query;
    query.rows = rows;
    query.splits = args.splits;
    query.rule = args.rule;
    query.lse_base_2 = args.lse_base_2;
    const std::size_t lane = std::size_t{s} * rows * kQHeads;
    const test::QueryResult want =
        pair.box.extend(static_cast<std::int32_t>(s), pair.last[s], query, q.data() + lane * kDk);
    test::require_oracle(pair.box, static_cast<std::int32_t>(s), 0, query, want, pair.last[s]);
    REQUIRE(std::equal(want.out.begin(),
                       want.out.end(),
                       got.out.begin() + static_cast<std::ptrdiff_t>(lane * kDv)));
    REQUIRE(std::equal(
        want.lse.begin(), want.lse.end(), got.lse.begin() + static_cast<std::ptrdiff_t>(lane)));
  }
}

TEST_CASE("a view over an engine's blocks has the bits of a cache", "[attention][view]") {
  std::uint64_t seed = 1;
  for (const Kind& kind : kKinds) {
    for (const Blocks blocks : test::kBlocks) {
      Pair pair(kind, blocks, seed++);
      INFO(pair.box.rng.describe() << " " << kind.name << " blocks " << static_cast<int>(blocks));
      for (const std::uint32_t rows : {0u, 1u, 4u, 16u}) {
        quire_view_attention_args args = QUIRE_VIEW_ATTENTION_ARGS_INIT;
        args.rows = rows;
        args.splits = 1 + rows % 3;
        args.lse_base_2 = rows % 2;
        require_equal(pair, args);
      }
    }
  }
}

TEST_CASE("a view obeys the rules of the model", "[attention][view]") {
  for (const Kind& kind : kKinds) {
    Pair pair(kind, Blocks::kAllHeads, 20);
    INFO(pair.box.rng.describe() << " " << kind.name);
    const std::vector<float> slopes = pair.box.rng.normals(kQHeads, 0.02f, 0.04f);
    const std::vector<float> sinks = pair.box.rng.normals(kQHeads, 2.0f);
    quire_view_attention_args args = QUIRE_VIEW_ATTENTION_ARGS_INIT;
    args.rows = 3;
    args.splits = 2;
    args.rule.sliding_window = 99;
    args.rule.soft_cap = 4.0f;
    args.rule.scale = 0.2f;
    args.rule.alibi_slopes = slopes.data();
    args.rule.sink_logits = sinks.data();
    require_equal(pair, args);
  }
}

TEST_CASE("a view gives the same bits on any workers", "[attention][view]") {
  Pair pair(kKinds[1], Blocks::kPagePerHead, 30);
  const std::vector<float> q = pair.box.rng.normals(3 * 2 * kQHeads * kDk);
  quire_view_attention_args args = QUIRE_VIEW_ATTENTION_ARGS_INIT;
  args.rows = 2;
  args.splits = 5;
  args.first_position = pair.last.data();
  const test::ViewResult alone = test::attend_view(pair.view.view, args, q.data());
  for (const std::uint32_t width : {1u, 2u, 3u, 8u, 1024u}) {
    test::Workers workers(width, width > 8 ? test::Order::kBackward : test::Order::kThreads);
    const quire_parallel parallel = workers.c_parallel();
    args.parallel = &parallel;
    const test::ViewResult again = test::attend_view(pair.view.view, args, q.data());
    INFO("width " << width);
    REQUIRE(again.out == alone.out);
    REQUIRE(again.lse == alone.lse);
  }
}

TEST_CASE("a view append writes nothing outside its tokens' pages", "[attention][view]") {
  for (const Blocks blocks : test::kBlocks) {
    test::Rng rng(40);
    const CacheSpec spec = cache_spec(kKinds[1]);
    ViewBox view(spec.group.layout, kQHeads, kKvHeads, 2, 4, blocks, rng);
    const std::vector<float> k = rng.normals(20 * kKvHeads * kDk),
                             v = rng.normals(20 * kKvHeads * kDv);
    view.append(1, 1, 20, 0, k.data(), v.data());
    const std::uint64_t page = view.layout().page_bytes;
    std::vector<std::uint8_t> rest(view.memory().data(),
                                   view.memory().data() + view.memory().size());
    for (std::uint32_t h = 0; h < kKvHeads; ++h) {
      const quire_view one = view.one(1);
      const std::int64_t id = one.table[h * one.table_head_stride + 3];  // the last of the row
      const std::int64_t stride =
          one.page_stride == 0 ? static_cast<std::int64_t>(page) : one.page_stride;
      std::fill_n(rest.begin() + id * stride + h * one.head_stride, page, std::uint8_t{0xff});
    }
    REQUIRE(std::all_of(rest.begin(), rest.end(), [](std::uint8_t x) { return x == 0xff; }));
  }
}

TEST_CASE("a sequence without tokens gives zeros and minus infinity", "[attention][view]") {
  test::Rng rng(50);
  const CacheSpec spec = cache_spec(kKinds[1]);
  ViewBox view(spec.group.layout, kQHeads, kKvHeads, 2, 4, Blocks::kAllHeads, rng);
  const std::vector<float> k = rng.normals(5 * kKvHeads * kDk), v = rng.normals(5 * kKvHeads * kDv);
  view.append(1, 0, 5, 0, k.data(), v.data());
  const std::vector<float> q = rng.normals(2 * kQHeads * kDk);
  const std::int32_t positions[2] = {0, 4};
  quire_view_attention_args args = QUIRE_VIEW_ATTENTION_ARGS_INIT;
  args.first_position = positions;
  const test::ViewResult result = test::attend_view(view.view, args, q.data());
  for (std::size_t h = 0; h < kQHeads; ++h) {
    REQUIRE(result.lse[h] == -std::numeric_limits<float>::infinity());
    REQUIRE(std::isfinite(result.lse[kQHeads + h]));
    for (std::size_t d = 0; d < kDv; ++d) REQUIRE(result.out[h * kDv + d] == 0.0f);
  }
}

}  // namespace
}  // namespace quire
