#include "src/prefill_plan.hpp"

#include <algorithm>

#include "quire/policy/select.hpp"

namespace quire {
namespace {

void plan_thresholds(const CacheState& cache,
                     const TierRule& rule,
                     const HeadState& state,
                     std::int32_t slot,
                     std::int32_t first,
                     std::int32_t last,
                     const float* ranking,
                     Tier* tiers) {
  const Slot& s = cache.slots[slot];
  TierRule local = rule;
  for (std::int32_t t = first; t < last; ++t) {
    if (s.policy.threshold_base == ThresholdBase::kPosition) {
      local.thresholds = thresholds_at(state.alpha_high, state.alpha_low, s.factor, t);
    }
    tiers[t] = local.tier_of(ranking[t], t, Tier::kHigh);
  }
}

void plan_eviction(const CacheState& cache,
                   const TierRule& rule,
                   std::int32_t slot,
                   std::uint64_t head,
                   std::int32_t first,
                   std::int32_t last,
                   const float* ranking,
                   Ranked* ranked,
                   Tier* tiers) {
  const Slot& s = cache.slots[slot];
  const auto count = static_cast<std::uint32_t>(last - first);
  for (std::int32_t t = first; t < last; ++t) {
    ranked[t - first] = {rule.significance_at(ranking == nullptr ? 0.0f : ranking[t], t), t};
  }
  const AdmissionShape shape = cache.admission(s.policy);
  const std::uint64_t keep =
      evict_tokens(s.policy, shape, static_cast<std::uint64_t>(rule.length), head);
  select_top(ranked,
             count,
             static_cast<std::uint32_t>(std::min<std::uint64_t>(keep, count)),
             tiers + first,
             first);
}

}  // namespace

void plan_prompt(const CacheState& cache,
                 std::int32_t slot,
                 std::uint32_t layer,
                 std::uint32_t tokens,
                 const PromptScores& scores,
                 Ranked* ranked,
                 Tier* tiers) {
  const Slot& s = cache.slots[slot];
  const auto length = static_cast<std::int32_t>(tokens);
  const auto first = static_cast<std::int32_t>(std::min(s.policy.sink_tokens, tokens));
  const std::int32_t last = std::min(s.shape.window_begin(length), length);
  for (std::uint32_t head = 0; head < cache.group.kv_heads; ++head) {
    Tier* mine = tiers + std::uint64_t{head} * tokens;
    const float* ranking =
        scores.ranking == nullptr ? nullptr : scores.ranking + std::uint64_t{head} * tokens;
    std::fill(mine, mine + tokens, Tier::kKeep);
    if (last <= first) continue;
    TierRule rule = cache.rule(slot, layer, head, length, s.factor);
    rule.ends.add(length);  // this prompt
    switch (s.policy.kind) {
      case PolicyKind::kThreshold:
        plan_thresholds(
            cache, rule, cache.head_state(slot, layer, head), slot, first, last, ranking, mine);
        break;
      case PolicyKind::kEvict:
        plan_eviction(cache,
                      rule,
                      slot,
                      std::uint64_t{layer} * cache.group.kv_heads + head,
                      first,
                      last,
                      ranking,
                      ranked,
                      mine);
        break;
      default: std::fill(mine + first, mine + last, Tier::kHigh);
    }
  }
}

namespace {

// A foreign plan must fit what prefill_begin reserved for a layer under the sequence's policy.
Status check_plan_pages(const CacheState& cache,
                        std::int32_t slot,
                        std::uint32_t tokens,
                        const Tier* tiers) {
  const Group& g = cache.group;
  const Slot& s = cache.slots[slot];
  std::uint64_t needed = 0;
  for (std::uint32_t head = 0; head < g.kv_heads; ++head) {
    std::uint32_t planned[kMaxTiers] = {};
    for (std::uint32_t t = 0; t < tokens; ++t) {
      const auto tier = static_cast<std::uint32_t>(tiers[std::uint64_t{head} * tokens + t]);
      if (tier < g.layout.tier_count) ++planned[tier];
    }
    for (std::uint32_t tier = 0; tier < g.layout.tier_count; ++tier)
      needed += ceil_div(planned[tier], g.layout.tier[tier].tokens);
    if (s.policy.kind != PolicyKind::kEvict) continue;
    const std::uint64_t budget = evict_tokens(s.policy,
                                              cache.admission(s.policy),
                                              tokens,
                                              std::uint64_t{s.next_layer} * g.kv_heads + head);
    const std::uint64_t kept = std::uint64_t{planned[0]} + planned[1];
    if (kept > budget) return invalid("plan", "tokens within the policy's budget", kept, budget);
  }
  const std::uint64_t reserved =
      s.policy.has_controller() ? s.credit : s.credit / (g.layers - s.next_layer);
  if (needed <= reserved) return ok_status();
  return invalid("plan", "pages within the policy's reservation for a layer", needed, reserved);
}

}  // namespace

Status take_plan(const CacheState& cache,
                 std::int32_t slot,
                 std::uint32_t tokens,
                 const std::uint8_t* plan,
                 Tier* tiers) {
  const Slot& s = cache.slots[slot];
  const auto length = static_cast<std::int32_t>(tokens);
  for (std::uint32_t head = 0; head < cache.group.kv_heads; ++head) {
    for (std::uint32_t t = 0; t < tokens; ++t) {
      const std::uint64_t i = std::uint64_t{head} * tokens + t;
      const auto tier = static_cast<Tier>(plan[i]);
      const bool stored = plan[i] < cache.group.layout.tier_count;
      if (!stored && tier != Tier::kDropped && tier != Tier::kKeep) {
        return invalid(
            "plan", "0 high, 1 low (with a low tier), 254 dropped, 255 ring", 0, plan[i]);
      }
      const bool in_ring = s.shape.holds(static_cast<std::int32_t>(t), length);
      if (!in_ring && tier == Tier::kKeep)
        return invalid("plan", "255 only for tokens of the ring", 0, t);
      tiers[i] = in_ring ? Tier::kKeep : tier;
      if (!in_ring && tier != Tier::kHigh && !cache.group.layout.tier[0].fields.position) {
        return fail(StatusCode::kUnsupported, "plan", "a layout without QUIRE_LAYOUT_NO_POSITION");
      }
    }
  }
  return check_plan_pages(cache, slot, tokens, tiers);
}

}  // namespace quire
