// 16-bit floats as bits, with the directed roundings that the formats need; equal on host and
// device.
#pragma once

#include <cstdint>
#include <cstring>

#include "quire/core/config.hpp"

namespace quire {

enum class DType : std::uint32_t { kF32 = 1, kF16 = 2, kBf16 = 3 };

QUIRE_HD constexpr std::uint32_t dtype_bytes(DType type) { return type == DType::kF32 ? 4 : 2; }

enum class Rounding { kNearestEven, kDown, kUp };

inline constexpr float kHalfMax = 65504.0f;

QUIRE_HD inline std::uint32_t float_bits(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

QUIRE_HD inline float bits_float(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

QUIRE_HD inline float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  const std::uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in fp32
    const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    return bits_float(sign | float_bits(magnitude));
  }
  const std::uint32_t biased = exponent == 31 ? 255u : exponent + 112u;
  return bits_float(sign | (biased << 23) | (mantissa << 13));
}

// fp32 to fp16 in a chosen direction. Finite values beyond the range saturate to +-65504: metadata
// never becomes infinite. NaN stays NaN.
QUIRE_HD inline std::uint16_t float_to_half(float x, Rounding rounding = Rounding::kNearestEven) {
  const std::uint32_t bits = float_bits(x);
  const std::uint32_t sign = bits >> 31;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint16_t sign_bit = static_cast<std::uint16_t>(sign << 15);
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign_bit | 0x7e00u);
  if (magnitude >= 0x477fe000u) return static_cast<std::uint16_t>(sign_bit | 0x7bffu);
  std::uint32_t half;
  std::uint32_t rest;
  std::uint32_t shift = 13;
  if (magnitude >= 0x38800000u) {  // normal in fp16
    half = (magnitude - 0x38000000u) >> 13;
    rest = magnitude & 0x1fffu;
  } else {  // subnormal in fp16: count of 2^-24
    const std::uint32_t exponent = magnitude >> 23;
    const std::uint32_t full = (magnitude & 0x7fffffu) | (exponent != 0 ? 0x800000u : 0u);
    shift = 126u - (exponent != 0 ? exponent : 1u);
    if (shift > 25) {  // below a quarter of the smallest subnormal
      half = 0;
      rest = full != 0 ? 1u : 0u;
      shift = 25;
    } else {
      half = full >> shift;
      rest = full & ((1u << shift) - 1u);
    }
  }
  const std::uint32_t middle = 1u << (shift - 1);
  bool up = false;
  if (rounding == Rounding::kNearestEven) {
    up = rest > middle || (rest == middle && (half & 1u) != 0);
  } else {
    up = rest != 0 && (rounding == Rounding::kDown) == (sign != 0);
  }
  half += up ? 1u : 0u;
  return static_cast<std::uint16_t>(sign_bit | half);
}

QUIRE_HD inline float bfloat_to_float(std::uint16_t bfloat) {
  return bits_float(static_cast<std::uint32_t>(bfloat) << 16);
}

// Nearest even; finite values never round to infinity.
QUIRE_HD inline std::uint16_t float_to_bfloat(float x) {
  const std::uint32_t bits = float_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const bool became_infinite =
      (rounded & 0x7fffffffu) >= 0x7f800000u && (bits & 0x7fffffffu) < 0x7f800000u;
  return static_cast<std::uint16_t>(became_infinite ? ((bits >> 16) & 0x8000u) | 0x7f7fu
                                                    : rounded >> 16);
}

QUIRE_HD inline bool is_finite(float x) { return (float_bits(x) & 0x7f800000u) != 0x7f800000u; }

QUIRE_HD inline float load_as_float(const void* data, DType type, std::int64_t index) {
  if (type == DType::kF32) return static_cast<const float*>(data)[index];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[index];
  return type == DType::kF16 ? half_to_float(bits) : bfloat_to_float(bits);
}

QUIRE_HD inline void store_from_float(void* data, DType type, std::int64_t index, float x) {
  if (type == DType::kF32) {
    static_cast<float*>(data)[index] = x;
  } else {
    static_cast<std::uint16_t*>(data)[index] =
        type == DType::kF16 ? float_to_half(x) : float_to_bfloat(x);
  }
}

}  // namespace quire
