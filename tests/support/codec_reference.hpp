// Slow encoders in double, from the words of the design: what the library's fp32 code has to give.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "support/codec_float16.hpp"
#include "support/codec_normal.hpp"
#include "support/codec_tolerance.hpp"

namespace quire::test {

// x = scale * code + zero: zero is the largest half <= min, scale the smallest half >=
// (max - zero) / (2^bits - 1) as fp32 computes it. `position` is (x - zero) / scale before it
// becomes a whole number.
struct AffineReference {
  double zero = 0.0;
  double scale = 0.0;
  std::vector<double> position;
  std::uint64_t saturated = 0;
  double range = 0.0;
};

inline AffineReference affine_reference(const float* x, std::uint32_t count, std::uint32_t bits) {
  const double limit = half_values().largest();
  AffineReference r;
  std::vector<double> value(count);
  double low = limit;
  double high = -limit;
  for (std::uint32_t i = 0; i < count; ++i) {
    const double exact = x[i];
    r.saturated += std::fabs(exact) > limit ? 1 : 0;
    value[i] = std::fmin(std::fmax(exact, -limit), limit);
    low = std::fmin(low, value[i]);
    high = std::fmax(high, value[i]);
  }
  r.zero = half_values().down(low);
  r.range = high - r.zero;
  const float fp32_range = static_cast<float>(high) - static_cast<float>(r.zero);
  const float fp32_scale = fp32_range / static_cast<float>((1u << bits) - 1u);
  r.scale = half_values().up(fp32_scale);
  for (const double v : value) {
    r.position.push_back(r.scale > 0.0 ? (v - r.zero) / r.scale : 0.0);
  }
  return r;
}

// True when `code` is the whole number nearest to `position`, half to even; one that fp32 roundings
// cannot tell from half-way may go either way.
inline bool is_nearest_code(double code, double position, double rounding) {
  const double nearest = std::nearbyint(position);
  if (code == nearest) return true;
  return std::fabs(code - position) <= 0.5 + rounding && std::fabs(code - nearest) <= 1.0;
}

// Two assignment passes, then the unbiased scale. `doubtful` marks vectors with an element so near
// to a border that fp32 may put it on either side.
struct SymmetricReference {
  std::vector<std::uint8_t> codes;
  double scale = 0.0;  // before it becomes a half
  bool doubtful = false;
};

inline SymmetricReference symmetric_reference(const float* x,
                                              std::uint32_t count,
                                              const HalfGrid& grid) {
  SymmetricReference r;
  const auto half = static_cast<int>(grid.level.size());
  double power = 0.0;
  for (std::uint32_t i = 0; i < count; ++i) power += static_cast<double>(x[i]) * x[i];
  double scale = std::sqrt(power / count);
  double cross = 0.0;
  r.codes.assign(count, 0);
  for (int pass = 0; pass < 2; ++pass) {
    cross = 0.0;
    double levels = 0.0;
    for (std::uint32_t i = 0; i < count; ++i) {
      const double u = scale > 0.0 ? std::fabs(static_cast<double>(x[i])) / scale : 0.0;
      int index = 0;
      for (const double border : grid.border) {
        index += u > border ? 1 : 0;
        const bool near = std::fabs(u - border) <= kSymmetricCodeRounding * (border + u);
        r.doubtful = r.doubtful || (near && scale > 0.0);
      }
      r.codes[i] = static_cast<std::uint8_t>(x[i] < 0.0f ? half - 1 - index : half + index);
      const double level =
          std::copysign(grid.level[static_cast<std::size_t>(index)], x[i] < 0.0f ? -1.0 : 1.0);
      cross += level * x[i];
      levels += level * level;
    }
    scale = cross / levels;
  }
  r.scale = cross > 0.0 ? power / cross : 0.0;
  return r;
}

}  // namespace quire::test
