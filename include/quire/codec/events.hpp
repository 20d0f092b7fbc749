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

}  // namespace quire
