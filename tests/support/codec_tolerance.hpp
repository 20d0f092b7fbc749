// Bounds of the codecs, from format and data. Measured figures come with the repeatability that
// their source gives (two or three digits, over seeds).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "support/compare.hpp"

namespace quire::test {

inline constexpr double kTableAgreement = 1e-6;   // tables and their distortion, absolute
inline constexpr double kModelGAgreement = 0.02;  // relative, on 2,048 vectors or more
inline constexpr double kModelG8BitAgreement = 0.05;
inline constexpr double kOutlierAgreement = 0.10;  // heavy tails repeat worse
inline constexpr double kUnbiasedSlope = 0.003;
inline constexpr double kOrthonormal = 1e-6;          // R R^T against the identity, absolute
inline constexpr double kSignedConstant3Bits = 0.04;  // constant + 0.1 normal, rotated, at most

// fp32 roundings of an affine code: the difference, the reciprocal of the scale, the product. In
// units of x; at most one and a half ulp of the range.
inline double affine_code_rounding(double distance_to_zero) {
  return 3.0 * kFloatEps * std::fabs(distance_to_zero);
}

// fp32 roundings of code * scale + zero.
inline double affine_value_rounding(double product, double value) {
  return kFloatEps * (std::fabs(product) + std::fabs(value));
}

// Demotion by integer quotient: half a step, and the nearest rounding of the new scale under the
// largest code (15 * 2^-11 of the step for 4 bits).
inline double demotion_bound(double step, std::uint32_t to_bits) {
  return step * (0.5 + ((1u << to_bits) - 1u) * kHalfEps);
}

// fp32 roundings of x / scale against a border of the symmetric grid: reciprocal and product (and
// the division by the step), relative.
inline constexpr double kSymmetricCodeRounding = 4.0 * kFloatEps;

// An orthonormal transform by log2(block) butterflies in fp32 and one product, per element.
inline double rotation_tolerance(std::uint32_t block, double norm_of_block) {
  return (std::log2(static_cast<double>(block)) + 2.0) * kFloatEps * norm_of_block;
}

// The same as a relative bound on a vector's norm, or on a product of norms for two vectors.
inline double rotation_relative(std::uint32_t block) {
  return 2.0 * (std::log2(static_cast<double>(block)) + 2.0) * kFloatEps;
}

}  // namespace quire::test
