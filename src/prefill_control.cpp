#include "src/prefill_control.hpp"

#include <algorithm>

#include "quire/pages/head_tokens.hpp"
#include "src/control.hpp"

namespace quire {
namespace {

// One head to the tiers of a rule: pages of the low tier first, emptied pages back to the credit.
void cut_head(CacheState& cache,
              const ControlRequest& request,
              std::uint64_t row,
              const HeadView& view,
              const TierRule& rule) {
  Slot& s = cache.slots[request.slot];
  HeadState& state = cache.head_states[row];
  const auto tier_of = [&](float score, std::int32_t position, Tier now) {
    return rule.tier_of(score, position, now);
  };
  const RetierCounts after = count_retier(view, tier_of);
  if (view.tier_count > 1) {
    const std::uint32_t low_pages = ceil_div(after.tokens[1], view.tiers[1].tokens);
    while (state.pages[1] < low_pages) {
      cache.set_credit(s, s.credit - 1);
      cache.enter_page(request.slot, row, 1, PageId{cache.free_pages.take()});
    }
  }
  CodecEvents events;
  retier(view, tier_of, events);
  cache.counters.saturated.fetch_add(events.saturated, std::memory_order_relaxed);
  cache.add_tier_tokens(s, state.tokens, after.tokens);
  state.tokens[0] = after.tokens[0];
  state.tokens[1] = after.tokens[1];
  cache.counters.demoted.fetch_add(after.demoted, std::memory_order_relaxed);
  cache.counters.dropped.fetch_add(after.dropped, std::memory_order_relaxed);
  cache.set_credit(s, s.credit + cache.release_empty(request.slot, row));
}

}  // namespace

// The factor only grows while layers come in, and a tier depends on it monotonically, so the end is
// the same as if all layers had been planned together.
void control_prompt(CacheState& cache,
                    std::int32_t slot,
                    std::uint32_t layer,
                    std::uint32_t tokens) {
  Slot& s = cache.slots[slot];
  const auto length = static_cast<std::int32_t>(tokens);
  ControlRequest request = {slot, layer + 1, length, 0, s.policy.cadence};
  float factor = find_factor_ahead(cache, request);
  if (!(factor > 0.0f)) return;
  const auto counts = [&](std::uint32_t l, std::uint32_t head) {
    const TierRule rule = cache.rule(slot, l, head, length, factor);
    return count_retier(
        cache.view(slot, l, head, length),
        [&](float score, std::int32_t p, Tier now) { return rule.tier_of(score, p, now); });
  };
  // Bins and the rule round differently at their borders: go on until exact counts fit.
  for (float raise = kFactorStep; factor < kDropAll && !within_budget(cache, request, counts);) {
    factor *= raise;
    raise = std::min(raise * raise, 2.0f);
  }
  s.factor = std::max(s.factor, factor);
  for (std::uint32_t l = 0; l <= layer; ++l) {
    for (std::uint32_t head = 0; head < cache.group.kv_heads; ++head) {
      cut_head(cache,
               request,
               cache.row(slot, l, head),
               cache.view(slot, l, head, length),
               cache.rule(slot, l, head, length, factor));
    }
  }
}

}  // namespace quire
