// Oracle: support/policy_run.hpp, a whole sequence in plain arrays: attention in double over the
// decoded retained set, score sums, tiers decided from those. The library may differ only where its
// scores may be wrong by the promised 2^-9, and such choices must be rare.
#include <vector>

#include "support/catch.hpp"
#include "support/policy_run.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kPrompt = 260;
constexpr std::uint32_t kSteps = 220;

StreamShape run_shape(std::uint32_t tokens = kPrompt + kSteps) {
  StreamShape shape;
  shape.tokens = tokens;
  return shape;
}

// A short ring, so that most tokens are the policy's.
RigSpec short_ring(std::uint32_t recipe, std::uint32_t sinks, std::uint32_t window) {
  RigSpec spec(recipe, run_shape());
  spec.set_ring(sinks, window);
  return spec;
}

// Runs prompt and steps; at most one decision in a hundred may hang on the score error.
void run(const RigSpec& spec, std::uint64_t seed, std::size_t least_low, std::size_t least_gone) {
  Rng rng(seed);
  INFO(rng.describe());
  const Stream stream(run_shape(), rng);
  Rig rig(spec);
  ReferenceRun reference(rig, rig.open(), stream);
  reference.prompt(kPrompt);
  for (std::uint32_t i = 0; i < kSteps; ++i) reference.step();
  INFO(reference.describe());
  REQUIRE(reference.turned * 100 <= reference.decisions);
  REQUIRE(reference.count(kRefLow) >= least_low);
  REQUIRE(reference.count(kRefGone) >= least_gone);
}

constexpr std::size_t kHeads = 4;

TEST_CASE("keep_all keeps every token of a run", "[policy][reference]") {
  run(short_ring(QUIRE_RECIPE_KEEP_ALL, 1, 24), 7601, 0, 0);
}

TEST_CASE("quire_uniform keeps every token of a run", "[policy][reference]") {
  run(short_ring(QUIRE_RECIPE_QUIRE_UNIFORM, 1, 16), 7602, 0, 0);
}

TEST_CASE("diffkv_upstream decides like the reference", "[policy][reference]") {
  RigSpec spec = short_ring(QUIRE_RECIPE_DIFFKV_UPSTREAM, 0, 24);
  spec.group.ring_format = QUIRE_RING_HIGH;
  spec.policy.alpha_low = 0.3f;
  run(spec, 7603, 40 * kHeads, 20 * kHeads);
}

TEST_CASE("diffkv_upstream decides like the reference with its own ring", "[policy][reference]") {
  RigSpec spec = short_ring(QUIRE_RECIPE_DIFFKV_UPSTREAM, 1, 40);
  spec.policy.alpha_low = 0.2f;
  run(spec, 7604, 40 * kHeads, 10 * kHeads);
}

TEST_CASE("diffkv_paper decides like the reference", "[policy][reference]") {
  RigSpec spec = short_ring(QUIRE_RECIPE_DIFFKV_PAPER, 0, 24);
  spec.group.ring_format = QUIRE_RING_HIGH;
  spec.policy.alpha_low = 0.1f;
  run(spec, 7605, 40 * kHeads, 20 * kHeads);
}

TEST_CASE("a sum of maxima decides like the reference", "[policy][reference]") {
  RigSpec spec = short_ring(QUIRE_RECIPE_DIFFKV_UPSTREAM, 2, 16);
  spec.policy.statistic = QUIRE_STATISTIC_MAX_FIRST;
  spec.policy.alpha_high = 2.0f;
  spec.policy.alpha_low = 0.2f;
  run(spec, 7606, 40 * kHeads, 20 * kHeads);
}

TEST_CASE("streaming_llm decides like the reference", "[policy][reference]") {
  RigSpec spec = short_ring(QUIRE_RECIPE_STREAMING_LLM, 4, 24);
  spec.policy.budget_tokens = 100;
  run(spec, 7607, 0, (kPrompt + kSteps - 100) * kHeads);
}

TEST_CASE("h2o decides like the reference", "[policy][reference]") {
  RigSpec spec = short_ring(QUIRE_RECIPE_H2O, 1, 24);
  spec.policy.budget_tokens = 120;
  run(spec, 7608, 0, (kPrompt + kSteps - 120) * kHeads);
}

TEST_CASE("snapkv decides like the reference", "[policy][reference]") {
  RigSpec spec = short_ring(QUIRE_RECIPE_SNAPKV, 1, 32);
  spec.policy.tail_queries = 32;
  spec.policy.budget_tokens = 140;
  run(spec, 7609, 0, (kPrompt + kSteps - 140) * kHeads);
}

TEST_CASE("snapkv that grows decides like the reference", "[policy][reference]") {
  RigSpec spec = short_ring(QUIRE_RECIPE_SNAPKV, 1, 32);
  spec.policy.flags |= QUIRE_POLICY_GROWS;
  spec.policy.budget_tokens = 140;
  run(spec, 7610, 0, (kPrompt - 140) * kHeads);
}

