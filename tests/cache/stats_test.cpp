// Oracle: bytes computed here from quire_layout_make, quire_cache_sizes_get and what quire_query
// says each head holds; the library's own sums must equal them exactly.
#include "support/raw_calls.hpp"

namespace quire::test {
namespace {

constexpr std::uint64_t kHeadStateBytes = 64;  // a cache line per head
constexpr std::uint64_t kPagesPerChunk = 32;
constexpr std::uint64_t kPageIdBytes = 4;

std::uint64_t ceil_of(std::uint64_t count, std::uint64_t step) { return (count + step - 1) / step; }

// Bytes of one sequence, or sums over several.
struct Expected {
  std::uint64_t tier_tokens[2] = {};
  std::uint64_t ring_tokens = 0;
  std::uint64_t pages = 0;
  std::uint64_t record_bytes = 0;
  std::uint64_t ring_bytes = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t table_bytes = 0;

  void add(const Expected& other) {
    for (int t = 0; t < 2; ++t) tier_tokens[t] += other.tier_tokens[t];
    ring_tokens += other.ring_tokens;
    pages += other.pages;
    record_bytes += other.record_bytes;
    ring_bytes += other.ring_bytes;
    offset_bytes += other.offset_bytes;
    table_bytes += other.table_bytes;
  }
};

struct Scene {
  RawCache cache;
  RawCalls calls;
  quire_layout layout = QUIRE_LAYOUT_INIT;

  explicit Scene(const RawSpec& spec, std::uint64_t seed = 111) : cache(spec), calls(cache, seed) {
    REQUIRE(quire_layout_make(&cache.spec.group.layout, &layout) == QUIRE_OK);
  }

  // Chunks in the row of a head: room for a sequence of full length in every tier.
  std::uint64_t row_chunks() const {
    std::uint64_t pages = 2;
    for (std::uint32_t t = 0; t < layout.tier_count; ++t)
      pages += ceil_of(cache.spec.desc.max_tokens, layout.tier[t].tokens) + 1;
    return ceil_of(std::min(pages, cache.spec.desc.pages + 2), kPagesPerChunk);
  }

  void add_head(std::int32_t slot, std::uint32_t layer, std::uint32_t head, Expected& e) {
    std::vector<std::uint8_t> tiers(cache.spec.desc.max_tokens);
    quire_query_args args = calls.query(slot);
    args.layer = layer;
    args.head = head;
    args.tiers = tiers.data();
    args.positions = nullptr;
    args.scores = nullptr;
    args.capacity = static_cast<std::uint32_t>(tiers.size());
    calls.need(quire_query(cache.get(), &args));
    std::uint64_t tokens[2] = {};
    for (std::uint32_t i = 0; i < calls.count; ++i) {
      if (tiers[i] == 255)
        ++e.ring_tokens;
      else
        ++tokens[tiers[i]];
    }
    std::uint64_t chunks = 0;
    for (std::uint32_t t = 0; t < layout.tier_count; ++t) {
      const std::uint64_t pages = ceil_of(tokens[t], layout.tier[t].tokens);
      e.tier_tokens[t] += tokens[t];
      e.pages += pages;
      e.record_bytes += tokens[t] * layout.tier[t].record_bytes;
      chunks += ceil_of(pages, kPagesPerChunk);
    }
    const std::uint64_t row = row_chunks();
    e.table_bytes += std::min(chunks, row) * kPagesPerChunk * kPageIdBytes;
    e.table_bytes += row * kPageIdBytes + kHeadStateBytes;
  }

  Expected expected(std::int32_t slot) {
    const quire_group_desc& g = cache.spec.group;
    Expected e;
    for (std::uint32_t layer = 0; layer < g.layers; ++layer)
      for (std::uint32_t head = 0; head < g.kv_heads; ++head) add_head(slot, layer, head, e);
    const quire_format& high = g.layout.tier[0];
    const bool k_offset = (high.k.transform & QUIRE_TRANSFORM_OFFSET) != 0;
    const bool v_offset = (high.v.transform & QUIRE_TRANSFORM_OFFSET) != 0;
    const std::uint64_t heads = std::uint64_t{g.layers} * g.kv_heads;
    e.offset_bytes =
        heads * 2 * ((k_offset ? g.layout.head_dim_k : 0) + (v_offset ? g.layout.head_dim_v : 0));
    e.ring_bytes = heads * cache.sizes.ring_block_bytes - e.offset_bytes;
    return e;
  }

