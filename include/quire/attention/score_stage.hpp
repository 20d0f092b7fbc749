// Logits that wait for the final log-sum-exp before they become scores.
//
// 16-bit fixed point, step 2^-11, below the maximum of a tile of tokens; 0 probability beyond 32
// below it (exp(-32) is 1e-14). The error of a probability is at most 2^-12 relative, plus
// rounding: inside the 2^-9 that is promised. 2 bytes written and 2 read per token and query head.
#pragma once

#include <cmath>
#include <cstdint>

#include "quire/core/config.hpp"

namespace quire {

inline constexpr std::uint16_t kStageNone = 0xffff;  // masked, or too small to count
inline constexpr float kStageSteps = 2048.0f;        // per unit of logit

QUIRE_HD inline std::uint16_t stage_logit(float logit, float tile_max) {
  const float below = (tile_max - logit) * kStageSteps;
  if (!(below < 65534.5f)) return kStageNone;  // also -inf - -inf
  return static_cast<std::uint16_t>(rintf(below));
}

// Probability under a log-sum-exp (natural) of the whole softmax.
QUIRE_HD inline float staged_probability(std::uint16_t staged, float tile_max, float lse) {
  if (staged == kStageNone || lse == -__builtin_inff()) return 0.0f;
  return expf(tile_max - static_cast<float>(staged) / kStageSteps - lse);
}

}  // namespace quire
