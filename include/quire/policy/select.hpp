// Selection of a fixed number of tokens.
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

}  // namespace quire
