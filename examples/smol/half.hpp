// fp16 in the engine: stored weights, and keys and values rounded as a 16-bit cache would.
#pragma once

#include <cmath>
#include <cstdint>

namespace smol {

inline float half_to_float(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int mantissa = half & 1023;
  float magnitude;
  if (exponent == 31) {
    magnitude = mantissa == 0 ? HUGE_VALF : NAN;
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  }
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

// Nearest fp16 number, ties to even, as fp32; beyond the range +-65504.
inline float round_to_half(float x) {
  const float magnitude = std::fabs(x);
  if (magnitude >= 65504.0f) return std::copysign(65504.0f, x);
  // Adding and subtracting a number whose ulp is the fp16 ulp of x rounds to it.
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const float ulp = std::ldexp(1.0f, exponent > -13 ? exponent - 11 : -24);
  return std::copysign(std::nearbyint(magnitude / ulp) * ulp, x);
}

}  // namespace smol
