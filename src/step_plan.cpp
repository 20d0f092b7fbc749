#include "src/step_plan.hpp"

#include <algorithm>

#include "quire/pages/head_tokens.hpp"
#include "src/control.hpp"

namespace quire {
namespace {

// The least significant tokens of a head: as attention left them, or by a scan when they are stale
// (after a prompt, a foreign plan, or a step without attention).
Lowest lowest_of(const HeadView& view,
                 const HeadState& state,
                 const TierRule& rule,
                 std::uint32_t tier) {
  Lowest lowest;
  if (state.lowest_length == rule.length) {
    lowest.significance = state.lowest_significance[tier];
    lowest.position = state.lowest_position[tier];
    lowest.index = state.lowest_index[tier];
    return lowest;
  }
  const auto consider = [&](float score, std::int32_t position, std::uint32_t index) {
    lowest.consider(
        rule.significance_at(score, position), position, static_cast<std::int32_t>(index));
  };
  for_each_token(view, tier, view.frozen[tier], consider);
  return lowest;
}

bool needs_lowest(StepRule rule) {
  return rule == StepRule::kUpstream || rule == StepRule::kPaper || rule == StepRule::kEvict;
}

// A token leaves the ring when the next one comes, or, without a window, is the next one itself.
bool ring_is_full(const RingShape& shape, std::int32_t length) {
  return shape.outside(length + 1) > shape.outside(length);
}

StepInput step_input(const CacheState& cache,
                     std::int32_t slot,
                     std::uint64_t head_index,
                     const HeadView& view,
                     const HeadState& state,
                     const TierRule& rule,
                     StepRule step_rule) {
  const Slot& s = cache.slots[slot];
  StepInput in;
  in.high_tokens = static_cast<std::int32_t>(view.tokens[0]);
  in.low_tokens = static_cast<std::int32_t>(view.tokens[1]);
  in.thresholds = rule.thresholds;
  in.leaving = ring_is_full(s.shape, s.tokens);
  if (in.leaving) {
    in.leaving_position = s.shape.window_begin(s.tokens);
    const bool stored = in.leaving_position < s.tokens;
    const float score = stored ? ring_place(view, in.leaving_position).score() : 0.0f;
    in.leaving_significance = rule.significance_at(score, in.leaving_position);
    in.leaving_on_probation = rule.on_probation(in.leaving_position);
  }
  if (needs_lowest(step_rule)) {
    in.high = lowest_of(view, state, rule, 0);
    if (view.tier_count > 1) in.low = lowest_of(view, state, rule, 1);
  }
  if (s.policy.kind == PolicyKind::kEvict) {
    const std::uint64_t budget = evict_tokens(
        s.policy, cache.admission(s.policy), static_cast<std::uint64_t>(s.tokens) + 1, head_index);
    in.token_budget = static_cast<std::int32_t>(std::min<std::uint64_t>(budget, kMaxPosition));
  }
  return in;
}

StepRule step_rule_of(const Policy& policy, float factor) {
  if (policy.kind == PolicyKind::kKeepAll || policy.kind == PolicyKind::kForeign)
    return StepRule::kAppend;
  if (policy.kind == PolicyKind::kEvict && policy.grows) return StepRule::kAppend;
  if (!policy.has_controller()) return policy.step_rule;
  // Between its runs the controller lets every token enter high: that growth is priced ahead. Where
  // no factor fits, tokens are dropped as they come.
  return factor >= kDropAll ? StepRule::kClassify : StepRule::kAppend;
}

// One head; with `again`, every token is classified and the counts are those after it.
void plan_head(CacheState& cache,
               std::uint32_t index,
               std::uint32_t layer,
               std::uint32_t head,
               float factor,
               bool again) {
  const std::int32_t slot = cache.step.slots[index].slot;
  const Slot& s = cache.slots[slot];
  const HeadView view = cache.view(slot, layer, head, s.tokens);
  const TierRule rule = cache.rule(slot, layer, head, s.tokens, factor);
  const StepRule step_rule = step_rule_of(s.policy, factor);
  const std::uint64_t head_index = std::uint64_t{layer} * cache.group.kv_heads + head;
  const HeadState& state = cache.head_state(slot, layer, head);
  HeadPlan plan =
      plan_step(step_rule, step_input(cache, slot, head_index, view, state, rule, step_rule));
  if (again) {
    const RetierCounts counts = count_retier(
        view, [&](float score, std::int32_t p, Tier now) { return rule.tier_of(score, p, now); });
    plan.retier = 1;
    plan.high_after +=
        static_cast<std::int32_t>(counts.tokens[0]) - static_cast<std::int32_t>(view.tokens[0]);
    plan.low_after +=
        static_cast<std::int32_t>(counts.tokens[1]) - static_cast<std::int32_t>(view.tokens[1]);
  }
  cache.plan(index, layer, head) = plan;
}

}  // namespace

void plan_all_heads(CacheState& cache, std::uint32_t index, float factor, bool again) {
  for (std::uint32_t layer = 0; layer < cache.group.layers; ++layer) {
    for (std::uint32_t head = 0; head < cache.group.kv_heads; ++head) {
      plan_head(cache, index, layer, head, factor, again);
    }
  }
}

namespace {

// Runs the byte controller and plans with the factor it finds.
void plan_controlled(CacheState& cache, std::uint32_t index) {
  StepSlot& step = cache.step.slots[index];
  const Slot& s = cache.slots[step.slot];
  ControlRequest request = {
      step.slot, cache.group.layers, s.tokens, 1, std::max(s.policy.cadence, step.rows)};
  step.cadence = 1;
  step.factor = find_factor_ahead(cache, request);
  const auto planned = [&](std::uint32_t layer, std::uint32_t head) {
    const HeadPlan& plan = cache.plan(index, layer, head);
    RetierCounts counts;
    const std::uint32_t entered = plan.leaving_to == Tier::kHigh ? 1 : 0;  // priced by the growth
    counts.tokens[0] = static_cast<std::uint32_t>(plan.high_after) - entered;
    counts.tokens[1] = static_cast<std::uint32_t>(plan.low_after);
    return counts;
  };
  plan_all_heads(cache, index, step.factor, true);
  float raise = kFactorStep;
  while (step.factor > 0.0f && step.factor < kDropAll && !within_budget(cache, request, planned)) {
    step.factor *= raise;
    raise = std::min(raise * raise, 2.0f);
    plan_all_heads(cache, index, step.factor, true);
  }
}

// Finds a stored token of one head by its position; tier_count when it is not there.
struct Found {
  std::uint32_t tier = kMaxTiers;
  std::uint32_t index = 0;
};

Found find_token(const HeadView& view, std::int32_t position) {
  for (std::uint32_t tier = 0; tier < view.tier_count; ++tier) {
    for (std::uint32_t i = 0; i < view.tokens[tier]; ++i) {
      if (place_of(view, tier, i).position() == position) return {tier, i};
    }
  }
  return {};
}

Status add_move(const HeadView& view, const PlanMove& move, std::int32_t leaving, HeadPlan& plan) {
  const bool known = move.to == Tier::kHigh || move.to == Tier::kDropped ||
                     (move.to == Tier::kLow && view.tier_count > 1);
  if (!known)
    return invalid("plan.to",
                   "0 high, 1 low (with a low tier), 254 dropped",
                   0,
                   static_cast<std::uint64_t>(move.to));
  if (!view.tiers[0].fields.position && move.to != Tier::kHigh)
    return fail(StatusCode::kUnsupported, "plan", "a layout without QUIRE_LAYOUT_NO_POSITION");
  if (leaving >= 0 && move.position == leaving) {
    plan.leaving_to = move.to;
    return ok_status();
  }
  const Found found = find_token(view, move.position);
  if (found.tier >= view.tier_count) {
    return invalid("plan.position",
                   "a token in the pages of that head",
                   0,
                   static_cast<std::uint64_t>(move.position));
  }
  if (found.index < view.frozen[found.tier]) {
    return invalid("plan.position",
                   "a token in a page that no other sequence holds",
                   0,
                   static_cast<std::uint64_t>(move.position));
  }
  if (static_cast<std::uint32_t>(move.to) <= found.tier) {
    return invalid("plan.to",
                   "a lower tier than the token's",
                   found.tier,
                   static_cast<std::uint64_t>(move.to));
  }
  plan.retier = 1;
  if (found.tier == 0) --plan.high_after;
  if (found.tier == 1) --plan.low_after;
  if (move.to == Tier::kLow) ++plan.low_after;
  return ok_status();
}

}  // namespace

void plan_sequence(CacheState& cache, std::uint32_t index) {
  StepSlot& step = cache.step.slots[index];
  const Slot& s = cache.slots[step.slot];
  step.factor = s.factor;
  step.cadence = 0;
  if (controller_due(cache, step.slot, step.rows)) {
    plan_controlled(cache, index);
  } else {
    plan_all_heads(cache, index, step.factor, false);
  }
}

HeadMoves moves_of(const PlanMove* moves,
                   std::uint64_t count,
                   std::uint32_t layer,
                   std::uint32_t head) {
  const auto before = [](const PlanMove& m, std::uint64_t key) {
    return ((std::uint64_t{m.layer} << 32) | m.head) < key;
  };
  const std::uint64_t key = (std::uint64_t{layer} << 32) | head;
  const PlanMove* first = std::lower_bound(moves, moves + count, key, before);
  const PlanMove* last = std::lower_bound(first, moves + count, key + 1, before);
  return {first, static_cast<std::uint32_t>(last - first)};
}

Status plan_from_moves(CacheState& cache,
                       std::uint32_t index,
                       const PlanMove* moves,
                       std::uint64_t count) {
  StepSlot& step = cache.step.slots[index];
  const Slot& s = cache.slots[step.slot];
  step.factor = s.factor;
  step.cadence = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (moves[i].layer >= cache.group.layers)
      return invalid("plan.layer", "below layers", cache.group.layers, moves[i].layer);
    if (moves[i].head >= cache.group.kv_heads)
      return invalid("plan.head", "below kv_heads", cache.group.kv_heads, moves[i].head);
    const auto key = [](const PlanMove& m) { return ((std::uint64_t{m.layer} << 32) | m.head); };
    const bool sorted =
        i == 0 || key(moves[i - 1]) < key(moves[i]) ||
        (key(moves[i - 1]) == key(moves[i]) && moves[i - 1].position < moves[i].position);
    if (!sorted)
      return invalid("plan", "sorted by (layer, head, position), no position twice", 0, i);
  }
  const std::int32_t leaving =
      ring_is_full(s.shape, s.tokens) ? s.shape.window_begin(s.tokens) : -1;
  for (std::uint32_t layer = 0; layer < cache.group.layers; ++layer) {
    for (std::uint32_t head = 0; head < cache.group.kv_heads; ++head) {
      const HeadView view = cache.view(step.slot, layer, head, s.tokens);
      HeadPlan plan;
      plan.high_after = static_cast<std::int32_t>(view.tokens[0]);
      plan.low_after = static_cast<std::int32_t>(view.tokens[1]);
      plan.leaving_to = leaving < 0 ? Tier::kKeep : Tier::kHigh;
      const HeadMoves mine = moves_of(moves, count, layer, head);
      for (std::uint32_t i = 0; i < mine.count; ++i)
        QUIRE_TRY(add_move(view, mine.first[i], leaving, plan));
      if (plan.leaving_to == Tier::kHigh) ++plan.high_after;
      if (plan.leaving_to == Tier::kLow) ++plan.low_after;
      cache.plan(index, layer, head) = plan;
    }
  }
  return ok_status();
}

