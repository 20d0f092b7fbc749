// What attention hands back to the policy: per token a statistic of its probabilities.
#pragma once

#include <cstdint>

#include "quire/core/config.hpp"

namespace quire {

// How the probabilities p of the G query heads of a group become one number per token. Prompt and
// decode add it up over queries; the first two differ only in the prompt, where kMaxSum adds per
// head before it takes the maximum (DiffKV's code does that in the prompt and the opposite in
// decode; kMaxFirst takes the maximum first in both).
enum class Statistic : std::uint32_t {
  kNone = 0,
  kMaxSum = 1,     // prompt: max over heads of the sum over queries; decode: sum of maxima
  kMaxFirst = 2,   // sum over queries of the maximum over heads
  kMeanSum = 3,    // sum over queries of the mean over heads
  kMeanSquare = 4  // sum over queries of the mean over heads of p^2
};

// The contribution of one query, from its probabilities p[g * stride].
QUIRE_HD inline float score_increment(Statistic statistic,
                                      const float* p,
                                      std::uint32_t group,
                                      std::int64_t stride) {
  float value = 0.0f;
  for (std::uint32_t g = 0; g < group; ++g) {
    const float x = p[g * stride];
    switch (statistic) {
      case Statistic::kMeanSum: value += x; break;
      case Statistic::kMeanSquare: value += x * x; break;
      default: value = x > value ? x : value;
    }
  }
  const bool mean = statistic == Statistic::kMeanSum || statistic == Statistic::kMeanSquare;
  return mean ? value / static_cast<float>(group) : value;
}

// Smoothing of prompt scores along the tokens.
enum class PoolKind : std::uint32_t { kNone = 0, kAverage = 1, kMaximum = 2 };

// One smoothed score: average or maximum over `width` neighbours, zeros beyond the borders as in
// SnapKV's published code (the average always divides by the width).
inline float pooled_score(const float* scores,
                          std::int64_t count,
                          std::int64_t index,
                          PoolKind kind,
                          std::uint32_t width) {
  const std::int64_t reach = static_cast<std::int64_t>(width / 2);
  float value = kind == PoolKind::kMaximum ? scores[index] : 0.0f;
  for (std::int64_t i = index - reach; i <= index + reach; ++i) {
    if (i < 0 || i >= count) continue;
    if (kind == PoolKind::kMaximum) {
      value = scores[i] > value ? scores[i] : value;
    } else {
      value += scores[i];
    }
  }
  return kind == PoolKind::kMaximum ? value : value / static_cast<float>(width);
}

// Scores and positions of tokens that lie together (one page, or a run of ring slots).
struct ScoreView {
  const float* score = nullptr;
  const std::int32_t* position = nullptr;
  std::uint32_t count = 0;
  std::uint32_t first_index = 0;  // of the first token within its tier
};

}  // namespace quire
