// Softmax in pieces: a running maximum and sum, and how two pieces become one.
#pragma once

#include <cmath>
#include <cstdint>

#include "quire/core/config.hpp"

namespace quire {

inline constexpr float kMinusInfinity = -__builtin_inff();

struct SoftmaxState {
  float max = kMinusInfinity;
  float sum = 0.0f;  // of exp(logit - max)

  QUIRE_HD float lse() const { return sum > 0.0f ? max + logf(sum) : kMinusInfinity; }

  // Factor on what was accumulated so far when a larger maximum arrives.
  QUIRE_HD float raise(float new_max) {
    if (!(new_max > max)) return 1.0f;
    const float factor = max == kMinusInfinity ? 0.0f : expf(max - new_max);
    max = new_max;
    sum *= factor;
    return factor;
  }
};

// Weight of a part with log-sum-exp `lse` in a whole with log-sum-exp `total`; both natural. Parts
// without visible tokens have weight 0.
QUIRE_HD inline float part_weight(float lse, float total) {
  return lse == kMinusInfinity ? 0.0f : expf(lse - total);
}

// log(exp(a) + exp(b)); -inf is the neutral element.
QUIRE_HD inline float log_add(float a, float b) {
  const float high = a > b ? a : b;
  if (high == kMinusInfinity) return high;
  const float low = a > b ? b : a;
  return high + log1pf(expf(low - high));
}

}  // namespace quire
