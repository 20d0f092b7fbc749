#include <algorithm>

#include "quire/pages/head_tokens.hpp"
#include "src/cpu/pages/write.hpp"

namespace quire::cpu {
namespace {

// A tier per token from a plan given as data, sorted by position; tokens that are not in it stay.
struct GivenTiers {
  const PlanMove* moves;
  std::uint32_t count;

  Tier operator()(float, std::int32_t position, Tier) const {
    const auto before = [](const PlanMove& move, std::int32_t p) { return move.position < p; };
    const PlanMove* found = std::lower_bound(moves, moves + count, position, before);
    return found != moves + count && found->position == position ? found->to : Tier::kKeep;
  }
};

RetierCounts carry_out(const AppendUnit& unit, CodecEvents& events) {
  if (unit.plan.retier == 0) return move_victims(unit.view, unit.plan, events);
  if (unit.replay != nullptr)
    return retier(unit.view, GivenTiers{unit.replay, unit.replay_count}, events);
  const TierRule& rule = unit.rule;
  return retier(
      unit.view,
      [&rule](float score, std::int32_t position, Tier now) {
        return rule.tier_of(score, position, now);
      },
      events);
}

// One row of the call, as it will be coded.
struct NewToken {
  float k[kMaxHeadDim];
  float v[kMaxHeadDim];

  void load(const AppendCall& call,
            const AppendUnit& unit,
            std::uint32_t row,
            CodecEvents& events) {
    const HeadView& view = unit.view;
    const std::uint32_t dim_k = view.tiers[0].head_dim_k;
    const std::uint32_t dim_v = view.tiers[0].head_dim_v;
    load_row(call.k, call.k.offset(unit.sequence, row, unit.kv_head), dim_k, k);
    load_row(call.v, call.v.offset(unit.sequence, row, unit.kv_head), dim_v, v);
    saturate_row(dim_k, k, events);
    saturate_row(dim_v, v, events);
    transform_stored(view.k, dim_k, k);
    transform_stored(view.v, dim_v, v);
  }
};

// The plan of one head, then the new token: into the ring, or, without one, straight into its tier.
// Drafts lie in the ring whatever its window is.
void append_head(const AppendCall& call, AppendUnit& unit, CodecEvents& events) {
  const HeadView& view = unit.view;
  const std::int32_t position = view.length;
  NewToken token;
  if (!unit.stored) token.load(call, unit, 0, events);
  RetierCounts counts = carry_out(unit, events);
  const bool in_ring = view.shape.holds(position, position + 1);
  if (unit.plan.leaving_to == Tier::kDropped) ++counts.dropped;
  if (unit.plan.leaving_to == Tier::kHigh || unit.plan.leaving_to == Tier::kLow) {
    const auto tier = static_cast<std::uint32_t>(unit.plan.leaving_to);
    const TokenPlace place = place_of(view, tier, counts.tokens[tier]++);
    if (in_ring || unit.stored) {
      const std::int32_t leaving = view.shape.window_begin(position);
      move_record(ring_place(view, leaving), place, events);
    } else {
      write_record(place, token.k, token.v, 0.0f, position, events);
    }
  }
  if (in_ring && !unit.stored)
    write_record(ring_place(view, position), token.k, token.v, 0.0f, position, events);
  for (std::uint32_t d = 1; d <= unit.drafts; ++d) {
    const std::int32_t at = position + static_cast<std::int32_t>(d);
    token.load(call, unit, d, events);
    write_record(ring_place(view, at), token.k, token.v, 0.0f, at, events);
  }
  unit.state->tokens[0] = counts.tokens[0];
  unit.state->tokens[1] = counts.tokens[1];
  unit.demoted = counts.demoted;
  unit.dropped = counts.dropped;
}

}  // namespace

void append(const AppendCall& call) {
  const std::uint32_t tasks = std::max(
      1u, std::min(call.unit_count, call.parallel.run == nullptr ? 1u : call.parallel.width));
  call.parallel.for_each(tasks, [&](std::uint32_t task) {
    CodecEvents events;
    for (std::uint32_t u = task; u < call.unit_count; u += tasks)
      append_head(call, call.units[u], events);
    call.saturated[task] = events.saturated;
  });
}

}  // namespace quire::cpu
