// A tier for every token of one layer when a round of a prompt is stored.
#pragma once

#include "src/prefill.hpp"

namespace quire {

struct PromptScores {
  const float* scores = nullptr;   // [kv_heads, length] or nullptr
  const float* ranking = nullptr;  // the same, smoothed where the policy smooths
};

// Calls visit(tier, index, position) for every token in the pages of a head.
template <class VisitT>
void visit_pages(const HeadView& view, VisitT&& visit) {
  for (std::uint32_t i = view.ring_runs(); i < view.segment_count(); ++i) {
    const Segment s = view.segment(i);
    for (std::uint32_t t = 0; t < s.count; ++t) visit(s.tier, s.first_index + t, s.position(t));
  }
}

// tiers: [kv_heads, length]; kKeep is the ring, kDropped also what was dropped before. ranked:
// scratch, [length].
void plan_prompt(const CacheState& cache,
                 const PromptRound& round,
                 std::uint32_t layer,
                 const PromptScores& scores,
                 struct Ranked* ranked,
                 Tier* tiers);

// Takes a foreign plan for the sequence's next layer: ring tokens are kept whatever it says, tokens
// that were dropped before are ignored, 255 leaves a token of the pages in its tier. Refuses
// unknown tiers, promotions, changes in shared pages, holes where positions are not stored, and
// more pages than the layer may take.
Status take_plan(const CacheState& cache,
                 const PromptRound& round,
                 const std::uint8_t* plan,
                 Tier* tiers);

// The plan as the rule that retier() asks: a tier per position.
struct PlannedTiers {
  const Tier* tiers;

  Tier operator()(float, std::int32_t position, Tier) const {
    return position < 0 ? Tier::kKeep : tiers[position];  // without positions nothing moves
  }
};

}  // namespace quire
