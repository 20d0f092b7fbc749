// Prefix handles: who came from which.
#pragma once

#include "src/cache.hpp"

namespace quire {

// A fork of a handle, or of a sequence that came from one, reads the handle as well.
void join_prefix(quire_cache& cache, std::int32_t parent, std::int32_t child);

// A sequence, or the handle itself, is about to close.
void leave_prefix(quire_cache& cache, std::int32_t slot);

}  // namespace quire
