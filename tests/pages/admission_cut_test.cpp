// A prompt whose first layers gain pages while its last ones lose them: when it is cut to its
// target, head by head, the pages in between must fit the reservation too. Oracle: a pool of
// exactly quire_pages_for pages in which every page stays in one place. Attention is made by hand:
// all q are one unit vector, so that a key's first element is its logit.
#include <algorithm>
#include <cmath>
#include <vector>

#include "support/catch.hpp"
#include "support/pages_cache.hpp"
#include "support/pages_check.hpp"

namespace quire {
namespace {

using test::PoolCache;
using test::PoolSpec;

constexpr std::uint32_t kTokens = 31;  // two pages of 16
constexpr std::uint32_t kDim = 128;
constexpr std::uint32_t kLayers = 64;
constexpr std::uint32_t kFirstLayers = 30;

// Probabilities of the last query. First layers: one token in a thousand's share and the rest
// alike: it goes to the low tier, a page more. Last layers: one token has nearly all: the others
// are dropped, but only at a higher factor than the one that moves the token above.
std::vector<float> keys_of(std::uint32_t layer) {
  std::vector<float> p(kTokens, layer < kFirstLayers ? 0.999f / 30.0f : 0.0006f);
  p[7] = layer < kFirstLayers ? 0.001f : 1.0f - 30.0f * 0.0006f;
  std::vector<float> k(std::size_t{kTokens} * kDim, 0.0f);
  for (std::uint32_t t = 0; t < kTokens; ++t) k[std::size_t{t} * kDim] = std::log(p[t]);
  return k;
}

PoolSpec spec_of(double byte_target) {
  PoolSpec spec(QUIRE_RECIPE_QUIRE_BUDGET, kLayers, 1, kDim);
  spec.group.q_heads = 1;
  spec.set_ring(0, 0);
  spec.max_tokens = 64;
  spec.policy.tail_queries = 1;
  spec.policy.min_queries = 0;
  spec.policy.cadence = 1;
  spec.policy.byte_target = byte_target;
  return spec;
}

std::uint64_t pages_for(const PoolSpec& spec) {
  const PoolCache probe(spec);
  std::uint64_t pages = 0;
  REQUIRE(quire_pages_for(probe.cache.get(), &spec.policy, kTokens, &pages, nullptr, nullptr) ==
          QUIRE_OK);
  return pages;
}

// Returns the tokens that were demoted, to see that the prompt was cut at all.
std::uint64_t run_prompt(PoolSpec spec) {
  for (int i = 0; i < 10 && pages_for(spec) != spec.pages; ++i) spec.pages = pages_for(spec);
  INFO("target " << spec.policy.byte_target << ", reserved " << spec.pages);
  PoolCache box(spec);
  const std::int32_t slot = box.open();
  PoolCache::need(box.cache.prefill_begin(slot, kTokens));
  std::vector<float> q(std::size_t{kTokens} * kDim, 0.0f);
  for (std::uint32_t t = 0; t < kTokens; ++t) q[std::size_t{t} * kDim] = 1.0f;
  const float* v = test::heap().window(5, std::size_t{kTokens} * kDim);
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    const std::vector<float> k = keys_of(layer);
    quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
    args.slot = slot;
    args.layer = layer;
    args.k = rows_of(k.data());
    args.v = rows_of(v);
    args.q = rows_of(q.data());
    args.q_rows = kTokens;
    args.rule.scale = 1.0f;
    PoolCache::need(box.cache.prefill_layer(args));
    const quire_stats stats = box.cache.stats();
    INFO("layer " << layer << " live " << stats.live_pages << " promised " << stats.promised_pages);
    REQUIRE(test::check_pool(box.state()) == "");
    REQUIRE(stats.promised_pages <= spec.pages - stats.live_pages);
  }
  PoolCache::need(box.cache.prefill_end(slot));
  return box.cache.stats().tokens_demoted;
}

TEST_CASE("a cut that adds pages to the first heads fits the reservation while it lasts",
          "[pages][admission]") {
  std::uint64_t most = 0;
  for (int thousandths = 340; thousandths <= 420; thousandths += 4)
    most = std::max(most, run_prompt(spec_of(thousandths / 1000.0)));
  REQUIRE(most >= kFirstLayers);  // every first layer demoted its token
}

}  // namespace
}  // namespace quire
