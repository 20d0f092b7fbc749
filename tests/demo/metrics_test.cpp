// Oracle: closed forms of KL divergence, quantiles and perplexity on small distributions.
#include "metrics.hpp"

#include <cmath>
#include <vector>

#include "support/catch.hpp"
#include "support/compare.hpp"

namespace smol {
namespace {

using quire::test::kFloatEps;

// Logits are fp32 logarithms, exponentials fp32: a few roundings of each of n terms.
double tolerance(std::size_t n) { return 16.0 * static_cast<double>(n) * kFloatEps; }

std::vector<float> logits_of(const std::vector<double>& p, double shift) {
  std::vector<float> out;
  for (const double x : p) out.push_back(static_cast<float>(std::log(x) + shift));
  return out;
}

TEST_CASE("KL divergence of two known distributions", "[demo][metrics]") {
  const std::vector<double> p = {0.5, 0.25, 0.125, 0.125};
  const std::vector<double> q = {0.25, 0.25, 0.25, 0.25};
  const std::vector<float> a = logits_of(p, 3.0);
  const std::vector<float> b = logits_of(q, -2.0);
  double expected = 0.0;
  for (std::size_t i = 0; i < p.size(); ++i) expected += p[i] * std::log(p[i] / q[i]);
  const double kl = kl_divergence(summarise(a.data(), 4), summarise(b.data(), 4), 4);
  CHECK(std::fabs(kl - expected) <= tolerance(4));
  const double self = kl_divergence(summarise(a.data(), 4), summarise(a.data(), 4), 4);
  CHECK(std::fabs(self) <= tolerance(4));
}

TEST_CASE("a shift of all logits changes nothing", "[demo][metrics]") {
  const std::vector<double> p = {0.7, 0.2, 0.1};
  const std::vector<float> a = logits_of(p, 0.0);
  const std::vector<float> b = logits_of(p, 11.0);
  CHECK(std::fabs(kl_divergence(summarise(a.data(), 3), summarise(b.data(), 3), 3)) <=
        tolerance(3) * 11.0);
}

TEST_CASE("quantiles interpolate linearly between order statistics", "[demo][metrics]") {
  CHECK(quantile({4.0, 1.0, 3.0, 2.0}, 0.5) == 2.5);
  CHECK(quantile({1.0, 2.0, 3.0, 4.0, 5.0}, 0.25) == 2.0);
  CHECK(quantile({0.0, 10.0}, 0.75) == 7.5);
  CHECK(quantile({7.0}, 0.99) == 7.0);
  std::vector<double> ramp;
  for (int i = 0; i <= 200; ++i) ramp.push_back(i);
  CHECK(std::fabs(quantile(ramp, 0.99) - 198.0) <= tolerance(200));
}

TEST_CASE("perplexity counts the tokens that follow, same top counts all positions",
          "[demo][metrics]") {
  const std::vector<float> reference = logits_of({0.6, 0.3, 0.1}, 0.0);
  const std::vector<float> other = logits_of({0.3, 0.6, 0.1}, 0.0);
  Quality quality;
  quality.add(summarise(reference.data(), 3), summarise(reference.data(), 3), 3, 0);
  quality.add(summarise(reference.data(), 3), summarise(other.data(), 3), 3, 2);
  quality.add(summarise(reference.data(), 3), summarise(other.data(), 3), 3, -1);
  CHECK(quality.steps() == 3);
  CHECK(quality.same_top() == 1.0 / 3.0);
  const double expected = std::exp(-(std::log(0.6) + std::log(0.1)) / 2.0);
  CHECK(std::fabs(quality.perplexity() - expected) <= tolerance(3) * expected);
  const double kl = 0.6 * std::log(0.6 / 0.3) + 0.3 * std::log(0.3 / 0.6);
  CHECK(std::fabs(quality.kld_mean() - 2.0 * kl / 3.0) <= tolerance(3));
}

}  // namespace
}  // namespace smol
