// A tier for every token of one layer of a prompt.
#pragma once

#include "src/cache.hpp"

namespace quire {

struct PromptScores {
  const float* scores = nullptr;   // [kv_heads, tokens] or nullptr
  const float* ranking = nullptr;  // the same, smoothed where the policy smooths
};

// tiers: [kv_heads, tokens]; kKeep is the ring. ranked: scratch, [tokens].
void plan_prompt(const CacheState& cache,
                 std::int32_t slot,
                 std::uint32_t layer,
                 std::uint32_t tokens,
                 const PromptScores& scores,
                 struct Ranked* ranked,
                 Tier* tiers);

// Takes a foreign plan for the sequence's next layer: ring tokens are kept whatever it says.
// Refuses unknown tiers, holes where positions are not stored, and more pages than the layer may
// take.
Status take_plan(const CacheState& cache,
                 std::int32_t slot,
                 std::uint32_t tokens,
                 const std::uint8_t* plan,
                 Tier* tiers);

}  // namespace quire
