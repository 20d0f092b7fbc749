// One layer of a step.
#pragma once

#include "src/cache.hpp"

namespace quire {

struct LayerAppend {
  std::uint32_t layer = 0;
  std::uint32_t batch = 0;  // of cache.step.slots
  bool stored = false;      // the new tokens are accepted drafts: no rows
  RowsView k;
  RowsView v;
  Parallel parallel;
};

// Carries out the plans of a layer and stores its rows; everything has been checked.
void append_layer(CacheState& cache, const LayerAppend& call);

std::uint64_t append_workspace(const Group& group, const Maxima& max);

}  // namespace quire
