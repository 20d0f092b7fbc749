// A policy that may evict, with thresholds of 0, against keep_all in the same formats. Oracle: the
// other cache, bit by bit, over a prompt and 300 steps.
#include "support/attention_cache.hpp"

namespace quire {
namespace {

using test::CacheBox;
using test::CacheSpec;
using test::QueryResult;
using test::QuerySpec;

CacheSpec spec_of(std::uint32_t recipe) {
  CacheSpec spec(recipe, 2, 3, 64);
  const CacheSpec formats(QUIRE_RECIPE_DIFFKV_UPSTREAM, 2, 3, 64);
  spec.group.layout = formats.group.layout;
  spec.group.ring_format = formats.group.ring_format;
  spec.policy.alpha_high = spec.policy.alpha_low = 0.0f;
  return spec;
}

void run_both(CacheSpec evicting, std::uint64_t seed) {
  CacheBox a(spec_of(QUIRE_RECIPE_KEEP_ALL), seed);
  CacheBox b(evicting, seed);
  INFO(a.rng.describe());
  a.open_with(200);
  b.open_with(200);
  QuerySpec query;
  query.splits = 0;
  for (int step = 0; step < 300; ++step) {
    query.rows = 1 + static_cast<std::uint32_t>(step) % 2;
    a.begin({0});
    b.begin({0});
    REQUIRE(a.new_keys == b.new_keys);
    const QueryResult x = a.attention(1, query);
    const QueryResult y = b.attention(1, query);
    INFO("step " << step);
    REQUIRE(x.q == y.q);
    REQUIRE(x.out == y.out);
    REQUIRE(x.lse == y.lse);
    CacheBox::need(a.cache.step_end());
    CacheBox::need(b.cache.step_end());
  }
  REQUIRE(b.cache.stats().tokens_dropped == 0);
  REQUIRE(b.cache.stats().tokens_demoted == 0);
  REQUIRE(b.cache.info(0).high_tokens == a.cache.info(0).high_tokens);
}

TEST_CASE("diffkv_upstream that evicts nothing has the bits of keep_all", "[attention][keep_all]") {
  run_both(spec_of(QUIRE_RECIPE_DIFFKV_UPSTREAM), 1);
}

TEST_CASE("diffkv_paper that evicts nothing has the bits of keep_all", "[attention][keep_all]") {
  run_both(spec_of(QUIRE_RECIPE_DIFFKV_PAPER), 2);
}

TEST_CASE("a budget that holds everything has the bits of keep_all", "[attention][keep_all]") {
  CacheSpec spec = spec_of(QUIRE_RECIPE_H2O);
  spec.policy.budget_tokens = 1000;
  run_both(spec, 3);
}

}  // namespace
}  // namespace quire
