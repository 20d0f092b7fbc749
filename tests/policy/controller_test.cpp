// Oracle: the bytes of a head counted token by token at every candidate factor.
#include <cmath>
#include <vector>

#include "quire/policy/controller.hpp"
#include "support/catch.hpp"
#include "support/gen.hpp"

namespace quire::test {
namespace {

TEST_CASE("a border lies between the edges of its bin", "[policy][controller]") {
  Rng rng(7441);
  INFO(rng.describe());
  const BorderWindow coarse;
  for (int i = 0; i < 20000; ++i) {
    const float border = static_cast<float>(std::exp2(62.0 * rng.uniform() - 39.5));
    const std::uint32_t bin = coarse.slot(border) - 1;
    REQUIRE(bin < kControllerBins - 1);
    REQUIRE(coarse.edge(bin) <= border);
    REQUIRE(border < coarse.edge(bin + 1));
    const BorderWindow fine = coarse.refine(bin);
    const std::uint32_t sub = fine.slot(border) - 1;
    REQUIRE(sub < kControllerBins);
    REQUIRE(fine.edge(sub) <= border);
    if (sub + 1 < kControllerBins) REQUIRE(border < fine.edge(sub + 1));
    REQUIRE(fine.edge(0) == coarse.edge(bin));
  }
}

TEST_CASE("two levels of bins resolve a factor to 2^-10", "[policy][controller]") {
  const BorderWindow coarse;
  for (std::uint32_t bin = 0; bin + 1 < kControllerBins; bin += 5) {
    const BorderWindow fine = coarse.refine(bin);
    for (std::uint32_t sub = 0; sub + 1 < kControllerBins; ++sub) {
      const double low = static_cast<double>(fine.edge(sub));
      const double high = static_cast<double>(fine.edge(sub + 1));
      REQUIRE(high > low);
      REQUIRE(high - low <= low * 0x1.0p-10);
    }
    REQUIRE(static_cast<double>(coarse.edge(bin + 1)) <=
            static_cast<double>(fine.edge(kControllerBins - 1)) * (1.0 + 0x1.0p-10));
  }
}

TEST_CASE("borders outside the window count below all bins or in the last",
          "[policy][controller]") {
  const BorderWindow coarse;
  REQUIRE(coarse.slot(0.0f) == 0);
  REQUIRE(coarse.slot(-1.0f) == 0);
  REQUIRE(coarse.slot(1e-30f) == 0);
  REQUIRE(coarse.slot(coarse.edge(0)) == 1);
  REQUIRE(coarse.slot(3.0e38f) == kControllerBins);
}

struct BorderToken {
  float significance;
  Tier now;
};

struct BorderHead {
  std::vector<BorderToken> tokens;
  float alpha_high;
  float alpha_low;
  std::int32_t base;
};

BorderHead random_head(Rng& rng) {
  BorderHead head;
  head.alpha_high = rng.below(6) == 0 ? 0.0f : static_cast<float>(3.0 * rng.uniform());
  head.alpha_low = rng.below(6) == 0 ? 0.0f : head.alpha_high * static_cast<float>(rng.uniform());
  head.base = static_cast<std::int32_t>(1 + rng.below(5000));
  const std::uint32_t count = rng.below(300);
  for (std::uint32_t i = 0; i < count; ++i) {
    const double s = rng.below(20) == 0 ? 0.0 : std::exp2(30.0 * rng.uniform() - 25.0);
    head.tokens.push_back({static_cast<float>(s), rng.below(3) == 0 ? Tier::kLow : Tier::kHigh});
  }
  return head;
}

// Where a token ends at a factor, by the threshold rule in double; never higher than it is.
Tier tier_at(const BorderHead& head, const BorderToken& token, double factor) {
  const double s = static_cast<double>(token.significance);
  if (s < factor * static_cast<double>(head.alpha_low) / head.base) return Tier::kDropped;
  if (s < factor * static_cast<double>(head.alpha_high) / head.base) return Tier::kLow;
  return token.now;
}

ByteCost small_pages() {
  ByteCost cost;
  cost.page_bytes = 1024;
  cost.tokens_per_page[0] = 16;
  cost.tokens_per_page[1] = 32;
  cost.record_bytes[0] = 60;
  cost.record_bytes[1] = 30;
  cost.chunk_bytes = 128;
  cost.chunk_pages = 4;
  cost.fixed_bytes = 777;
  return cost;
}

std::uint64_t bytes_at(const BorderHead& head,
                       const ByteCost& cost,
                       bool physical,
                       std::uint32_t growth,
                       double factor) {
  std::uint64_t tokens[2] = {growth, 0};
  for (const BorderToken& t : head.tokens) {
    const Tier tier = tier_at(head, t, factor);
    if (tier == Tier::kHigh) ++tokens[0];
    if (tier == Tier::kLow) ++tokens[1];
  }
  return physical ? cost.head_bytes(tokens[0], tokens[1])
                  : cost.head_record_bytes(tokens[0], tokens[1]) + cost.fixed_bytes;
}

// Prices [growth.count, kControllerBins] of a window, from the histogram.
std::vector<std::uint64_t> histogram_prices(const BorderHead& head,
                                            const BorderWindow& window,
                                            bool physical,
                                            const GrowthRun& growth) {
  BorderHistogram histogram = {};
  ControlledHead counts;
  for (const BorderToken& t : head.tokens) {
    add_border(
        histogram, window, t.now, t.significance, head.base, head.alpha_high, head.alpha_low);
    ++(t.now == Tier::kHigh ? counts.high : counts.low);
  }
  std::vector<std::uint64_t> total(growth.count * kControllerBins, 5);
  add_head_cost(histogram, counts, small_pages(), physical, growth, total.data());
  return total;
}

TEST_CASE("histograms price every factor like a count of all tokens", "[policy][controller]") {
  Rng rng(7442);
  INFO(rng.describe());
  for (int i = 0; i < 60; ++i) {
    const BorderHead head = random_head(rng);
    const bool physical = rng.below(2) == 0;
    const GrowthRun growth = {rng.below(20), 1 + rng.below(40)};
    const BorderWindow coarse;
    const BorderWindow window = i % 2 == 0 ? coarse : coarse.refine(140 + rng.below(60));
    const std::vector<std::uint64_t> prices = histogram_prices(head, window, physical, growth);
    for (std::uint32_t at = 0; at < growth.count * kControllerBins; ++at) {
      // Random significances do not lie within rounding of an edge; the count there is exact.
      const double factor = static_cast<double>(window.edge(at % kControllerBins));
      const std::uint32_t grown = growth.first + at / kControllerBins;
      INFO("head " << i << " price " << at);
      REQUIRE(prices[at] == 5 + bytes_at(head, small_pages(), physical, grown, factor));
    }
  }
}

TEST_CASE("with a threshold of zero no factor moves a token", "[policy][controller]") {
  BorderHead head;
  head.alpha_high = head.alpha_low = 0.0f;
  head.base = 100;
  for (int i = 0; i < 40; ++i) head.tokens.push_back({1e-6f * static_cast<float>(i), Tier::kHigh});
  for (const std::uint64_t price : histogram_prices(head, BorderWindow{}, true, {0, 1}))
    REQUIRE(price == 5 + small_pages().head_bytes(40, 0));
}

}  // namespace
}  // namespace quire::test
