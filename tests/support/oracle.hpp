// Attention in double precision over plain arrays: the oracle of every attention test. It knows
// nothing of pages, tiers or formats.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace quire::test {

// One query head against n keys; arrays are [n][dim].
struct OracleProblem {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  std::int64_t n = 0;
  std::int64_t dim_k = 0;
  std::int64_t dim_v = 0;
  std::int64_t k_stride = 0;  // elements from key to key
  std::int64_t v_stride = 0;
  const std::int32_t* positions = nullptr;  // [n]; nullptr: 0..n-1
  std::int32_t query_position = std::numeric_limits<std::int32_t>::max();
  double scale = 1.0;
  double soft_cap = 0.0;
  std::int32_t sliding_window = 0;
  double alibi_slope = 0.0;
  bool has_sink = false;
  double sink_logit = 0.0;
};

struct OracleResult {
  std::vector<double> out;  // [dim_v], 0 when nothing is visible
  std::vector<double> p;    // [n] with the sink in the denominator, 0 for invisible keys
  double lse = -std::numeric_limits<double>::infinity();  // without the sink
};

inline OracleResult oracle_attention(const OracleProblem& a) {
  OracleResult r;
  r.out.assign(static_cast<std::size_t>(a.dim_v), 0.0);
  r.p.assign(static_cast<std::size_t>(a.n), 0.0);
  std::vector<double> logits(static_cast<std::size_t>(a.n),
                             -std::numeric_limits<double>::infinity());
  double largest = -std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < a.n; ++i) {
    const std::int32_t pos = a.positions == nullptr ? static_cast<std::int32_t>(i) : a.positions[i];
    const std::int64_t age = std::int64_t{a.query_position} - pos;
    if (age < 0 || (a.sliding_window > 0 && age >= a.sliding_window)) continue;
    double dot = 0.0;
    for (std::int64_t d = 0; d < a.dim_k; ++d) {
      dot += static_cast<double>(a.q[d]) * static_cast<double>(a.k[i * a.k_stride + d]);
    }
    double logit = dot * a.scale;
    if (a.soft_cap > 0.0) logit = a.soft_cap * std::tanh(logit / a.soft_cap);
    logit -= a.alibi_slope * static_cast<double>(age);
    logits[static_cast<std::size_t>(i)] = logit;
    largest = std::max(largest, logit);
  }
  if (!std::isfinite(largest)) return r;
  double sum = 0.0;
  for (const double l : logits) sum += std::exp(l - largest);
  r.lse = largest + std::log(sum);
  const double whole = a.has_sink ? sum + std::exp(a.sink_logit - largest) : sum;
  for (std::int64_t i = 0; i < a.n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    r.p[at] = std::exp(logits[at] - largest) / whole;
    for (std::int64_t d = 0; d < a.dim_v; ++d) {
      r.out[static_cast<std::size_t>(d)] += r.p[at] * static_cast<double>(a.v[i * a.v_stride + d]);
    }
  }
  return r;
}

}  // namespace quire::test
