// Selection of a fixed number of tokens, and the smoothing that comes before it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "quire/core/plan.hpp"
#include "quire/policy/policy.hpp"

namespace quire {

// A candidate in the order of all plans: significance descending, then position ascending.
struct Ranked {
  float significance;
  std::int32_t position;

  friend bool operator<(const Ranked& a, const Ranked& b) {
    return a.significance > b.significance ||
           (a.significance == b.significance && a.position < b.position);
  }
};

// Marks the best `keep` of `count` candidates kHigh and the rest kDropped; tiers[i] belongs to
// candidates[i] before the call. Reorders the candidates. A set, so equal on every backend.
inline void select_top(Ranked* candidates,
                       std::uint32_t count,
                       std::uint32_t keep,
                       Tier* tiers,
                       std::int32_t first_position) {
  if (keep > count) keep = count;
  if (keep > 0 && keep < count)
    std::nth_element(candidates, candidates + keep - 1, candidates + count);
  for (std::uint32_t i = 0; i < count; ++i) {
    tiers[candidates[i].position - first_position] = i < keep ? Tier::kHigh : Tier::kDropped;
  }
}

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

}  // namespace quire
