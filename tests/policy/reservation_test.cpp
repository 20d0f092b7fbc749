// Oracle: what quire_prefill_begin promised. A prompt never holds more pages than it reserved, in a
// pool of just that size every page has one owner, and what a policy accepts it keeps to.
#include <algorithm>
#include <set>
#include <vector>

#include "support/catch.hpp"
#include "support/policy_recipes.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kPrompt = 260;

StreamShape reserve_shape(std::uint32_t layers = 3) {
  StreamShape shape;
  shape.layers = layers;
  shape.tokens = kPrompt + 60;
  return shape;
}

// Ids in the rows of all heads; twice the same one is a page with two owners.
std::size_t distinct_pages(const Rig& rig, std::int32_t slot) {
  std::set<std::int32_t> ids;
  for (std::uint32_t h = 0; h < rig.spec.group.layers * rig.spec.group.kv_heads; ++h) {
    const std::uint64_t row = rig.state().row(slot, h / 2, h % 2);
    for (std::uint32_t tier = 0; tier < rig.spec.group.layout.tier_count; ++tier)
      for (std::uint32_t i = 0; i < rig.state().head_states[row].pages[tier]; ++i)
        ids.insert(rig.state().table.row(row).page(tier, i).value);
  }
  return ids.size();
}

quire_prefill_layer_args layer_args(const Rig& rig,
                                    std::int32_t slot,
                                    const Stream& stream,
                                    std::uint32_t layer) {
  quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
  args.slot = slot;
  args.layer = layer;
  args.k = rows_of(stream.k(layer, 0));
  args.v = rows_of(stream.v(layer, 0));
  args.q_rows = std::min(rig.spec.policy.tail_queries, kPrompt);
  if (args.q_rows > 0) args.q = rows_of(stream.q(layer, kPrompt - args.q_rows));
  return args;
}

// Stores a prompt layer by layer; after each, pages against the promise.
void store_within_promise(Rig& rig, const Stream& stream) {
  const std::int32_t slot = rig.open();
  REQUIRE(rig.cache.prefill_begin(slot, kPrompt).ok());
  const std::uint64_t promised = rig.cache.stats().promised_pages;
  for (std::uint32_t layer = 0; layer < rig.spec.group.layers; ++layer) {
    INFO("layer " << layer << " of a prompt that was promised " << promised << " pages");
    REQUIRE(rig.cache.prefill_layer(layer_args(rig, slot, stream, layer)).ok());
    const quire_stats stats = rig.cache.stats();
    REQUIRE(stats.live_pages <= promised);
    REQUIRE(stats.promised_pages <= promised);
    REQUIRE(distinct_pages(rig, slot) == stats.live_pages);
  }
  REQUIRE(rig.cache.prefill_end(slot).ok());
  REQUIRE(rig.cache.stats().promised_pages == 0);
}

// Eight prompts share a pool of what they were promised. The first one brings a plan: it is
// refused, or takes nothing that the others were promised.
void store_plan_among_others(RigSpec spec, const Stream& stream, const std::uint8_t* plan) {
  spec.sequences = 8;
  {
    const Rig probe(spec);
    REQUIRE(
        quire_pages_for(probe.cache.get(), &spec.policy, kPrompt, &spec.pages, nullptr, nullptr) ==
        QUIRE_OK);
  }
  spec.pages *= spec.sequences;
  Rig rig(spec);
  for (std::uint32_t i = 0; i < spec.sequences; ++i)
    REQUIRE(rig.cache.prefill_begin(rig.open(), kPrompt).ok());
  for (std::uint32_t layer = 0; layer < spec.group.layers; ++layer) {
    quire_prefill_layer_args args = layer_args(rig, 0, stream, layer);
    args.plan = plan + std::size_t{layer} * 2 * kPrompt;
    const Result stored = rig.cache.prefill_layer(args);
    const quire_stats stats = rig.cache.stats();
    INFO("layer " << layer << ": " << stored.text() << ", " << stats.live_pages << " live of "
                  << stats.pages << ", promised " << stats.promised_pages);
    REQUIRE(stats.live_pages + stats.promised_pages <= stats.pages);
    if (!stored.ok()) return;
  }
  REQUIRE(rig.cache.prefill_end(0).ok());
}

