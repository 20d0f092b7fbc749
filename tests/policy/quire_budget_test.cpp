// Oracle: setting A as it was measured. Scores are sums of means of squares, tokens that fewer than
// 96 queries have seen stay high, tiers only fall, one factor serves all layers and heads, and the
// controller runs every `cadence` steps.
#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "src/control.hpp"
#include "support/catch.hpp"
#include "support/policy_reference.hpp"
#include "support/policy_rig.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kPrompt = 400;
constexpr std::uint32_t kSteps = 150;
constexpr std::int32_t kProbation = 96;

StreamShape budget_shape() {
  StreamShape shape;
  shape.tokens = kPrompt + kSteps;
  return shape;
}

RigSpec budget_spec(double target) {
  RigSpec spec(QUIRE_RECIPE_QUIRE_BUDGET, budget_shape());
  spec.policy.byte_target = target;
  return spec;
}

std::int32_t queries_of(std::int32_t position, std::int32_t length) {
  constexpr std::int32_t kFirst = static_cast<std::int32_t>(kPrompt) - 256;
  const bool of_prompt = position < static_cast<std::int32_t>(kPrompt);
  return length - (of_prompt ? std::max(position, kFirst) : position);
}

TEST_CASE("quire_budget keeps a token high until 96 queries have seen it", "[policy][own]") {
  Rng rng(8401);
  INFO(rng.describe());
  const Stream stream(budget_shape(), rng);
  Rig rig(budget_spec(0.28));
  const std::int32_t slot = rig.open();
  rig.prompt(slot, stream, kPrompt);
  std::size_t fallen = 0;
  for (std::uint32_t t = kPrompt; t <= kPrompt + kSteps; ++t) {
    const auto length = static_cast<std::int32_t>(t);
    for (std::uint32_t h = 0; h < 4; ++h) {
      std::vector<std::uint32_t> tiers(t, 254);
      for (const KeptToken& k : rig.kept(slot, h / 2, h % 2))
        tiers[static_cast<std::size_t>(k.position)] = k.tier;
      for (std::int32_t p = 1; p < length - 48; ++p) {
        const std::uint32_t tier = tiers[static_cast<std::size_t>(p)];
        INFO("length " << length << " position " << p);
        if (queries_of(p, length) < kProbation) REQUIRE(tier == 0);
        fallen += tier != 0 ? 1 : 0;
      }
    }
    if (t < kPrompt + kSteps) rig.step(slot, stream, t);
  }
  REQUIRE(fallen > 0);
}

TEST_CASE("quire_budget's tiers only fall, and between two runs of the controller none does",
          "[policy][own]") {
  Rng rng(8402);
  INFO(rng.describe());
  const Stream stream(budget_shape(), rng);
  Rig rig(budget_spec(0.28));
  const std::int32_t slot = rig.open();
  rig.prompt(slot, stream, kPrompt);
  const auto held = [&](std::uint32_t h) {
    std::map<std::int32_t, std::uint32_t> tiers;
    for (const KeptToken& k : rig.kept(slot, h / 2, h % 2)) tiers[k.position] = k.tier;
    return tiers;
  };
  std::size_t fell = 0;
  std::map<std::int32_t, std::uint32_t> before[4];
  for (std::uint32_t h = 0; h < 4; ++h) before[h] = held(h);
  for (std::uint32_t t = kPrompt; t < kPrompt + kSteps; ++t) {
    rig.step(slot, stream, t);
    const bool runs = t > kPrompt && (t - kPrompt) % 16 == 0;
    for (std::uint32_t h = 0; h < 4; ++h) {
      std::map<std::int32_t, std::uint32_t> now = held(h);
      for (const auto& [position, tier] : now) {
        const auto old = before[h].find(position);
        INFO("token " << t << " position " << position);
        if (old == before[h].end()) {
          REQUIRE(position == static_cast<std::int32_t>(t));
          continue;
        }
        if (old->second == tier) continue;
        if (old->second == 255) {  // left the ring, on probation
          REQUIRE(tier == 0);
          continue;
        }
        REQUIRE(runs);
        REQUIRE(old->second == 0);
        REQUIRE(tier == 1);
        ++fell;
      }
      const bool all_there = now.size() == before[h].size() + 1;
      REQUIRE((runs || all_there));
      before[h] = std::move(now);
    }
  }
  REQUIRE(fell > 0);
}

