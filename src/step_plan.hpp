// Planning one step: victims and tiers for every head of a batch, page counts, plan logs.
#pragma once

#include "src/cache.hpp"

namespace quire {

// Plans all heads of one sequence into cache.plan(index, ..); reads scores, changes nothing else.
void plan_sequence(CacheState& cache, std::uint32_t index);

// The same by the policy's step rule alone, without a run of the byte controller.
void plan_all_heads(CacheState& cache, std::uint32_t index, float factor, bool again);

// The same from moves that the caller hands in; refuses moves of tokens that are not there.
Status plan_from_moves(CacheState& cache,
                       std::uint32_t index,
                       const PlanMove* moves,
                       std::uint64_t count);

// The moves of one head's list inside a sorted list of all heads.
struct HeadMoves {
  const PlanMove* first = nullptr;
  std::uint32_t count = 0;
};
HeadMoves moves_of(const PlanMove* moves,
                   std::uint64_t count,
                   std::uint32_t layer,
                   std::uint32_t head);

// Writes the moves of a planned sequence, sorted by (layer, head, position); returns how many there
// are, also when they do not fit.
std::uint64_t log_moves(const CacheState& cache,
                        std::uint32_t index,
                        PlanMove* out,
                        std::uint64_t capacity);

// Pages that the plan of a head takes beyond those in its row.
std::uint32_t pages_to_take(const CacheState& cache,
                            const HeadPlan& plan,
                            const HeadState& state,
                            std::uint32_t tier);

}  // namespace quire
