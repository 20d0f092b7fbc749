// Scales and zeros of a tile of tokens to fp32.
#if defined(QUIRE_CPU_SIMD_META_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_CPU_SIMD_META_INL_H_
#undef QUIRE_CPU_SIMD_META_INL_H_
#else
#define QUIRE_CPU_SIMD_META_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "quire/core/dtype.hpp"
#include "src/cpu/simd/tile_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire {
namespace HWY_NAMESPACE {

// Whole vectors first, the rest one by one: nothing is read behind the segment.
inline void halves_to_floats(const std::uint16_t* halves, std::uint32_t count, float* out) {
  const FloatTag df;
  const hn::Rebind<hwy::float16_t, FloatTag> dh;
  const std::uint32_t lanes = float_lanes();
  std::uint32_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto half = hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(halves + i));
    hn::StoreU(hn::PromoteTo(df, half), df, out + i);
  }
  for (; i < count; ++i) out[i] = half_to_float(halves[i]);
}

// Scale and zero of group g of `count` tokens behind `slot`: meta[0..] and meta[kTileTokens..].
// Zeros are 0 for symmetric formats.
inline void load_group_meta(const VectorFormat& format,
                            std::uint32_t g,
                            const VectorSlot& slot,
                            std::uint32_t count,
                            float* meta) {
  const std::uint32_t per_group = meta_per_group(format);
  const std::uint16_t* scales =
      slot.meta + static_cast<std::int64_t>(g * per_group) * slot.meta_stride;
  halves_to_floats(scales, count, meta);
  if (per_group == 2) halves_to_floats(scales + slot.meta_stride, count, meta + kTileTokens);
}

// out[t] = scale[t] * dots[t] + zero[t] * q_sum (+ what out held, when `add`).
inline void apply_key_meta(const float* meta,
                           bool has_zero,
                           const float* dots,
                           float q_sum,
                           bool add,
                           std::uint32_t count,
                           float* out) {
  const FloatTag df;
  const auto sum = hn::Set(df, q_sum);
  for (std::uint32_t t = 0; t < count; t += float_lanes()) {
    auto value = hn::Mul(hn::LoadU(df, meta + t), hn::LoadU(df, dots + t));
    if (has_zero) value = hn::MulAdd(hn::LoadU(df, meta + kTileTokens + t), sum, value);
    if (add) value = hn::Add(value, hn::LoadU(df, out + t));
    hn::StoreU(value, df, out + t);
  }
}

// weights[t] = p[t] * scale[t]; returns the sum of p[t] * zero[t].
inline float apply_value_meta(
    const float* meta, bool has_zero, const float* p, std::uint32_t count, float* weights) {
  const FloatTag df;
  auto total = hn::Zero(df);
  const std::uint32_t lanes = float_lanes();
  std::uint32_t t = 0;
  for (; t + lanes <= count; t += lanes) {
    const auto weight = hn::LoadU(df, p + t);
    hn::StoreU(hn::Mul(weight, hn::LoadU(df, meta + t)), df, weights + t);
    if (has_zero) total = hn::MulAdd(weight, hn::LoadU(df, meta + kTileTokens + t), total);
  }
  float sum = hn::GetLane(hn::SumOfLanes(df, total));
  for (; t < count; ++t) {
    weights[t] = p[t] * meta[t];
    if (has_zero) sum += p[t] * meta[kTileTokens + t];
  }
  return sum;
}

inline void add_constant(float* x, float constant, std::uint32_t count) {
  const FloatTag df;
  const auto c = hn::Set(df, constant);
  for (std::uint32_t i = 0; i < count; i += float_lanes())
    hn::StoreU(hn::Add(hn::LoadU(df, x + i), c), df, x + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace quire
HWY_AFTER_NAMESPACE();

#endif