TEST_CASE("one factor explains the tiers of all layers and heads after a prompt", "[policy][own]") {
  Rng rng(8403);
  INFO(rng.describe());
  const Stream stream(budget_shape(), rng);
  Rig rig(budget_spec(0.26));
  const std::int32_t slot = rig.open();
  rig.prompt(slot, stream, kPrompt);
  // N * sigma of every token against alpha: the factor lies between what stayed and what fell.
  double most_fallen[2] = {0.0, 0.0};
  double least_stayed[2] = {1e300, 1e300};
  std::size_t low = 0;
  for (std::uint32_t h = 0; h < 4; ++h) {
    ReferenceHead ref(rig.spec, ScoreError{});
    ref.tokens.resize(kPrompt);
    PromptScorer(stream, rig.spec, kPrompt).score(h / 2, h % 2, ref);
    std::vector<std::uint32_t> tiers(kPrompt, 254);
    for (const KeptToken& k : rig.kept(slot, h / 2, h % 2))
      tiers[static_cast<std::size_t>(k.position)] = k.tier;
    for (std::size_t p = 1; p < kPrompt - 48; ++p) {
      const std::int32_t n = queries_of(static_cast<std::int32_t>(p), kPrompt);
      if (n < kProbation) continue;
      const double x = kPrompt * std::sqrt(ref.tokens[p].score / n);
      const auto split = [&](std::size_t which, double ratio, bool stayed) {
        if (stayed) least_stayed[which] = std::min(least_stayed[which], x / ratio);
        if (!stayed) most_fallen[which] = std::max(most_fallen[which], x / ratio);
      };
      split(0, 1.0, tiers[p] == 0);
      split(1, 0.1, tiers[p] != 254);
      if (tiers[p] == 1) ++low;
    }
  }
  const ScoreError error = ScoreError::of(stream, QUIRE_STATISTIC_MEAN_SQUARE);
  REQUIRE(low > 0);
  REQUIRE(most_fallen[0] > 0.0);
  REQUIRE(most_fallen[1] > 0.0);
  const double fallen = std::max(most_fallen[0], most_fallen[1]);
  const double stayed = std::min(least_stayed[0], least_stayed[1]);
  REQUIRE(fallen * (1.0 - error.relative) <= stayed * (1.0 + error.relative));
  const double factor = static_cast<double>(rig.state().slots[slot].factor);
  REQUIRE(factor * (1.0 + error.relative) >= fallen);
  REQUIRE(factor * (1.0 - error.relative) <= stayed);
}

TEST_CASE("quire_budget's score is the sum of group means of squared probabilities",
          "[policy][own]") {
  Rng rng(8404);
  INFO(rng.describe());
  const Stream stream(budget_shape(), rng);
  Rig rig(budget_spec(1.5));
  const std::int32_t slot = rig.open();
  rig.prompt(slot, stream, kPrompt);
  rig.step(slot, stream, kPrompt);
  const ScoreError error = ScoreError::of(stream, QUIRE_STATISTIC_MEAN_SQUARE);
  const std::uint32_t dim = stream.shape.dim;
  const DecodedHead decoded = rig.gather(slot, 1, 1);
  std::vector<double> want(kPrompt + 1, 0.0);
  for (std::uint32_t query = kPrompt - 256; query <= kPrompt; ++query) {
    for (std::uint32_t g = 0; g < 2; ++g) {
      const float* q = stream.q(1, query) + (2 + g) * dim;
      const bool step = query == kPrompt;  // over what is stored; the prompt over what was given
      const std::vector<double> p =
          step ? softmax_of(q, decoded.keys.data(), kPrompt + 1, dim, dim, stream.scale())
               : softmax_of(q, stream.k(1, 0) + dim, query + 1, 2 * dim, dim, stream.scale());
      for (std::size_t i = 0; i < p.size(); ++i) {
        const std::size_t at = step ? static_cast<std::size_t>(decoded.positions[i]) : i;
        want[at] += p[i] * p[i] / 2.0;
      }
    }
  }
  for (const KeptToken& t : rig.kept(slot, 1, 1)) {
    INFO("position " << t.position);
    const double w = want[static_cast<std::size_t>(t.position)];
    REQUIRE(std::fabs(static_cast<double>(t.score) - w) <=
            error.relative * w + 257.0 * error.per_query);
  }
}

TEST_CASE("the controller runs every cadence steps", "[policy][own]") {
  const std::uint32_t cadence = GENERATE(1u, 5u, 16u);
  Rng rng(8405);
  INFO(rng.describe() << " cadence " << cadence);
  const Stream stream(budget_shape(), rng);
  RigSpec spec = budget_spec(0.28);
  spec.policy.cadence = cadence;
  Rig rig(spec);
  const std::int32_t slot = rig.open();
  rig.prompt(slot, stream, kPrompt);
  for (std::uint32_t i = 0; i < 40; ++i) {
    REQUIRE(rig.begin(slot).ok());
    const bool runs = i >= cadence && i % cadence == 0;
    INFO("step " << i);
    REQUIRE((rig.state().step.slots[0].cadence != 0) == runs);
    REQUIRE(rig.cache.step_cancel().ok());
    rig.step(slot, stream, kPrompt + i);
    const quire_seq_info info = rig.cache.info(slot);
    REQUIRE(static_cast<double>(info.total_bytes) <= 0.28 * static_cast<double>(info.fp16_bytes));
  }
}

}  // namespace
}  // namespace quire::test
