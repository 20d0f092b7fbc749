// A prompt under a byte budget or target.
#pragma once

#include "src/cache.hpp"

namespace quire {

// Cuts layers [0, layer] of an open prompt to the budget of a sequence of `length` tokens.
void control_prompt(CacheState& cache, std::int32_t slot, std::uint32_t layer, std::int32_t length);

}  // namespace quire
