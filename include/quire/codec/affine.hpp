// The affine grid: x = scale * code + zero, unsigned codes, scale and zero in fp16.
//
// zero rounds toward -inf and scale rounds up, before codes are made from the rounded numbers. So
// every element lies inside [zero, zero + (2^bits - 1) * scale], no code clamps, and the error is
// at most half a step (the fp16 nearest rounding of others costs up to 0.62 of a step at 8 bits:
// DiffKV, arXiv 2412.03131, stores nearest and divides by the unrounded scale).
#pragma once

#include <cmath>
#include <cstdint>

#include "quire/codec/events.hpp"
#include "quire/core/config.hpp"
#include "quire/core/dtype.hpp"

namespace quire {

struct AffineMeta {
  std::uint16_t scale;  // fp16 bits
  std::uint16_t zero;   // fp16 bits
};

// The integer result does not depend on fused multiply-add: no product is added to anything.
QUIRE_HD inline std::uint8_t affine_code(float x, float zero, float inverse_scale) {
  return static_cast<std::uint8_t>(rintf((x - zero) * inverse_scale));
}

QUIRE_HD inline AffineMeta affine_meta(float low, float high, std::uint32_t bits) {
  AffineMeta meta;
  meta.zero = float_to_half(low, Rounding::kDown);
  const float range = high - half_to_float(meta.zero);
  const float steps = static_cast<float>((1u << bits) - 1u);
  meta.scale = float_to_half(range / steps, Rounding::kUp);
  return meta;
}

// Codes and metadata of one group of `count` elements. A constant group has scale 0 and codes 0.
QUIRE_HD inline AffineMeta affine_encode(const float* x,
                                         std::uint32_t count,
                                         std::uint32_t bits,
                                         std::uint8_t* codes,
                                         CodecEvents& events) {
  float low = saturate_to_half_range(x[0], events);
  float high = low;
  for (std::uint32_t i = 1; i < count; ++i) {
    const float value = saturate_to_half_range(x[i], events);
    low = value < low ? value : low;
    high = value > high ? value : high;
  }
  const AffineMeta meta = affine_meta(low, high, bits);
  const float zero = half_to_float(meta.zero);
  const float scale = half_to_float(meta.scale);
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  for (std::uint32_t i = 0; i < count; ++i) {
    const float value = x[i] > high ? high : (x[i] < low ? low : x[i]);
    codes[i] = affine_code(value, zero, inverse);
  }
  return meta;
}

QUIRE_HD inline float affine_value(unsigned code, float scale, float zero) {
  return static_cast<float>(code) * scale + zero;
}

// True when codes of one width become codes of another by an integer quotient.
QUIRE_HD constexpr bool affine_demotes_in_integers(std::uint32_t from_bits, std::uint32_t to_bits) {
  return from_bits > to_bits && ((1u << from_bits) - 1u) % ((1u << to_bits) - 1u) == 0;
}

// The quotient (17 for 8 to 4 bits, 5 for 4 to 2). It is odd for every pair, so adding half of it
// before the division rounds to nearest without a tie.
QUIRE_HD constexpr unsigned affine_demotion_ratio(std::uint32_t from_bits, std::uint32_t to_bits) {
  return ((1u << from_bits) - 1u) / ((1u << to_bits) - 1u);
}

// The scale rounds to nearest here: rounding up again would not keep the bound, since the codes
// were made for the old scale. Error: half a step + 15 * 2^-11 of the step.
QUIRE_HD inline AffineMeta affine_demote_meta(AffineMeta meta, unsigned ratio) {
  const float scale = half_to_float(meta.scale) * static_cast<float>(ratio);
  return {float_to_half(scale), meta.zero};
}

}  // namespace quire
