// Oracle: thresholds, order of victims and the downward rule by their definitions, in double or by
// sorting; what a stored score becomes by the definition of each significance.
#include <algorithm>
#include <cmath>
#include <vector>

#include "quire/policy/tiers.hpp"
#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/gen.hpp"
#include "support/policy_naive.hpp"

namespace quire::test {
namespace {

TEST_CASE("thresholds are factor times alpha over the base", "[policy][tiers]") {
  Rng rng(7201);
  INFO(rng.describe());
  for (int i = 0; i < 20000; ++i) {
    const float high = static_cast<float>(rng.uniform() * 4.0);
    const float low = high * static_cast<float>(rng.uniform());
    const float factor = static_cast<float>(std::exp(8.0 * rng.uniform() - 4.0));
    const auto base = static_cast<std::int32_t>(1 + rng.below(1u << 20));
    const Thresholds t = thresholds_at(high, low, factor, base);
    const auto want = [&](float alpha) {
      return static_cast<double>(factor) * static_cast<double>(alpha) / base;
    };
    const double roundings = 3.0 * 2.0 * kFloatEps;  // the reciprocal and two products
    REQUIRE(std::fabs(static_cast<double>(t.high) - want(high)) <= roundings * want(high));
    REQUIRE(std::fabs(static_cast<double>(t.low) - want(low)) <= roundings * want(low));
    REQUIRE(t.low <= t.high);
  }
}

TEST_CASE("at position 0 nothing is below a threshold", "[policy][tiers]") {
  const Thresholds t = thresholds_at(3.0f, 0.5f, 1.0f, 0);
  REQUIRE(classify(0.0f, t) == Tier::kHigh);
  REQUIRE(classify(1e-30f, t) == Tier::kHigh);
}

TEST_CASE("equality goes to the better tier", "[policy][tiers]") {
  const Thresholds t{0.25f, 0.0625f};
  REQUIRE(classify(0.25f, t) == Tier::kHigh);
  REQUIRE(classify(std::nextafter(0.25f, 0.0f), t) == Tier::kLow);
  REQUIRE(classify(0.0625f, t) == Tier::kLow);
  REQUIRE(classify(std::nextafter(0.0625f, 0.0f), t) == Tier::kDropped);
  REQUIRE(classify(0.0f, Thresholds{0.0f, 0.0f}) == Tier::kHigh);
  REQUIRE(classify(0.0f, Thresholds{0.1f, 0.0f}) == Tier::kLow);
}

TEST_CASE("the victim is the last by score descending and position ascending", "[policy][tiers]") {
  Rng rng(7202);
  INFO(rng.describe());
  for (int round = 0; round < 5000; ++round) {
    const std::uint32_t count = 1 + rng.below(40);
    NaiveTier tokens;
    for (std::uint32_t i = 0; i < count; ++i) {
      tokens.push_back({static_cast<std::int32_t>(i * 3), Range::exact(rng.below(4) / 4.0)});
    }
    for (std::uint32_t i = count; i > 1; --i) std::swap(tokens[i - 1], tokens[rng.below(i)]);
    Lowest lowest;
    for (std::uint32_t i = 0; i < count; ++i) {
      lowest.consider(static_cast<float>(tokens[i].significance.value),
                      tokens[i].position,
                      static_cast<std::int32_t>(i));
    }
    NaiveTier sorted = tokens;  // the order of all plans
    std::sort(sorted.begin(), sorted.end(), [](const NaiveToken& a, const NaiveToken& b) {
      if (a.significance.value != b.significance.value)
        return a.significance.value > b.significance.value;
      return a.position < b.position;
    });
    REQUIRE(lowest.exists());
    REQUIRE(lowest.position == sorted.back().position);
    REQUIRE(static_cast<double>(lowest.significance) == sorted.back().significance.value);
    REQUIRE(tokens[static_cast<std::size_t>(lowest.index)].position == lowest.position);
  }
  REQUIRE(!Lowest{}.exists());
}

TEST_CASE("a tier rule never raises a token and spares those on probation", "[policy][tiers]") {
  Rng rng(7203);
  INFO(rng.describe());
  int spared = 0;
  for (int i = 0; i < 50000; ++i) {
    TierRule rule;
    rule.significance = rng.below(2) == 0 ? Significance::kMean : Significance::kRootMean;
    rule.tail_queries = rng.below(100);
    rule.min_queries = rng.below(80);
    const auto prompt = static_cast<std::int32_t>(1 + rng.below(200));
    rule.ends.add(prompt);
    rule.length = prompt + static_cast<std::int32_t>(rng.below(200));
    rule.thresholds = {0.5f, static_cast<float>(0.5 * rng.uniform())};
    const auto position =
        static_cast<std::int32_t>(rng.below(static_cast<std::uint32_t>(rule.length)));
    const float score = static_cast<float>(20.0 * rng.uniform());
    const std::int32_t queries = naive_queries(position, prompt, rule.tail_queries, rule.length);
    const bool spare = queries < static_cast<std::int32_t>(rule.min_queries);
    REQUIRE(rule.on_probation(position) == spare);
    spared += spare ? 1 : 0;
    const float n = static_cast<float>(std::max(queries, 1));
    const float wanted =
        rule.significance == Significance::kMean ? score / n : std::sqrt(score / n);
    REQUIRE(rule.significance_at(score, position) == wanted);
    const Tier alone = classify(wanted, rule.thresholds);
    REQUIRE(rule.tier_of(score, position, Tier::kHigh) == (spare ? Tier::kHigh : alone));
    const Tier from_low = alone == Tier::kDropped ? Tier::kDropped : Tier::kLow;
    REQUIRE(rule.tier_of(score, position, Tier::kLow) == (spare ? Tier::kLow : from_low));
  }
  REQUIRE(spared > 0);
}

}  // namespace
}  // namespace quire::test
