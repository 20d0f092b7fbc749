// What a codec had to bend, counted instead of hidden.
#pragma once

#include <cstdint>

#include "quire/core/config.hpp"
#include "quire/core/dtype.hpp"

namespace quire {

struct CodecEvents {
  std::uint64_t saturated = 0;  // elements beyond +-65504 that were moved to the border
};

// Metadata is fp16, so inputs are brought into its range first; NaN and Inf never get here.
QUIRE_HD inline float saturate_to_half_range(float x, CodecEvents& events) {
  if (x > kHalfMax || x < -kHalfMax) {
    ++events.saturated;
    return x > 0 ? kHalfMax : -kHalfMax;
  }
  return x;
}

// A whole row, before transforms: sums of larger numbers would overflow.
QUIRE_HD inline void saturate_row(std::uint32_t dim, float* x, CodecEvents& events) {
  for (std::uint32_t i = 0; i < dim; ++i) x[i] = saturate_to_half_range(x[i], events);
}

}  // namespace quire
