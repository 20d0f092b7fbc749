// Numbers at the ends of their ranges. Oracles: the pool by a walk over all rows, the budget, what
// quire.h promises of the field.
#include "support/pages_check.hpp"
#include "support/policy_rig.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kPrompt = 600;

StreamShape extreme_shape() {
  StreamShape shape;
  shape.layers = 8;
  shape.kv_heads = 1;
  shape.group = 1;
  shape.dim = 16;
  shape.tokens = kPrompt + 40;
  return shape;
}

// quire_budget with a target that only the ring fits, in a pool of what admission asks for.
RigSpec starved_spec() {
  RigSpec spec(QUIRE_RECIPE_QUIRE_BUDGET, extreme_shape());
  spec.policy.min_queries = 0;
  spec.policy.byte_target = 0.05;
  return spec;
}

std::uint64_t pages_for_prompt(const RigSpec& spec) {
  const Rig probe(spec);
  std::uint64_t pages = 0;
  REQUIRE(quire_pages_for(probe.cache.get(), &spec.policy, kPrompt, &pages, nullptr, nullptr) ==
          QUIRE_OK);
  return pages;
}

TEST_CASE("the smallest alphas do not keep what a budget has no room for", "[policy][extremes]") {
  Rng rng(8901);
  INFO(rng.describe());
  const Stream stream(extreme_shape(), rng);
  for (const float alpha : {1.0e-28f, 1.0e-30f, 1.0e-35f, 1.0e-44f}) {
    for (const std::uint32_t significance : {QUIRE_ROOT_MEAN, QUIRE_MEAN, QUIRE_POSITION}) {
      RigSpec spec = starved_spec();
      spec.policy.alpha_high = alpha;
      spec.policy.alpha_low = 0.1f * alpha;
      if (spec.policy.alpha_low == 0.0f) spec.policy.alpha_low = alpha;
      spec.policy.significance = significance;
      spec.pages = pages_for_prompt(spec);
      Rig rig(spec);
      const std::int32_t slot = rig.open();
      rig.prompt(slot, stream, kPrompt);
      INFO("alpha " << alpha << " significance " << significance);
      REQUIRE(check_pool(rig.state()) == "");
      REQUIRE(rig.cache.info(slot).high_tokens + rig.cache.info(slot).low_tokens == 0);
      REQUIRE(rig.cache.stats().promised_pages == 0);
    }
  }
}

TEST_CASE("a wrong log-sum-exp of the engine breaks no reservation", "[policy][extremes]") {
  Rng rng(8902);
  INFO(rng.describe());
  const Stream stream(extreme_shape(), rng);
  for (const float lse : {-95.0f, -1.0e30f, 1.0e30f, -__builtin_inff()}) {
    RigSpec spec = starved_spec();
    spec.pages = pages_for_prompt(spec);
    Rig rig(spec);
    const std::int32_t slot = rig.open();
    const std::vector<float> wrong(kPrompt, lse);
    REQUIRE(rig.cache.prefill_begin(slot, kPrompt).ok());
    for (std::uint32_t layer = 0; layer < 8; ++layer) {
      quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
      args.slot = slot;
      args.layer = layer;
      args.k = rows_of(stream.k(layer, 0));
      args.v = rows_of(stream.v(layer, 0));
      args.q = rows_of(stream.q(layer, 0));
      args.q_rows = kPrompt;
      args.lse = wrong.data();
      REQUIRE(rig.cache.prefill_layer(args).ok());
      REQUIRE(check_pool(rig.state()) == "");
    }
    REQUIRE(rig.cache.prefill_end(slot).ok());
    for (const KeptToken& t : rig.kept(slot, 0, 0)) REQUIRE(t.score <= static_cast<float>(kPrompt));
  }
}

TEST_CASE("a budget holds for a sequence without a prompt, whatever the cadence",
          "[policy][extremes]") {
  Rng rng(8903);
  INFO(rng.describe());
  const Stream stream(extreme_shape(), rng);
  for (const bool physical : {false, true}) {
    RigSpec spec(QUIRE_RECIPE_QUIRE_BUDGET, extreme_shape());
    spec.set_ring(1, 8);
    spec.policy.min_queries = 0;
    spec.policy.cadence = 1024;
    spec.policy.byte_target = physical ? 0.9 : 0.0;
    Rig probe(spec);
    const std::uint64_t ring = 8 * 9 * probe.state().group.ring.tokens.record_bytes;
    spec.policy.budget_bytes = physical ? 0 : ring + 4000;
    Rig rig(spec);
    const std::int32_t slot = rig.open();
    for (std::uint32_t t = 0; t < 400; ++t) {
      rig.step(slot, stream, t);
      const quire_seq_info info = rig.cache.info(slot);
      INFO("length " << t + 1 << " physical " << physical);
      if (!physical) {
        REQUIRE(info.record_bytes + ring <= spec.policy.budget_bytes);
      } else if (rig.state().slots[slot].factor < kDropAll) {
        REQUIRE(static_cast<double>(info.total_bytes) <=
                0.9 * static_cast<double>(info.fp16_bytes));
      }
    }
  }
}

TEST_CASE("an evicting policy counts the low tokens of a foreign plan", "[policy][extremes]") {
  Rng rng(8904);
  INFO(rng.describe());
  const Stream stream(extreme_shape(), rng);
  RigSpec spec(QUIRE_RECIPE_DIFFKV_PAPER, extreme_shape());
  RigSpec h2o(QUIRE_RECIPE_H2O, extreme_shape());
  spec.policy = h2o.policy;
  spec.set_ring(1, 16);
  spec.policy.budget_tokens = 100;
  Rig rig(spec);
  const std::int32_t slot = rig.open();
  rig.prompt(slot, stream, kPrompt);
  std::uint32_t tokens = kPrompt;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::uint8_t> tiers(8 * tokens, 255);
    for (std::uint32_t i = 0; i < tiers.size(); ++i)
      if (i % tokens > 0 && i % tokens < tokens - 16) tiers[i] = 1;
    quire_plan_apply_args args = QUIRE_PLAN_APPLY_ARGS_INIT;
    args.slot = slot;
    args.layer_count = 8;
    args.tokens = tokens;
    args.tiers = tiers.data();
    REQUIRE(rig.cache.plan_apply(args).ok());
    for (int i = 0; i < 12; ++i) {
      rig.step(slot, stream, tokens++);
      for (std::uint32_t layer = 0; layer < 8; ++layer)
        REQUIRE(rig.kept(slot, layer, 0).size() == 100);
    }
  }
  REQUIRE(check_pool(rig.state()) == "");
}

TEST_CASE("a probation of 2^31 queries and more is one", "[policy][extremes]") {
  for (const std::uint32_t queries : {0x7fffffffu, 0x80000000u, 0xffffffffu}) {
    TierRule rule;
    rule.length = 100;
    rule.min_queries = queries;
    REQUIRE(rule.on_probation(3));
  }
}

}  // namespace
}  // namespace quire::test
