// Oracle: maxima, means and means of squares in double; DiffKV's worked case of the order of
// maximum and sum.
#include <algorithm>
#include <cmath>
#include <vector>

#include "quire/core/score_view.hpp"
#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/gen.hpp"

namespace quire::test {
namespace {

TEST_CASE("one query's contribution is the maximum, the mean or the mean of squares",
          "[policy][statistic]") {
  Rng rng(7401);
  INFO(rng.describe());
  for (int i = 0; i < 5000; ++i) {
    const std::uint32_t group = 1 + rng.below(16);
    const std::uint32_t stride = 1 + rng.below(5);
    std::vector<float> p(std::size_t{group} * stride, -1.0f);  // strangers between the heads
    double sum = 0.0;
    double squares = 0.0;
    double most = 0.0;
    for (std::uint32_t g = 0; g < group; ++g) {
      const float x = static_cast<float>(rng.uniform());
      p[std::size_t{g} * stride] = x;
      sum += static_cast<double>(x);
      squares += static_cast<double>(x) * static_cast<double>(x);
      most = std::max(most, static_cast<double>(x));
    }
    const auto close = [&](Statistic statistic, double want) {
      const auto got = static_cast<double>(score_increment(statistic, p.data(), group, stride));
      return std::fabs(got - want) <= (2.0 * group + 2.0) * kFloatEps * want;
    };
    REQUIRE(static_cast<double>(score_increment(Statistic::kMaxSum, p.data(), group, stride)) ==
            most);
    REQUIRE(static_cast<double>(score_increment(Statistic::kMaxFirst, p.data(), group, stride)) ==
            most);
    REQUIRE(close(Statistic::kMeanSum, sum / group));
    REQUIRE(close(Statistic::kMeanSquare, squares / group));
  }
}

TEST_CASE("a group of zeros contributes zero to every statistic", "[policy][statistic]") {
  const std::vector<float> p(8, 0.0f);
  for (const Statistic s :
       {Statistic::kMaxSum, Statistic::kMaxFirst, Statistic::kMeanSum, Statistic::kMeanSquare}) {
    REQUIRE(score_increment(s, p.data(), 8, 1) == 0.0f);
  }
}

}  // namespace
}  // namespace quire::test
