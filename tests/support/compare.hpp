// Error measures, and tolerances computed from format, shape and data: no test has a literal one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace quire::test {

inline constexpr double kFloatEps = 0x1.0p-24;  // half an ulp of 1 in fp32
inline constexpr double kHalfEps = 0x1.0p-11;   // of fp16
inline constexpr double kBfloatEps = 0x1.0p-8;  // of bf16

// Norms that bound an attention over n keys.
struct AttentionScale {
  double q_norm = 0.0;  // largest |q|
  double k_norm = 0.0;  // largest |k|
  double v_max = 0.0;   // largest |v element|
  double scale = 1.0;
  std::int64_t dim = 0;
  std::int64_t n = 0;
  double soft_max_logit = 0.0;  // largest |logit| added by ALiBi or a sink
};

// Error of one logit in fp32: `dim` products summed in any order (|error| <= dim * eps * sum|qk|),
// scale and zero applied as two further roundings, an orthonormal rotation of both sides
// (log2(dim) additions each).
inline double logit_tolerance(const AttentionScale& s) {
  const double rounding =
      static_cast<double>(s.dim) + 2.0 * std::log2(static_cast<double>(s.dim)) + 8.0;
  return rounding * kFloatEps * (s.q_norm * s.k_norm * s.scale + s.soft_max_logit);
}

// A weight exp(l - max) is off by its logit's error, exp itself (4 ulp) and a few products; sums of
// n weighted values add n roundings. Both enter numerator and denominator.
inline double output_tolerance(const AttentionScale& s) {
  const double weight = 2.0 * logit_tolerance(s) + 16.0 * kFloatEps;
  const double sums = 2.0 * (static_cast<double>(s.n) + 16.0) * kFloatEps;
  return s.v_max * (weight + sums);
}

inline double lse_tolerance(const AttentionScale& s) {
  const double magnitude =
      s.q_norm * s.k_norm * s.scale + s.soft_max_logit + std::log(static_cast<double>(s.n) + 1.0);
  return logit_tolerance(s) + (static_cast<double>(s.n) + 16.0) * kFloatEps +
         4.0 * kFloatEps * magnitude;
}

// Relative error of a score: staged logits (2^-9 is promised), plus the error of the logits.
inline double score_tolerance(const AttentionScale& s) {
  return 0x1.0p-9 + 2.0 * logit_tolerance(s) + 64.0 * kFloatEps;
}

// Relative mean squared error of a codec.
class RelativeError {
 public:
  void add(double x, double y) {
    error_ += (x - y) * (x - y);
    power_ += x * x;
  }
  double value() const { return error_ / power_; }

 private:
  double error_ = 0.0;
  double power_ = 0.0;
};

inline double norm(const float* x, std::int64_t n) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return std::sqrt(sum);
}

inline double largest(const float* x, std::int64_t n) {
  double most = 0.0;
  for (std::int64_t i = 0; i < n; ++i) most = std::max(most, std::fabs(static_cast<double>(x[i])));
  return most;
}

}  // namespace quire::test