// The same prompt in a pool of what admission asked for, and of one page less.
void store_in_exact_pool(RigSpec spec, const Stream& stream) {
  std::uint64_t pages = 0;
  {
    const Rig probe(spec);
    REQUIRE(quire_pages_for(probe.cache.get(), &spec.policy, kPrompt, &pages, nullptr, nullptr) ==
            QUIRE_OK);
  }
  INFO("admission asked for " << pages << " pages");
  REQUIRE(pages > 0);
  spec.pages = pages;
  Rig rig(spec);
  store_within_promise(rig, stream);
  if (pages == 1) return;
  spec.pages = pages - 1;
  Rig tight(spec);
  const Result refused = tight.cache.prefill_begin(tight.open(), kPrompt);
  REQUIRE(refused.status() == QUIRE_OUT_OF_PAGES);
  REQUIRE(refused.needed() == pages);
}

TEST_CASE("a prompt fits into the pages that admission asked for", "[policy][reserve]") {
  const std::size_t which = GENERATE(range(std::size_t{0}, std::size_t{7}));
  const NamedSpec named = small_recipes(reserve_shape())[which];
  Rng rng(8701);
  INFO(rng.describe() << " " << named.name);
  const Stream stream(reserve_shape(), rng);
  store_in_exact_pool(named.spec, stream);
}

// While it is cut to its budget a prompt takes low pages before high ones come back.
TEST_CASE("a controlled prompt fits into the pages that admission asked for", "[policy][reserve]") {
  const std::size_t which = GENERATE(range(std::size_t{7}, std::size_t{10}));
  const std::uint32_t layers = GENERATE(1u, 3u, 8u);
  Rng rng(8702);
  const Stream stream(reserve_shape(layers), rng);
  for (int i = 0; i < 14; ++i) {
    NamedSpec named = small_recipes(reserve_shape(layers))[which];
    if (named.spec.policy.byte_target > 0.0) named.spec.policy.byte_target = 0.06 + 0.03 * i;
    if (named.spec.policy.budget_bytes > 0)
      named.spec.policy.budget_bytes =
          std::uint64_t{layers} * 2 * (2500 + 600 * static_cast<std::uint64_t>(i));
    INFO(rng.describe() << " " << named.name << " layers " << layers << " budget " << i);
    store_in_exact_pool(named.spec, stream);
  }
}

TEST_CASE("a controlled prompt keeps its promise when overrides hold tokens back",
          "[policy][reserve]") {
  NamedSpec named = small_recipes(reserve_shape(6))[9];
  named.spec.policy.byte_target = 0.2;
  named.spec.thresholds = {{QUIRE_ALL, QUIRE_ALL, 0.0f, 0.0f}};  // nothing may fall
  Rng rng(8708);
  INFO(rng.describe());
  const Stream stream(reserve_shape(6), rng);
  Rig rig(named.spec);
  store_within_promise(rig, stream);
}

TEST_CASE("a controlled prompt keeps its promise when its own thresholds are zero",
          "[policy][reserve]") {
  NamedSpec named = small_recipes(reserve_shape(6))[9];
  named.spec.policy.byte_target = 0.2;
  named.spec.policy.alpha_high = named.spec.policy.alpha_low = 0.0f;
  named.spec.group.layout.page_bytes = 1536;
  Rng rng(8703);
  INFO(rng.describe());
  const Stream stream(reserve_shape(6), rng);
  Rig rig(named.spec);
  REQUIRE(rig.state().group.layout.tier[1].tokens > rig.state().group.layout.tier[0].tokens);
  store_within_promise(rig, stream);
}

TEST_CASE("a foreign plan takes no pages that other prompts were promised", "[policy][reserve]") {
  const std::size_t which = GENERATE(range(std::size_t{2}, std::size_t{10}));
  const std::uint32_t low_of_ten = GENERATE(0u, 5u);
  const NamedSpec named = small_recipes(reserve_shape())[which];
  Rng rng(8704);
  INFO(rng.describe() << " " << named.name << " low " << low_of_ten);
  const Stream stream(reserve_shape(), rng);
  std::vector<std::uint8_t> plan(6 * kPrompt, 0);
  const bool has_low = named.spec.group.layout.tier_count > 1;
  for (std::uint8_t& tier : plan) tier = has_low && rng.below(10) < low_of_ten ? 1 : 0;
  store_plan_among_others(named.spec, stream, plan.data());
}

TEST_CASE("a plan of two tiers under keep_all takes no pages that others were promised",
          "[policy][reserve]") {
  RigSpec spec(QUIRE_RECIPE_FOREIGN, reserve_shape());
  REQUIRE(quire_recipe_get(QUIRE_RECIPE_KEEP_ALL, &spec.policy, nullptr, nullptr) == QUIRE_OK);
  spec.set_ring(0, 20);
  Rng rng(8705);
  const Stream stream(reserve_shape(), rng);
  std::vector<std::uint8_t> plan(6 * kPrompt, 0);
  for (std::size_t i = 0; i < plan.size(); i += kPrompt) plan[i] = 1;
  // One low token costs a page where the rest still needs all of the high ones.
  REQUIRE((kPrompt - 20) % Rig(spec).state().group.layout.tier[0].tokens != 1);
  store_plan_among_others(spec, stream, plan.data());
}

