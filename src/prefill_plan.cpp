#include "src/prefill_plan.hpp"

#include <algorithm>

#include "quire/pages/head_tokens.hpp"
#include "quire/policy/select.hpp"

namespace quire {
namespace {

// One head while its plan is made.
struct PlanHead {
  const CacheState& cache;
  const PromptRound& round;
  HeadView view;  // before the round
  const HeadState& state;
  std::uint64_t index = 0;  // among all heads of all layers
  Entering entering;
  TierRule rule;
  const float* ranking = nullptr;  // [length] or nullptr
  Tier* tiers = nullptr;           // [length]

  float rank(std::int32_t position) const { return ranking == nullptr ? 0.0f : ranking[position]; }
};

// Before any decision: ring tokens in the ring, tokens of pages where they are, what enters high.
void set_tiers_as_stored(const PlanHead& head) {
  const Slot& s = head.cache.slots[head.round.slot];
  const std::uint32_t length = head.round.length();
  std::fill(head.tiers, head.tiers + length, Tier::kDropped);
  const auto in_sinks = std::min(s.shape.sinks, length);
  std::fill(head.tiers, head.tiers + in_sinks, Tier::kKeep);
  const std::uint32_t ring = std::max(head.entering.last, in_sinks);
  std::fill(head.tiers + ring, head.tiers + length, Tier::kKeep);
  std::fill(head.tiers + head.entering.first, head.tiers + head.entering.last, Tier::kHigh);
  visit_pages(head.view, [&](std::uint32_t tier, std::uint32_t, std::int32_t p) {
    head.tiers[p] = static_cast<Tier>(tier);
  });
}

// Calls plan(position, tier now) for all tokens that a plan may move.
template <class PlanT>
void for_each_candidate(const PlanHead& head, PlanT&& plan) {
  visit_pages(head.view, [&](std::uint32_t tier, std::uint32_t index, std::int32_t p) {
    if (index >= head.view.frozen[tier]) plan(p, static_cast<Tier>(tier));
  });
  for (std::uint32_t p = head.entering.first; p < head.entering.last; ++p)
    plan(static_cast<std::int32_t>(p), Tier::kHigh);
}

void plan_thresholds(const PlanHead& head) {
  const Slot& s = head.cache.slots[head.round.slot];
  const bool by_position = s.policy.threshold_base == ThresholdBase::kPosition;
  TierRule local = head.rule;
  for_each_candidate(head, [&](std::int32_t p, Tier now) {
    if (by_position) {  // tokens of the prompt alone
      const bool own = static_cast<std::uint32_t>(p) >= head.round.begin;
      local.thresholds =
          own ? thresholds_at(head.state.alpha_high, head.state.alpha_low, s.factor, p)
              : head.rule.thresholds;
    }
    head.tiers[p] = local.tier_of(head.rank(p), p, now);
  });
}

// All tokens compete for the budget; what is frozen has its place already.
void plan_eviction(const PlanHead& head, Ranked* ranked) {
  const Slot& s = head.cache.slots[head.round.slot];
  std::uint32_t count = 0;
  for_each_candidate(head, [&](std::int32_t p, Tier) {
    ranked[count++] = {head.rule.significance_at(head.rank(p), p), p};
  });
  const std::uint64_t budget =
      evict_tokens(s.policy, head.cache.admission(s.policy), head.round.length(), head.index);
  const std::uint64_t frozen = std::uint64_t{head.view.frozen[0]} + head.view.frozen[1];
  const std::uint64_t keep = budget > frozen ? budget - frozen : 0;
  select_top(ranked,
             count,
             static_cast<std::uint32_t>(std::min<std::uint64_t>(keep, count)),
             head.tiers,
             0);
  // A foreign plan may have put tokens low; they are not promoted.
  visit_pages(head.view, [&](std::uint32_t tier, std::uint32_t, std::int32_t p) {
    if (tier == 1 && head.tiers[p] == Tier::kHigh) head.tiers[p] = Tier::kLow;
  });
}

PlanHead plan_head(const CacheState& cache,
                   const PromptRound& round,
                   std::uint32_t layer,
                   std::uint32_t head,
                   Tier* tiers) {
  return {cache,
          round,
          cache.view(round.slot, layer, head, static_cast<std::int32_t>(round.first)),
          cache.head_state(round.slot, layer, head),
          std::uint64_t{layer} * cache.group.kv_heads + head,
          entering(cache, round),
          TierRule{},
          nullptr,
          tiers + std::uint64_t{head} * round.length()};
}

}  // namespace

void plan_prompt(const CacheState& cache,
                 const PromptRound& round,
                 std::uint32_t layer,
                 const PromptScores& scores,
                 Ranked* ranked,
                 Tier* tiers) {
  const Slot& s = cache.slots[round.slot];
  const auto length = static_cast<std::int32_t>(round.length());
  for (std::uint32_t i = 0; i < cache.group.kv_heads; ++i) {
    PlanHead head = plan_head(cache, round, layer, i, tiers);
    set_tiers_as_stored(head);
    if (round.more) continue;
    head.rule = cache.rule(round.slot, layer, i, length, s.factor);
    if (scores.ranking != nullptr)
      head.ranking = scores.ranking + std::uint64_t{i} * round.length();
    if (s.policy.kind == PolicyKind::kThreshold) plan_thresholds(head);
    if (s.policy.kind == PolicyKind::kEvict) plan_eviction(head, ranked);
  }
}

namespace {

// Pages that a head takes at its peak: demoted tokens find room first, then emptied pages return,
// then tokens enter.
std::uint64_t pages_of_plan(const PlanHead& head, std::uint64_t* kept) {
  const PageLayout& layout = head.cache.group.layout;
  const RetierCounts after = count_retier(head.view, PlannedTiers{head.tiers});
  std::uint32_t final_tokens[kMaxTiers] = {after.tokens[0], after.tokens[1]};
  for (std::uint32_t p = head.entering.first; p < head.entering.last; ++p) {
    const auto tier = static_cast<std::uint32_t>(head.tiers[p]);
    if (tier < layout.tier_count) ++final_tokens[tier];
  }
  std::uint64_t had = 0;
  std::uint64_t needed = 0;
  for (std::uint32_t t = 0; t < layout.tier_count; ++t) {
    had += head.state.pages[t];
    needed += ceil_div(final_tokens[t], layout.tier[t].tokens);
  }
  *kept = std::uint64_t{final_tokens[0]} + final_tokens[1];
  const std::uint64_t entered = needed > had ? needed - had : 0;
  if (layout.tier_count < 2) return entered;
  const std::uint32_t low = ceil_div(after.tokens[1], layout.tier[1].tokens);
  const std::uint64_t demoted = low > head.state.pages[1] ? low - head.state.pages[1] : 0;
  return std::max(entered, demoted);
}

// A foreign plan must fit what prefill_begin reserved for a layer under the sequence's policy.
Status check_plan_pages(const CacheState& cache, const PromptRound& round, Tier* tiers) {
  const Slot& s = cache.slots[round.slot];
  std::uint64_t needed = 0;
  for (std::uint32_t i = 0; i < cache.group.kv_heads; ++i) {
    const PlanHead head = plan_head(cache, round, s.next_layer, i, tiers);
    std::uint64_t kept = 0;
    needed += pages_of_plan(head, &kept);
    if (s.policy.kind != PolicyKind::kEvict) continue;
    const std::uint64_t frozen = std::uint64_t{head.view.frozen[0]} + head.view.frozen[1];
    const std::uint64_t budget = std::max(
        frozen, evict_tokens(s.policy, cache.admission(s.policy), round.length(), head.index));
    if (kept > budget) return invalid("plan", "tokens within the policy's budget", kept, budget);
  }
  const std::uint64_t reserved = layer_share(cache, round);
  if (needed <= reserved) return ok_status();
  return invalid("plan", "pages within the policy's reservation for a layer", needed, reserved);
}

// What the plan says of one token that is not in the ring; `now` is where it is or would go.
Status check_entry(
    const PlanHead& head, std::int32_t position, std::uint8_t wanted, Tier now, bool frozen) {
  const auto to = static_cast<Tier>(wanted);
  const auto at = static_cast<std::uint64_t>(position);
  if (to != Tier::kHigh && !head.cache.group.layout.tier[0].fields.position)
    return fail(StatusCode::kUnsupported, "plan", "a layout without QUIRE_LAYOUT_NO_POSITION");
  if (wanted < static_cast<std::uint8_t>(now))
    return invalid("plan", "no tier above the token's: tiers only go down", 1, at);
  if (frozen && to != now) {
    return invalid("plan",
                   "255 or its own tier for a token in a page that other sequences hold",
                   static_cast<std::uint64_t>(now),
                   at);
  }
  return ok_status();
}

Status take_head_plan(const PlanHead& head, const std::uint8_t* plan) {
  const std::uint32_t length = head.round.length();
  for (std::uint32_t p = 0; p < length; ++p) {
    const auto tier = static_cast<Tier>(plan[p]);
    const bool stored = plan[p] < head.cache.group.layout.tier_count;
    if (!stored && tier != Tier::kDropped && tier != Tier::kKeep) {
      return invalid("plan", "0 high, 1 low (with a low tier), 254 dropped, 255 ring", 0, plan[p]);
    }
  }
  set_tiers_as_stored(head);
  Status status = ok_status();
  visit_pages(head.view, [&](std::uint32_t tier, std::uint32_t index, std::int32_t p) {
    if (!status.ok() || plan[p] == static_cast<std::uint8_t>(Tier::kKeep)) return;
    status = check_entry(head, p, plan[p], static_cast<Tier>(tier), index < head.view.frozen[tier]);
    head.tiers[p] = static_cast<Tier>(plan[p]);
  });
  QUIRE_TRY(status);
  for (std::uint32_t p = head.entering.first; p < head.entering.last; ++p) {
    if (plan[p] == static_cast<std::uint8_t>(Tier::kKeep))
      return invalid("plan", "255 only for tokens of the ring", 0, p);
    QUIRE_TRY(check_entry(head, static_cast<std::int32_t>(p), plan[p], Tier::kHigh, false));
    head.tiers[p] = static_cast<Tier>(plan[p]);
  }
  return ok_status();
}

}  // namespace

Status take_plan(const CacheState& cache,
                 const PromptRound& round,
                 const std::uint8_t* plan,
                 Tier* tiers) {
  if (round.more) return invalid("plan", "NULL in a round with QUIRE_PREFILL_MORE");
  for (std::uint32_t i = 0; i < cache.group.kv_heads; ++i) {
    const PlanHead head = plan_head(cache, round, cache.slots[round.slot].next_layer, i, tiers);
    QUIRE_TRY(take_head_plan(head, plan + std::uint64_t{i} * round.length()));
  }
  return check_plan_pages(cache, round, tiers);
}

}  // namespace quire