  void check_sequence(std::int32_t slot, const Expected& e) const {
    const quire_group_desc& g = cache.spec.group;
    const quire_seq_info info = cache.info(slot);
    CHECK(info.high_tokens == e.tier_tokens[0]);
    CHECK(info.low_tokens == e.tier_tokens[1]);
    CHECK(info.ring_tokens == e.ring_tokens);
    CHECK(info.live_pages == e.pages);
    CHECK(info.record_bytes == e.record_bytes);
    CHECK(info.page_bytes == e.pages * layout.page_bytes);
    CHECK(info.ring_bytes == e.ring_bytes);
    CHECK(info.offset_bytes == e.offset_bytes);
    CHECK(info.table_bytes == e.table_bytes);
    CHECK(info.total_bytes ==
          info.page_bytes + info.ring_bytes + info.offset_bytes + info.table_bytes);
    CHECK(info.fp16_bytes == std::uint64_t{2} * (g.layout.head_dim_k + g.layout.head_dim_v) *
                                 info.tokens * g.kv_heads * g.layers);
    CHECK(info.reserved == 0);
  }

  // Every open sequence, and their sum against the statistics of the cache.
  void check(const std::vector<std::int32_t>& slots) {
    Expected sum;
    for (const std::int32_t slot : slots) {
      INFO("slot " << slot);
      const Expected mine = expected(slot);
      check_sequence(slot, mine);
      sum.add(mine);
    }
    const quire_stats stats = cache.stats();
    CHECK(stats.sequences == slots.size());
    CHECK(stats.pages == cache.spec.desc.pages);
    CHECK(stats.live_pages == sum.pages);
    CHECK(stats.promised_pages == 0);
    CHECK(stats.record_bytes == sum.record_bytes);
    CHECK(stats.page_bytes == sum.pages * layout.page_bytes);
    CHECK(stats.ring_bytes == sum.ring_bytes);
    CHECK(stats.offset_bytes == sum.offset_bytes);
    CHECK(stats.table_bytes == sum.table_bytes);
    CHECK(stats.free_bytes == (stats.pages - sum.pages) * layout.page_bytes);
    CHECK(stats.workspace_bytes == cache.sizes.workspace);
    const double records = static_cast<double>(sum.record_bytes);
    const double live = static_cast<double>(sum.pages * layout.page_bytes);
    CHECK(stats.fragmentation == (live > 0.0 ? 1.0 - records / live : 0.0));
  }
};

RawSpec spec_of(std::uint32_t recipe, std::uint32_t dim_k, std::uint32_t dim_v) {
  RawSpec spec(recipe);
  spec.group.layout.head_dim_k = dim_k;
  spec.group.layout.head_dim_v = dim_v;
  spec.group.layout.expected_tokens = 48;
  spec.group.sink_tokens = spec.policy.sink_tokens;
  if (spec.policy.budget_tokens != 0) spec.policy.budget_tokens = 24;
  if (spec.policy.byte_target != 0.0) spec.policy.byte_target = 0.8;
  if (recipe == QUIRE_RECIPE_STREAMING_LLM) spec.group.sink_tokens = spec.policy.sink_tokens = 4;
  spec.desc.pages = 400;
  return spec;
}

}  // namespace

TEST_CASE("all bytes equal the layout formula through the life of every recipe", "[cache][stats]") {
  const std::uint32_t dims[][2] = {{32, 16}, {16, 96}, {64, 64}};
  for (std::uint32_t recipe = QUIRE_RECIPE_KEEP_ALL; recipe <= QUIRE_RECIPE_FOREIGN; ++recipe) {
    for (const auto& dim : dims) {
      INFO("recipe " << recipe << " dims " << dim[0] << " and " << dim[1]);
      Scene s(spec_of(recipe, dim[0], dim[1]));
      s.check({});
      const std::int32_t a = s.calls.open_with(61);
      s.check({a});
      const std::int32_t b = s.calls.open_with(0);
      s.check({a, b});
      for (int step = 0; step < 20; ++step) s.calls.step({a, b});
      s.check({a, b});
      s.calls.need(quire_seq_close(s.cache.get(), a, &s.calls.error));
      s.check({b});
      s.calls.need(quire_seq_close(s.cache.get(), b, &s.calls.error));
      s.check({});
    }
  }
}

TEST_CASE("the regions are as large as their contents", "[cache][stats]") {
  const auto up = [](std::uint64_t bytes, std::uint64_t to) { return ceil_of(bytes, to) * to; };
  for (const std::uint32_t format : {QUIRE_RING_F16, QUIRE_RING_BF16, QUIRE_RING_K8V8}) {
    INFO("ring format " << format);
    RawSpec spec(QUIRE_RECIPE_KEEP_ALL);
    spec.group.ring_format = format;
    spec.group.layout.tier[0].k.transform = QUIRE_TRANSFORM_OFFSET;
    spec.group.max_draft = 3;
    spec.group.page_stride = 1 << 15;
    Scene s(spec);
    const std::uint64_t slots = 1 + 4 + 3;
    const std::uint64_t element = format == QUIRE_RING_K8V8 ? 1 : 2;
    const std::uint64_t meta = format == QUIRE_RING_K8V8 ? 4 : 0;  // scale and zero in fp16
    std::uint64_t end = slots * 32 * element;                      // K codes
    end = up(end, 128) + slots * 16 * element;                     // V codes
    if (meta > 0) end = up(up(end, 64) + slots * meta, 64) + slots * meta;
    end = up(end, 64) + slots * 4;  // scores
    end = up(end, 64) + slots * 4;  // positions
    end = up(end, 64) + 32 * 2;     // offset of K
    CHECK(s.cache.sizes.ring_block_bytes == up(end, 64));
    CHECK(s.cache.sizes.rings == 3 * 4 * up(end, 64));
    CHECK(s.cache.sizes.page_bytes == s.layout.page_bytes);
    CHECK(s.cache.sizes.pages == 119 * (1u << 15) + s.layout.page_bytes);
    CHECK(s.cache.sizes.alignment == 128);
  }
}

TEST_CASE("a long row takes one chunk of page ids per 32 pages", "[cache][stats]") {
  RawSpec spec(QUIRE_RECIPE_FOREIGN);
  spec.group.layers = spec.group.kv_heads = 1;
  spec.group.layout.expected_tokens = 1;  // pages of 16 tokens
  spec.desc.max_tokens = 1200;
  Scene s(spec);
  REQUIRE(s.layout.tier[0].tokens == 16);
  const std::int32_t slot = s.calls.open_with(60);
  while (s.cache.info(slot).tokens < 1100) s.calls.step({slot});
  s.check({slot});
  CHECK(s.cache.info(slot).live_pages > 2 * kPagesPerChunk);
  std::vector<std::uint8_t> tiers(1100, 255);
  std::fill_n(tiers.begin() + 1, 600, std::uint8_t{1});
  quire_plan_apply_args args = s.calls.plan(slot, 1, 1100);
  args.tiers = tiers.data();
  s.calls.need(quire_plan_apply(s.cache.get(), &args));
  s.check({slot});
}

TEST_CASE("drops and demotions are counted token by token", "[cache][stats]") {
  RawSpec spec(QUIRE_RECIPE_FOREIGN);
  Scene s(spec);
  const std::int32_t slot = s.calls.open_with(60);
  const auto apply = [&](std::size_t head, std::size_t first, std::size_t count, std::uint8_t to) {
    std::vector<std::uint8_t> tiers(std::size_t{2} * 2 * 60, 255);
    std::fill_n(tiers.begin() + static_cast<std::ptrdiff_t>(head * 60 + first), count, to);
    quire_plan_apply_args args = s.calls.plan(slot, 2, 60);
    args.tiers = tiers.data();
    s.calls.need(quire_plan_apply(s.cache.get(), &args));
    s.check({slot});
  };
  apply(0, 10, 20, 1);
  CHECK(s.cache.stats().tokens_demoted == 20);
  apply(0, 25, 10, 254);
  apply(3, 5, 7, 254);
  CHECK(s.cache.stats().tokens_demoted == 20);
  CHECK(s.cache.stats().tokens_dropped == 17);
  CHECK(s.cache.info(slot).low_tokens == 15);
  CHECK(s.cache.info(slot).high_tokens == 4 * 55 - 15 - 17);
  s.calls.step({slot});
  s.calls.step({slot});
  CHECK(s.cache.stats().steps == 2);
  s.calls.need(quire_seq_close(s.cache.get(), slot, &s.calls.error));
  CHECK(s.cache.stats().tokens_dropped == 17);  // a closed sequence drops nothing
}

TEST_CASE("what is stored and what was dropped add up to what came in", "[cache][stats]") {
  for (const std::uint32_t recipe : {QUIRE_RECIPE_DIFFKV_PAPER,
                                     QUIRE_RECIPE_DIFFKV_UPSTREAM,
                                     QUIRE_RECIPE_STREAMING_LLM,
                                     QUIRE_RECIPE_H2O,
                                     QUIRE_RECIPE_SNAPKV,
                                     QUIRE_RECIPE_QUIRE_BUDGET}) {
    INFO("recipe " << recipe);
    Scene s(spec_of(recipe, 32, 16));
    const std::int32_t slot = s.calls.open_with(61);
    for (int step = 0; step < 30; ++step) s.calls.step({slot});
    const quire_seq_info info = s.cache.info(slot);
    const std::uint64_t held = info.high_tokens + info.low_tokens + info.ring_tokens;
    CHECK(held + s.cache.stats().tokens_dropped == std::uint64_t{91} * 2 * 2);
  }
}

TEST_CASE("a page that a step empties is free again after it", "[cache][stats]") {
  RawSpec spec(QUIRE_RECIPE_FOREIGN);
  spec.group.layers = spec.group.kv_heads = 1;
  spec.group.layout.expected_tokens = 1;  // pages of 16 tokens
  Scene s(spec);
  REQUIRE(s.layout.tier[0].tokens == 16);
  const std::int32_t slot = s.calls.open_with(5 + 33);  // three pages, one token in the last
  REQUIRE(s.cache.info(slot).live_pages == 3);
  quire_plan_move moves[20];
  for (int i = 0; i < 20; ++i) moves[i] = {0, 0, 1 + i, 254, {}};
  quire_step_begin_args args = s.calls.begin({slot});
  args.plan = moves;
  args.plan_count = 20;
  s.calls.need(quire_step_begin(s.cache.get(), &args));
  s.calls.finish_step(0);
  CHECK(s.cache.info(slot).live_pages == 1);  // 33 - 20 and the token that left the ring
  s.check({slot});
}

TEST_CASE("pages of a prompt that is closed half-way are free again", "[cache][stats]") {
  Scene s{RawSpec()};
  const std::int32_t slot = s.calls.open_with(0);
  s.calls.need(test::begin_prompt(s.cache.get(), slot, 50, &s.calls.error));
  const quire_prefill_layer_args args = s.calls.prompt(slot, 0, 50);
  s.calls.need(quire_prefill_layer(s.cache.get(), &args));
  REQUIRE(s.cache.stats().promised_pages > 0);
  s.calls.need(quire_seq_close(s.cache.get(), slot, &s.calls.error));
  s.check({});
}

TEST_CASE("pages promised to a prompt shrink layer by layer and end at nothing", "[cache][stats]") {
  Scene s{RawSpec()};
  const std::int32_t slot = s.calls.open_with(0);
  s.calls.need(
      quire_pages_for(s.cache.get(), &s.calls.policy, 50, s.calls.number, nullptr, &s.calls.error));
  s.calls.need(test::begin_prompt(s.cache.get(), slot, 50, &s.calls.error));
  CHECK(s.cache.stats().promised_pages == s.calls.number[0]);
  CHECK(s.cache.stats().live_pages == 0);
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    const quire_prefill_layer_args args = s.calls.prompt(slot, layer, 50);
    s.calls.need(quire_prefill_layer(s.cache.get(), &args));
    const quire_stats stats = s.cache.stats();
    // What a layer reserved is taken or given back with it: all layers have equal shares.
    CHECK(stats.promised_pages == s.calls.number[0] * (1 - layer) / 2);
    CHECK(stats.live_pages <= s.calls.number[0] * (layer + 1) / 2);
  }
  s.calls.need(quire_prefill_end(s.cache.get(), slot, &s.calls.error));
  s.check({slot});
}

}  // namespace quire::test
