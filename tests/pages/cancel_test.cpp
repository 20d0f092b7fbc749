// Calls that are given up. Oracle: a second cache in which they never happened.
#include <vector>

#include "support/catch.hpp"
#include "support/pages_cache.hpp"
#include "support/pages_check.hpp"
#include "support/pages_contents.hpp"

namespace quire {
namespace {

using test::PoolCache;
using test::PoolSpec;

PoolSpec spec_of(std::uint32_t recipe) {
  PoolSpec spec(recipe, 3, 2, 32);
  spec.set_ring(recipe % 3, 8);
  spec.sequences = 3;
  spec.max_tokens = 200;
  if (spec.policy.kind == QUIRE_EVICT) spec.policy.budget_tokens = 50;
  spec.policy.byte_target *= 3.0;
  if (recipe == QUIRE_RECIPE_QUIRE_BUDGET) {  // tokens are classified when they leave the ring
    spec.policy.min_queries = 0;
    spec.policy.alpha_high = 4.0f;
    spec.policy.alpha_low = 1.5f;
  }
  return spec;
}

bool equal(const PoolCache& a, const PoolCache& b) {
  return test::cache_contents(a) == test::cache_contents(b);
}

void require_empty(const PoolCache& box) {
  REQUIRE(test::check_pool(box.state()) == "");
  REQUIRE(box.cache.stats().live_pages == 0);
  REQUIRE(box.cache.stats().promised_pages == 0);
}

TEST_CASE("a sequence is as new after a prompt that was given up", "[pages][cancel]") {
  for (std::uint32_t recipe = QUIRE_RECIPE_KEEP_ALL; recipe <= QUIRE_RECIPE_FOREIGN; ++recipe) {
    for (std::uint32_t done = 0; done <= 3; ++done) {  // layers before it is given up
      for (const bool prompted : {true, false}) {
        INFO("recipe " << recipe << " after " << done << " layers"
                       << (prompted ? ", then a prompt" : ", then steps only"));
        PoolCache box(spec_of(recipe)), clean(spec_of(recipe));
        const std::int32_t slot = box.open();
        REQUIRE(clean.open() == slot);
        PoolCache::need(box.cache.prefill_begin(slot, 100));
        for (std::uint32_t layer = 0; layer < done; ++layer)
          PoolCache::need(box.prefill_layer(slot, layer, 100, 5));
        PoolCache::need(box.cache.prefill_cancel(slot));
        require_empty(box);
        REQUIRE(equal(box, clean));
        for (PoolCache* cache : {&box, &clean}) {
          if (prompted) PoolCache::need(cache->prefill(slot, 60, 6));
          for (std::uint64_t i = 0; i < 25; ++i) PoolCache::need(cache->step({slot}, 100 + i));
        }
        REQUIRE(equal(box, clean));
      }
    }
  }
}

TEST_CASE("a step that is given up before its first append leaves no trace", "[pages][cancel]") {
  for (std::uint32_t recipe = QUIRE_RECIPE_KEEP_ALL; recipe <= QUIRE_RECIPE_FOREIGN; ++recipe) {
    INFO("recipe " << recipe);
    PoolCache box(spec_of(recipe)), clean(spec_of(recipe));
    const std::vector<std::int32_t> slots = {1, -1, 0};
    for (PoolCache* cache : {&box, &clean}) {
      for (const std::uint32_t tokens : {40u, 25u}) {
        const std::int32_t slot = cache->open();
        PoolCache::need(cache->prefill(slot, tokens, tokens));
      }
    }
    for (std::uint64_t i = 0; i < 40; ++i) {
      const std::uint64_t live = box.cache.stats().live_pages;
      PoolCache::need(box.begin(slots));
      PoolCache::need(box.cache.step_cancel());
      REQUIRE(test::check_pool(box.state()) == "");
      REQUIRE(box.cache.stats().live_pages == live);
      for (PoolCache* cache : {&box, &clean}) PoolCache::need(cache->step(slots, i));
    }
    REQUIRE(equal(box, clean));
    REQUIRE(box.cache.stats().steps == clean.cache.stats().steps);
    REQUIRE(box.cache.stats().tokens_demoted == clean.cache.stats().tokens_demoted);
    REQUIRE(box.cache.stats().tokens_dropped == clean.cache.stats().tokens_dropped);
  }
}

// Sequences outside the batch go on; those inside can only be closed, and lose no page.
TEST_CASE("a step that is given up half-way breaks its own sequences only", "[pages][cancel]") {
  for (const std::uint32_t recipe :
       {QUIRE_RECIPE_KEEP_ALL, QUIRE_RECIPE_DIFFKV_UPSTREAM, QUIRE_RECIPE_QUIRE_BUDGET}) {
    for (std::uint32_t done = 1; done <= 3; ++done) {
      INFO("recipe " << recipe << " after " << done << " layers");
      PoolCache box(spec_of(recipe)), clean(spec_of(recipe));
      for (PoolCache* cache : {&box, &clean}) {
        for (const std::uint32_t tokens : {40u, 25u, 90u}) {
          const std::int32_t slot = cache->open();
          PoolCache::need(cache->prefill(slot, tokens, tokens));
        }
      }
      PoolCache::need(box.begin({0, 2}));
      for (std::uint32_t layer = 0; layer < done; ++layer) PoolCache::need(box.append(layer, 2, 3));
      PoolCache::need(box.cache.step_cancel());
      REQUIRE(test::check_pool(box.state()) == "");
      REQUIRE(test::check_dense(box.state()) == "");
      for (const std::int32_t slot : {0, 2}) {
        REQUIRE(box.cache.info(slot).state == QUIRE_SEQ_BROKEN);
        REQUIRE(box.begin({slot}).status() == QUIRE_BAD_STATE);
        REQUIRE(box.cache.prefill_begin(slot, 3).status() == QUIRE_BAD_STATE);
        PoolCache::need(box.cache.close(slot));
        PoolCache::need(clean.cache.close(slot));
        REQUIRE(test::check_pool(box.state()) == "");
      }
      for (PoolCache* cache : {&box, &clean}) {
        for (std::uint64_t i = 0; i < 20; ++i) PoolCache::need(cache->step({1}, i));
      }
      REQUIRE(equal(box, clean));
      PoolCache::need(box.cache.close(1));
      require_empty(box);
    }
  }
}

}  // namespace
}  // namespace quire
