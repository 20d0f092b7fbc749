// A pool that is nearly full. Oracle: a twin cache with pages to spare that gets every call which
// the full one carried out, and tells how many pages each call takes.
#include <vector>

#include "support/catch.hpp"
#include "support/gen.hpp"
#include "support/pages_cache.hpp"
#include "support/pages_check.hpp"
#include "support/pages_contents.hpp"
#include "support/pages_policies.hpp"

namespace quire {
namespace {

using test::PoolCache;
using test::PoolSpec;

class Twins {
 public:
  Twins(PoolSpec spec, std::uint64_t seed) : rng(seed), full(spec), roomy(with_room(spec)) {
    tokens_.resize(spec.sequences);
  }

  void operate() {
    const auto slot = static_cast<std::int32_t>(rng.below(full.spec.sequences));
    std::uint32_t& tokens = tokens_[static_cast<std::size_t>(slot)];
    const std::uint32_t draw = rng.below(24);
    if (!open(slot)) return;
    if (tokens + 2 >= full.spec.max_tokens || draw == 0) {
      for (PoolCache* cache : {&full, &roomy}) PoolCache::need(cache->cache.close(slot));
      tokens = 0;
    } else if (tokens == 0) {
      prompt(slot, tokens);
    } else if (draw < 4 && (full.spec.group.layout.flags & QUIRE_LAYOUT_NO_POSITION) == 0) {
      plan(slot, tokens);
    } else {
      step();
    }
  }

  test::Rng rng;
  PoolCache full;
  PoolCache roomy;
  std::uint32_t shortages_when_full = 0;  // at 95 % and more
  std::uint32_t shortages = 0;

 private:
  static PoolSpec with_room(PoolSpec spec) {
    spec.pages += 500;
    return spec;
  }

  bool is_open(std::int32_t slot) const {
    quire_seq_info info = QUIRE_SEQ_INFO_INIT;
    return quire_seq_info_get(full.cache.get(), slot, &info, nullptr) == QUIRE_OK;
  }

  // True when the slot is open; else opens the lowest closed one in both.
  bool open(std::int32_t slot) {
    if (is_open(slot)) return true;
    const quire_policy policy = test::random_policy(full.spec.group, rng);
    const std::int32_t opened = full.open(policy);
    REQUIRE(roomy.open(policy) == opened);
    tokens_[static_cast<std::size_t>(opened)] = 0;
    return opened == slot;
  }

  std::uint64_t free_pages() const {
    const quire_stats stats = full.cache.stats();
    return stats.pages - stats.live_pages - stats.promised_pages;
  }

  // The full pool against what the roomy one took.
  bool judged(const Result& result, std::uint64_t needed, std::uint64_t available) {
    INFO(result.text() << "; by the twin " << needed << " of " << available);
    REQUIRE(result.ok() == (needed <= available));
    if (result.ok()) return true;
    REQUIRE(result.status() == QUIRE_OUT_OF_PAGES);
    REQUIRE(result.needed() == needed);
    REQUIRE(result.given() == available);
    ++shortages;
    const std::uint64_t pool = full.spec.pages;
    if (100 * (pool - available) >= 95 * pool) ++shortages_when_full;
    return false;
  }

  void prompt(std::int32_t slot, std::uint32_t& tokens) {
    const std::uint32_t count = 1 + rng.below(120);
    const std::uint64_t seed = rng.bits();
    const std::uint64_t available = free_pages();
    PoolCache::need(roomy.cache.prefill_begin(slot, count));
    const std::uint64_t needed = roomy.cache.stats().promised_pages;
    PoolCache::need(roomy.cache.prefill_cancel(slot));
    const Result begun = full.prefill(slot, count, seed);
    if (!judged(begun, needed, available)) return;
    PoolCache::need(roomy.prefill(slot, count, seed));
    tokens = count;
  }

  void plan(std::int32_t slot, std::uint32_t tokens) {
    const test::RandomPlan plan(full, slot, tokens, rng);
    const std::uint64_t available = free_pages();
    const Result result = full.cache.plan_apply(plan.args());
    if (judged(result, plan.low_pages_taken(), available))
      PoolCache::need(roomy.cache.plan_apply(plan.args()));
  }

  void step() {
    std::vector<std::int32_t> batch;
    for (std::uint32_t s = 0; s < tokens_.size(); ++s) {
      const auto slot = static_cast<std::int32_t>(s);
      const bool can = is_open(slot) && tokens_[s] + 2 < full.spec.max_tokens;
      if (can && rng.below(3) != 0) batch.push_back(slot);
    }
    if (batch.empty()) return;
    const std::uint64_t available = free_pages();
    const std::uint64_t live = roomy.cache.stats().live_pages;
    PoolCache::need(roomy.begin(batch));
    const std::uint64_t needed = roomy.cache.stats().live_pages - live;
    if (!judged(full.begin(batch), needed, available)) {
      PoolCache::need(roomy.cache.step_cancel());
      return;
    }
    const std::uint64_t seed = rng.bits();
    for (PoolCache* cache : {&full, &roomy}) {
      cache->run_layers(static_cast<std::uint32_t>(batch.size()), seed);
      PoolCache::need(cache->cache.step_end());
    }
    for (const std::int32_t slot : batch) ++tokens_[static_cast<std::size_t>(slot)];
  }

  std::vector<std::uint32_t> tokens_;
};

void run_full(PoolSpec spec, std::uint64_t seed) {
  spec.sequences = 6;
  spec.max_tokens = 150;
  Twins twins(spec, seed);
  INFO(twins.rng.describe() << ", " << spec.pages << " pages");
  for (int i = 0; i < 1500; ++i) {
    twins.operate();
    if (i % 50 != 0) continue;
    REQUIRE(test::check_pool(twins.full.state()) == "");
    const bool equal = test::cache_contents(twins.full) == test::cache_contents(twins.roomy);
    REQUIRE(equal);
  }
  REQUIRE(twins.shortages > 50);
  REQUIRE(twins.shortages_when_full > 20);
  REQUIRE(twins.full.cache.stats().shortages == twins.shortages);
  REQUIRE(twins.roomy.cache.stats().shortages == 0);
}

TEST_CASE("a nearly full pool of two tiers tells what is needed and what is free",
          "[pages][shortage]") {
  PoolSpec spec(QUIRE_RECIPE_DIFFKV_PAPER, 2, 2, 32);
  spec.set_ring(1, 6);
  for (const std::uint64_t pages : {20u, 40u}) {
    spec.pages = pages;
    run_full(spec, 200 + pages);
  }
}

TEST_CASE("a nearly full pool of one tier tells what is needed and what is free",
          "[pages][shortage]") {
  PoolSpec spec(QUIRE_RECIPE_QUIRE_UNIFORM, 2, 2, 32);
  spec.set_ring(1, 6);
  for (const std::uint64_t pages : {60u, 100u}) {
    spec.pages = pages;
    run_full(spec, 300 + pages);
  }
}

}  // namespace
}  // namespace quire
