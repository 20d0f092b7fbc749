// The symmetric grids: x = scale * level(code), levels odd around 0, one fp16 scale, no zero.
//
// Meant for rotated vectors, whose elements look like a normal distribution. The stored scale is
// the unbiased one, a = <x,x> / <x,c>: the expected score of a decoded key equals the exact score
// over random rotations (least squares shrinks every key a little, and the shrinkage of thousands
// of tokens does not average out: it doubled the measured KL divergence on a real model).
#pragma once

#include <cmath>
#include <cstdint>

#include "quire/codec/events.hpp"
#include "quire/codec/format.hpp"
#include "quire/core/config.hpp"
#include "quire/core/dtype.hpp"

namespace quire {

// Step of the mid-rise grid of 2^bits levels with the least squared error on a unit normal.
QUIRE_HD constexpr float symmetric_step(std::uint32_t bits) {
  return bits == 2   ? 0.995686699f
         : bits == 3 ? 0.586019449f
         : bits == 4 ? 0.335200607f
                     : 0.104063010f;
}

// Positive half of the Lloyd-Max levels of a unit normal, and the borders between them (half-way).
struct LloydMax {
  float level[8];
  float border[7];
};

QUIRE_HD constexpr LloydMax lloyd_max(std::uint32_t bits) {
  if (bits == 2) return {{0.452780035f, 1.510417608f}, {0.981598822f}};
  if (bits == 3) {
    return {{0.245094179f, 0.756005281f, 1.343909279f, 2.151945705f},
            {0.500549730f, 1.049957280f, 1.747927492f}};
  }
  return {{0.128395030f,
           0.388048299f,
           0.656759119f,
           0.942340456f,
           1.256231197f,
           1.618046386f,
           2.069017227f,
           2.732589571f},
          {0.258221665f,
           0.522403709f,
           0.799549788f,
           1.099285827f,
           1.437138792f,
           1.843531806f,
           2.400803399f}};
}

// Level of a code for scale 1; codes below 2^(bits-1) are negative.
QUIRE_HD inline float symmetric_level(Grid grid, std::uint32_t bits, unsigned code) {
  if (grid == Grid::kSymmetricUniform) {
    const float middle = 0.5f * static_cast<float>((1u << bits) - 1u);
    return symmetric_step(bits) * (static_cast<float>(code) - middle);
  }
  const LloydMax table = lloyd_max(bits);
  const unsigned half = 1u << (bits - 1);
  return code >= half ? table.level[code - half] : -table.level[half - 1 - code];
}

// Nearest level to x / scale. A value on a border goes outward on the uniform grid (floor of the
// positive side) and inward on the table; 0 is the smallest positive level.
QUIRE_HD inline std::uint8_t symmetric_code(Grid grid,
                                            std::uint32_t bits,
                                            float x,
                                            float inverse_scale) {
  const int half = 1 << (bits - 1);
  const float magnitude = fabsf(x) * inverse_scale;
  int index;
  if (grid == Grid::kSymmetricUniform) {
    const float steps = magnitude / symmetric_step(bits);
    index = steps >= static_cast<float>(half) ? half - 1 : static_cast<int>(steps);
  } else {
    const LloydMax table = lloyd_max(bits);
    index = 0;
    for (int i = 0; i + 1 < half; ++i) index += magnitude > table.border[i] ? 1 : 0;
  }
  return static_cast<std::uint8_t>(x < 0.0f ? half - 1 - index : half + index);
}

// Sum of products over eight interleaved lanes, then a fixed tree. Products of two floats are
// exact in double, so the result is the same with and without fused multiply-add, in SIMD of two,
// four or eight lanes, and on a device.
class LaneSum {
 public:
  QUIRE_HD void add(std::uint32_t index, float a, float b) {
    lane_[index % 8] += static_cast<double>(a) * static_cast<double>(b);
  }
  QUIRE_HD double total() const {
    const double quarter[4] = {
        lane_[0] + lane_[4], lane_[1] + lane_[5], lane_[2] + lane_[6], lane_[3] + lane_[7]};
    return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
  }

 private:
  double lane_[8] = {};
};

// 1 / scale for the assignment passes; 0 for a vector of zeros.
QUIRE_HD inline float symmetric_inverse(double numerator, double denominator) {
  if (!(denominator > 0.0)) return 0.0f;
  const double inverse = numerator / denominator;
  return inverse < 3.0e38 ? static_cast<float>(inverse) : 3.0e38f;
}

// Codes of one group and its scale (fp16 bits). Two assignment passes: with the root mean square,
// then with the least-squares scale of the first codes; the stored scale is the unbiased one.
QUIRE_HD inline std::uint16_t symmetric_encode(const float* x,
                                               std::uint32_t count,
                                               Grid grid,
                                               std::uint32_t bits,
                                               std::uint8_t* codes,
                                               CodecEvents& events) {
  LaneSum squares;
  for (std::uint32_t i = 0; i < count; ++i) {
    const float value = saturate_to_half_range(x[i], events);
    squares.add(i, value, value);
  }
  const double xx = squares.total();
  float inverse = symmetric_inverse(1.0, sqrt(xx / count));
  double xc = 0.0;
  for (int pass = 0; pass < 2; ++pass) {
    LaneSum cross;
    LaneSum levels;
    for (std::uint32_t i = 0; i < count; ++i) {
      const float value = x[i] > kHalfMax ? kHalfMax : (x[i] < -kHalfMax ? -kHalfMax : x[i]);
      codes[i] = symmetric_code(grid, bits, value, inverse);
      const float level = symmetric_level(grid, bits, codes[i]);
      cross.add(i, value, level);
      levels.add(i, level, level);
    }
    xc = cross.total();
    inverse = symmetric_inverse(levels.total(), xc);
  }
  const float scale = xc > 0.0 ? static_cast<float>(xx / xc) : 0.0f;
  return float_to_half(saturate_to_half_range(scale, events));
}

}  // namespace quire