TEST_CASE("quire_budget decides like the reference", "[policy][reference]") {
  RigSpec spec = short_ring(QUIRE_RECIPE_QUIRE_BUDGET, 1, 32);
  spec.policy.byte_target = 0.36;
  spec.policy.min_queries = 60;
  run(spec, 7611, 20 * kHeads, 20 * kHeads);
}

TEST_CASE("diffkv_upstream with a byte target decides like the reference", "[policy][reference]") {
  RigSpec spec = short_ring(QUIRE_RECIPE_DIFFKV_UPSTREAM, 1, 24);
  spec.group.ring_format = QUIRE_RING_K8V8;
  spec.policy.byte_target = 0.4;
  run(spec, 7612, 10 * kHeads, 10 * kHeads);
}

TEST_CASE("quire_budget under a record budget decides like the reference", "[policy][reference]") {
  RigSpec spec = short_ring(QUIRE_RECIPE_QUIRE_BUDGET, 1, 16);
  spec.policy.byte_target = 0.0;
  spec.policy.budget_bytes = kHeads * 11000;
  spec.policy.min_queries = 40;
  run(spec, 7613, 20 * kHeads, 20 * kHeads);
}

TEST_CASE("without any ring the reference is followed from the first token",
          "[policy][reference]") {
  const std::uint32_t recipe =
      GENERATE(QUIRE_RECIPE_DIFFKV_UPSTREAM, QUIRE_RECIPE_DIFFKV_PAPER, QUIRE_RECIPE_H2O);
  RigSpec spec = short_ring(recipe, 0, 0);
  if (recipe == QUIRE_RECIPE_H2O) spec.policy.budget_tokens = 30;
  Rng rng(7614);
  INFO(rng.describe() << " recipe " << recipe);
  const Stream stream(run_shape(150), rng);
  Rig rig(spec);
  ReferenceRun reference(rig, rig.open(), stream);
  for (std::uint32_t i = 0; i < 150; ++i) reference.step();  // no prompt either
  INFO(reference.describe());
  REQUIRE(reference.turned * 100 <= reference.decisions);
  REQUIRE(reference.count(kRefGone) + reference.count(kRefLow) > 0);
}

TEST_CASE("a foreign plan is what the cache holds, and later tokens are high",
          "[policy][reference]") {
  Rng rng(7615);
  INFO(rng.describe());
  const Stream stream(run_shape(), rng);
  Rig rig(short_ring(QUIRE_RECIPE_FOREIGN, 1, 24));
  std::vector<std::uint8_t> plan(kHeads * kPrompt);
  for (std::uint8_t& tier : plan) tier = std::vector<std::uint8_t>{0, 1, 254}[rng.below(3)];
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const std::size_t position = i % kPrompt;
    if (position < 1 || position >= kPrompt - 24) plan[i] = 255;
  }
  ReferenceRun reference(rig, rig.open(), stream);
  reference.prompt(kPrompt, plan.data());
  for (std::uint32_t i = 0; i < kSteps; ++i) reference.step();
  REQUIRE(reference.count(kRefLow) > 0);
}

// DiffKV's code switches paths at some of these; a query below the tail sees fewer keys.
TEST_CASE("prompts of every critical length are classified like the reference",
          "[policy][reference]") {
  const std::uint32_t tokens =
      GENERATE(1u, 2u, 15u, 16u, 17u, 63u, 64u, 65u, 128u, 192u, 1000u, 4000u, 4001u);
  StreamShape shape;
  shape.layers = 1;
  shape.kv_heads = 1;
  shape.dim = 16;
  shape.tokens = tokens + 1;
  Rng rng(7620 + tokens);
  INFO(rng.describe() << " tokens " << tokens);
  const Stream stream(shape, rng);
  for (const std::uint32_t recipe : {QUIRE_RECIPE_DIFFKV_UPSTREAM, QUIRE_RECIPE_QUIRE_BUDGET}) {
    RigSpec spec(recipe, shape);
    spec.max_tokens = tokens + 8;
    Rig rig(spec);
    ReferenceRun reference(rig, rig.open(), stream);
    reference.prompt(tokens);
    reference.step();
    REQUIRE(reference.turned * 50 <= reference.decisions);
  }
}

TEST_CASE("prompts whose scores are all equal keep to the thresholds", "[policy][reference]") {
  StreamShape shape = run_shape(201);
  Rng rng(7640);
  INFO(rng.describe());
  Stream stream(shape, rng);
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer)
    for (std::uint32_t t = 0; t < shape.tokens; ++t)
      std::fill_n(stream.q_at(layer, t), stream.q_heads() * shape.dim, 0.0f);
  for (const float alpha : {0.5f, 3.0f}) {
    RigSpec spec = short_ring(QUIRE_RECIPE_DIFFKV_UPSTREAM, 0, 24);
    spec.policy.alpha_high = alpha;
    spec.policy.alpha_low = 0.1f;
    Rig rig(spec);
    ReferenceRun reference(rig, rig.open(), stream);
    reference.prompt(200);
    reference.step();
    // The mean of a token is close to 1 / length: all high at 0.5, all low at 3.
    REQUIRE(reference.count(alpha < 1.0f ? kRefHigh : kRefLow) >= kHeads * 175);
  }
}

}  // namespace
}  // namespace quire::test
