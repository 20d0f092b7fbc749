// A prompt under a byte budget or target.
#pragma once

#include "src/cache.hpp"

namespace quire {

// Cuts layers [0, layer] of an open prompt to the budget.
void control_prompt(CacheState& cache,
                    std::int32_t slot,
                    std::uint32_t layer,
                    std::uint32_t tokens);

}  // namespace quire
