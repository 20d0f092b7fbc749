// The few numbers that a (sequence, layer, KV head) has beside its pages and ring.
#pragma once

#include <cstdint>

#include "quire/core/config.hpp"

namespace quire {

// In caller memory, [slots, layers, kv_heads]; counted as table bytes.
struct HeadState {
  std::uint32_t tokens[2];  // in each tier
  std::uint32_t pages[2];   // in the row; more than tokens need between step_begin and step_end
  float alpha_high;         // thresholds of this head
  float alpha_low;
  float lowest_significance[2];  // least significant token of each tier, as attention left it
  std::int32_t lowest_position[2];
  std::int32_t lowest_index[2];   // -1: the tier is empty
  std::int32_t lowest_length;     // for a step at this length; else the plan scans
  std::uint32_t shared_pages[2];  // first pages of each tier that other sequences hold as well
  std::uint32_t reserved;
};
static_assert(sizeof(HeadState) == 64, "a cache line per head");

}  // namespace quire
