#include "src/prefill_control.hpp"

#include <algorithm>

#include "src/control.hpp"
#include "src/retier.hpp"

namespace quire {
// The factor only grows while layers come in, and a tier depends on it monotonically, so the end is
// the same as if all layers had been planned together. Layers that a later prompt has not reached
// are priced by their ring alone: what they hold of the past can still go.
void control_prompt(CacheState& cache,
                    std::int32_t slot,
                    std::uint32_t layer,
                    std::int32_t length) {
  Slot& s = cache.slots[slot];
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
      const TierRule rule = cache.rule(slot, l, head, length, factor);
      retier_promised(
          cache,
          slot,
          cache.row(slot, l, head),
          cache.view(slot, l, head, length),
          [&](float score, std::int32_t p, Tier now) { return rule.tier_of(score, p, now); });
    }
  }
}

}  // namespace quire
