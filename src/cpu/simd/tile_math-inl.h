// The three loops that attention spends its time in, over a tile of tokens and a few query columns.
#if defined(QUIRE_CPU_SIMD_TILE_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_CPU_SIMD_TILE_MATH_INL_H_
#undef QUIRE_CPU_SIMD_TILE_MATH_INL_H_
#else
#define QUIRE_CPU_SIMD_TILE_MATH_INL_H_
#endif

#include <cstdint>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "src/cpu/simd/tile.hpp"
#include "src/cpu/simd/unpack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire {
namespace HWY_NAMESPACE {

using cpu::kTileTokens;

inline std::uint32_t float_lanes() { return static_cast<std::uint32_t>(hn::Lanes(FloatTag())); }

// dots[column * kTileTokens + t] = <q[column], k[t]> over channels [first, last). kColumns columns
// share every load of k.
template <unsigned kColumns>
inline void dot_columns(const float* q,
                        std::uint32_t q_stride,
                        const float* k,
                        std::uint32_t dim,
                        std::uint32_t first,
                        std::uint32_t last,
                        std::uint32_t count,
                        float* dots) {
  const FloatTag df;
  const std::uint32_t lanes = float_lanes();
  for (std::uint32_t t = 0; t < count; ++t) {
    FloatVec sum[kColumns];
    for (unsigned c = 0; c < kColumns; ++c) sum[c] = hn::Zero(df);
    for (std::uint32_t d = first; d < last; d += lanes) {
      const auto key = hn::LoadU(df, k + t * dim + d);
      for (unsigned c = 0; c < kColumns; ++c) {
        sum[c] = hn::MulAdd(hn::LoadU(df, q + c * q_stride + d), key, sum[c]);
      }
    }
    for (unsigned c = 0; c < kColumns; ++c) {
      dots[c * kTileTokens + t] = hn::GetLane(hn::SumOfLanes(df, sum[c]));
    }
  }
}

// The same for any number of columns.
inline void dot_tile(const float* q,
                     std::uint32_t columns,
                     std::uint32_t q_stride,
                     const float* k,
                     std::uint32_t dim,
                     std::uint32_t first,
                     std::uint32_t last,
                     std::uint32_t count,
                     float* dots) {
  std::uint32_t c = 0;
  for (; c + 4 <= columns; c += 4) {
    dot_columns<4>(q + c * q_stride, q_stride, k, dim, first, last, count, dots + c * kTileTokens);
  }
  const float* rest = q + c * q_stride;
  float* out = dots + c * kTileTokens;
  switch (columns - c) {
    case 3: dot_columns<3>(rest, q_stride, k, dim, first, last, count, out); break;
    case 2: dot_columns<2>(rest, q_stride, k, dim, first, last, count, out); break;
    case 1: dot_columns<1>(rest, q_stride, k, dim, first, last, count, out); break;
    default: break;
  }
}

// acc[column][d] += sum over tokens of weight[column][t] * v[t][d], channels [first, last).
template <unsigned kColumns>
inline void accumulate_columns(const float* weights,
                               const float* v,
                               std::uint32_t dim,
                               std::uint32_t first,
                               std::uint32_t last,
                               std::uint32_t count,
                               float* acc) {
  const FloatTag df;
  for (std::uint32_t d = first; d < last; d += float_lanes()) {
    FloatVec sum[kColumns];
    for (unsigned c = 0; c < kColumns; ++c) sum[c] = hn::LoadU(df, acc + c * dim + d);
    for (std::uint32_t t = 0; t < count; ++t) {
      const auto value = hn::LoadU(df, v + t * dim + d);
      for (unsigned c = 0; c < kColumns; ++c) {
        sum[c] = hn::MulAdd(hn::Set(df, weights[c * kTileTokens + t]), value, sum[c]);
      }
    }
    for (unsigned c = 0; c < kColumns; ++c) hn::StoreU(sum[c], df, acc + c * dim + d);
  }
}

inline void accumulate_tile(const float* weights,
                            std::uint32_t columns,
                            const float* v,
                            std::uint32_t dim,
                            std::uint32_t first,
                            std::uint32_t last,
                            std::uint32_t count,
                            float* acc) {
  std::uint32_t c = 0;
  for (; c + 4 <= columns; c += 4) {
    accumulate_columns<4>(weights + c * kTileTokens, v, dim, first, last, count, acc + c * dim);
  }
  const float* rest = weights + c * kTileTokens;
  float* out = acc + c * dim;
  switch (columns - c) {
    case 3: accumulate_columns<3>(rest, v, dim, first, last, count, out); break;
    case 2: accumulate_columns<2>(rest, v, dim, first, last, count, out); break;
    case 1: accumulate_columns<1>(rest, v, dim, first, last, count, out); break;
    default: break;
  }
}

// x[i] = exp(x[i] - shift) for the first `count` of a tile row; returns their sum. -inf gives
// exactly 0. What lies behind `count` is overwritten.
inline float exp_row(float* x, float shift, std::uint32_t count) {
  const FloatTag df;
  const std::uint32_t lanes = float_lanes();
  const auto minus = hn::Set(df, shift);
  const auto smallest = hn::Set(df, -87.0f);  // exp stays normal; below it is 0
  auto total = hn::Zero(df);
  for (std::uint32_t i = count; i < kTileTokens; ++i) x[i] = -__builtin_inff();
  for (std::uint32_t i = 0; i < kTileTokens && i < count + lanes; i += lanes) {
    const auto below = hn::Sub(hn::LoadU(df, x + i), minus);
    const auto value =
        hn::IfThenElseZero(hn::Ge(below, smallest), hn::Exp(df, hn::Max(below, smallest)));
    hn::StoreU(value, df, x + i);
    total = hn::Add(total, value);
  }
  return hn::GetLane(hn::SumOfLanes(df, total));
}

inline float max_row(const float* x, std::uint32_t count) {
  float largest = x[0];
  for (std::uint32_t i = 1; i < count; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

inline void scale_row(float* x, std::uint32_t count, float factor) {
  const FloatTag df;
  const auto f = hn::Set(df, factor);
  for (std::uint32_t i = 0; i < count; i += float_lanes())
    hn::StoreU(hn::Mul(hn::LoadU(df, x + i), f), df, x + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace quire
HWY_AFTER_NAMESPACE();

#endif
