// Oracle: a full sort in the order of all plans, and smoothing by its definition over a padded
// copy.
#include <algorithm>
#include <cmath>
#include <vector>

#include "quire/policy/select.hpp"
#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/gen.hpp"

namespace quire::test {
namespace {

TEST_CASE("the best tokens are those of a full sort, ties to the earlier position",
          "[policy][select]") {
  Rng rng(7421);
  INFO(rng.describe());
  for (int i = 0; i < 4000; ++i) {
    const std::uint32_t count = rng.below(120);
    const std::uint32_t keep = rng.below(130);
    const auto first = static_cast<std::int32_t>(rng.below(5));
    const std::uint32_t levels = rng.below(2) == 0 ? 3 : 1000;
    std::vector<Ranked> candidates;
    for (std::uint32_t c = 0; c < count; ++c) {
      candidates.push_back(
          {static_cast<float>(rng.below(levels)) / 7.0f, first + static_cast<std::int32_t>(c)});
    }
    std::vector<Ranked> sorted = candidates;
    std::stable_sort(sorted.begin(), sorted.end(), [](const Ranked& a, const Ranked& b) {
      return a.significance > b.significance;  // stable: positions stay ascending
    });
    std::vector<Tier> want(count, Tier::kDropped);
    for (std::uint32_t c = 0; c < std::min(keep, count); ++c)
      want[static_cast<std::size_t>(sorted[c].position - first)] = Tier::kHigh;
    for (std::uint32_t c = count; c > 1; --c)
      std::swap(candidates[c - 1], candidates[rng.below(c)]);
    std::vector<Tier> tiers(count, Tier::kKeep);
    select_top(candidates.data(), count, keep, tiers.data(), first);
    REQUIRE(tiers == want);
  }
}

TEST_CASE("smoothing averages or takes the maximum over a padded neighbourhood",
          "[policy][select]") {
  Rng rng(7422);
  INFO(rng.describe());
  for (int i = 0; i < 3000; ++i) {
    const std::uint32_t count = 1 + rng.below(80);
    const std::uint32_t width = 1 + 2 * rng.below(32);
    std::vector<float> scores(count);
    for (float& x : scores) x = static_cast<float>(rng.uniform());
    const std::size_t reach = width / 2;
    std::vector<double> padded(count + 2 * reach, 0.0);
    std::copy(scores.begin(), scores.end(), padded.begin() + static_cast<std::ptrdiff_t>(reach));
    const std::uint32_t at = rng.below(count);
    double sum = 0.0;
    double most = 0.0;
    for (std::uint32_t w = 0; w < width; ++w) {
      sum += padded[at + w];
      most = std::max(most, padded[at + w]);
    }
    const auto average =
        static_cast<double>(pooled_score(scores.data(), count, at, PoolKind::kAverage, width));
    REQUIRE(std::fabs(average - sum / width) <= (2.0 * width + 2.0) * kFloatEps * sum / width);
    REQUIRE(static_cast<double>(
                pooled_score(scores.data(), count, at, PoolKind::kMaximum, width)) == most);
  }
}

}  // namespace
}  // namespace quire::test
