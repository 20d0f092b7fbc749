// Pages of an open prompt: taken from its credit, returned to it.
#pragma once

#include "quire/pages/head_tokens.hpp"
#include "src/cache.hpp"

namespace quire {

// One more page at the end of a tier.
inline void take_promised_page(CacheState& cache,
                               std::int32_t slot,
                               std::uint64_t row,
                               std::uint32_t tier) {
  Slot& s = cache.slots[slot];
  QUIRE_ASSERT(s.credit > 0);
  cache.set_credit(s, s.credit - 1);
  cache.enter_page(slot, row, tier, PageId{cache.free_pages.take()});
}

// One head to the tiers of a rule: pages of the low tier first, emptied pages back to the credit.
template <class TierOfT>
void retier_promised(CacheState& cache,
                     std::int32_t slot,
                     std::uint64_t row,
                     const HeadView& view,
                     TierOfT&& tier_of) {
  HeadState& state = cache.head_states[row];
  const RetierCounts after = count_retier(view, tier_of);
  if (view.tier_count > 1) {
    const std::uint32_t low_pages = ceil_div(after.tokens[1], view.tiers[1].tokens);
    while (state.pages[1] < low_pages) take_promised_page(cache, slot, row, 1);
  }
  CodecEvents events;
  retier(view, tier_of, events);
  cache.counters.saturated.fetch_add(events.saturated, std::memory_order_relaxed);
  Slot& s = cache.slots[slot];
  cache.add_tier_tokens(s, state.tokens, after.tokens);
  state.tokens[0] = after.tokens[0];
  state.tokens[1] = after.tokens[1];
  cache.counters.demoted.fetch_add(after.demoted, std::memory_order_relaxed);
  cache.counters.dropped.fetch_add(after.dropped, std::memory_order_relaxed);
  cache.set_credit(s, s.credit + cache.release_empty(slot, row));
}

}  // namespace quire