std::uint64_t log_moves(const CacheState& cache,
                        std::uint32_t index,
                        PlanMove* out,
                        std::uint64_t capacity) {
  const StepSlot& step = cache.step.slots[index];
  const Slot& s = cache.slots[step.slot];
  const std::int32_t leaving = s.shape.window_begin(s.tokens);
  std::uint64_t total = 0;
  for (std::uint32_t layer = 0; layer < cache.group.layers; ++layer) {
    for (std::uint32_t head = 0; head < cache.group.kv_heads; ++head) {
      const HeadPlan& plan = cache.plan(index, layer, head);
      const HeadView view = cache.view(step.slot, layer, head, s.tokens);
      const TierRule rule = cache.rule(step.slot, layer, head, s.tokens, step.factor);
      const std::uint64_t start = total;
      const auto add = [&](std::int32_t position, Tier to) {
        if (total < capacity) out[total] = {layer, head, position, to, {}};
        ++total;
      };
      if (plan.retier != 0 && cache.step.replay != nullptr) {
        const HeadMoves mine = moves_of(cache.step.replay, cache.step.replay_count, layer, head);
        for (std::uint32_t i = 0; i < mine.count; ++i) {
          const bool leaves = plan.leaving_to != Tier::kKeep && mine.first[i].position == leaving;
          if (!leaves) add(mine.first[i].position, mine.first[i].to);
        }
      } else if (plan.retier != 0) {
        count_retier(view, [&](float score, std::int32_t p, Tier now) {
          const Tier to = rule.tier_of(score, p, now);
          if (to != now) add(p, to);
          return to;
        });
      } else {
        if (plan.low_victim_dropped != 0) {
          add(place_of(view, 1, static_cast<std::uint32_t>(plan.low_victim)).position(),
              Tier::kDropped);
        }
        if (plan.high_victim_to != Tier::kKeep) {
          add(place_of(view, 0, static_cast<std::uint32_t>(plan.high_victim)).position(),
              plan.high_victim_to);
        }
      }
      if (plan.leaving_to != Tier::kKeep) add(leaving, plan.leaving_to);
      if (total <= capacity) {
        std::sort(out + start, out + total, [](const PlanMove& a, const PlanMove& b) {
          return a.position < b.position;
        });
      }
    }
  }
  return total;
}

std::uint32_t pages_to_take(const CacheState& cache,
                            const HeadPlan& plan,
                            const HeadState& state,
                            std::uint32_t tier) {
  const std::int32_t after = tier == 0 ? plan.high_after : plan.low_after;
  const std::uint32_t needed =
      ceil_div(static_cast<std::uint32_t>(after), cache.group.layout.tier[tier].tokens);
  return needed > state.pages[tier] ? needed - state.pages[tier] : 0;
}

}  // namespace quire