TEST_CASE("an evicting policy that is accepted keeps its budget under every step rule",
          "[policy][reserve]") {
  const std::uint32_t rule = GENERATE(range(1u, 6u));
  const std::uint32_t significance = GENERATE(range(1u, 5u));
  NamedSpec named = small_recipes(reserve_shape(1))[5];
  named.spec.policy.step_rule = rule;
  named.spec.policy.significance = significance;
  named.spec.policy.alpha_high = named.spec.policy.alpha_low = 0.0f;
  Rng rng(8706);
  INFO(rng.describe() << " step rule " << rule << " significance " << significance);
  const Stream stream(reserve_shape(1), rng);
  Rig rig(named.spec);
  std::int32_t slot = -1;
  if (!rig.cache.open(named.spec.policy, &slot).ok()) return;
  rig.prompt(slot, stream, kPrompt);
  for (std::uint32_t t = kPrompt; t < kPrompt + 60; ++t) rig.step(slot, stream, t);
  REQUIRE(rig.kept(slot, 0, 0).size() == named.spec.policy.budget_tokens);
}

TEST_CASE("a token on probation stays high under every step rule that is accepted",
          "[policy][reserve]") {
  constexpr std::int32_t kProbation = 120;
  const std::uint32_t rule = GENERATE(QUIRE_STEP_UPSTREAM, QUIRE_STEP_PAPER, QUIRE_STEP_CLASSIFY);
  NamedSpec named = small_recipes(reserve_shape(1))[3];
  named.spec.policy.step_rule = rule;
  named.spec.policy.min_queries = kProbation;
  named.spec.policy.alpha_high = 3.0f;
  Rng rng(8707);
  INFO(rng.describe() << " step rule " << rule);
  const Stream stream(reserve_shape(1), rng);
  Rig rig(named.spec);
  std::int32_t slot = -1;
  if (!rig.cache.open(named.spec.policy, &slot).ok()) return;
  rig.prompt(slot, stream, 100);  // a prompt of less than the tail: its length counts
  for (std::uint32_t t = 100; t < 300; ++t) {
    rig.step(slot, stream, t);
    const auto length = static_cast<std::int32_t>(t) + 1;
    std::vector<bool> high(t + 1, false);
    for (const KeptToken& k : rig.kept(slot, 0, 0))
      high[static_cast<std::size_t>(k.position)] = k.tier != 1;
    for (std::int32_t p = 100; p < length; ++p) {
      INFO("length " << length << " position " << p);
      // A step plans before its own query runs.
      if (length - 1 - p < kProbation) REQUIRE(high[static_cast<std::size_t>(p)]);
    }
  }
}

// Padding may give the tier of fewer bytes the fewer tokens to a page: 48 against 32 here.
TEST_CASE("a low tier of fewer tokens to a page fits the reservation", "[policy][reservation]") {
  StreamShape shape;
  shape.dim = 16;
  shape.tokens = 500;
  Rng rng(8811);
  INFO(rng.describe());
  const Stream stream(shape, rng);
  RigSpec spec(QUIRE_RECIPE_FOREIGN, shape);
  spec.set_ring(1, 16);
  spec.group.layout.tier[0] = {{QUIRE_GRID_AFFINE, 4, 0, 0}, {QUIRE_GRID_AFFINE, 4, 0, 0}};
  spec.group.layout.tier[1] = {{QUIRE_GRID_AFFINE, 6, 0, 0}, {QUIRE_GRID_AFFINE, 2, 0, 0}};
  spec.group.layout.page_bytes = 1536;
  std::uint64_t pages = 0;
  {
    const Rig probe(spec);
    const PageLayout& layout = probe.state().group.layout;
    REQUIRE(layout.tier[1].tokens < layout.tier[0].tokens);
    REQUIRE(quire_pages_for(probe.cache.get(), &spec.policy, 500, &pages, nullptr, nullptr) ==
            QUIRE_OK);
  }
  spec.pages = pages;
  Rig rig(spec);
  const std::vector<std::uint8_t> plan(4 * 500, 1);
  const std::int32_t slot = rig.open();
  rig.prompt(slot, stream, 500, plan.data());
  REQUIRE(rig.cache.info(slot).low_tokens == 4 * (500 - 17));
  REQUIRE(rig.cache.stats().live_pages <= pages);
}

}  // namespace
}  // namespace quire::test
