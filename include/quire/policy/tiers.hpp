// From significance to tiers: the threshold rule, and what happens to one head in one step.
#pragma once

#include <cstdint>

#include "quire/core/config.hpp"
#include "quire/core/plan.hpp"
#include "quire/core/score_view.hpp"
#include "quire/policy/policy.hpp"

namespace quire {

// Absolute thresholds of one head at one moment: factor * alpha / base.
struct Thresholds {
  float high = 0.0f;  // below: not high
  float low = 0.0f;   // below: dropped
};

// A factor that drops all that a policy may drop, however small its alphas.
inline constexpr float kDropAll = 1.0e30f;

// `base` is the number of tokens, or a token's own position. At position 0 there is no earlier
// token to share attention with, so nothing is below the threshold.
QUIRE_HD inline Thresholds thresholds_at(float alpha_high,
                                         float alpha_low,
                                         float factor,
                                         std::int32_t base) {
  if (base <= 0) return {};
  if (factor >= kDropAll) {
    constexpr float kAbove = __builtin_inff();  // any significance
    return {alpha_high > 0.0f ? kAbove : 0.0f, alpha_low > 0.0f ? kAbove : 0.0f};
  }
  const float inverse = 1.0f / static_cast<float>(base);
  return {inverse * (factor * alpha_high), inverse * (factor * alpha_low)};
}

// Strict comparisons: equality goes to the better tier. Thresholds of 0 drop nothing.
QUIRE_HD inline Tier classify(float significance, const Thresholds& thresholds) {
  if (significance < thresholds.low) return Tier::kDropped;
  return significance < thresholds.high ? Tier::kLow : Tier::kHigh;
}

// The least significant token of a tier. Order of all plans: significance descending, then position
// ascending; the victim is the last in it, equal on every backend.
struct Lowest {
  float significance = 0.0f;
  std::int32_t position = -1;
  std::int32_t index = -1;

  QUIRE_HD bool exists() const { return index >= 0; }
  QUIRE_HD void consider(float other, std::int32_t other_position, std::int32_t other_index) {
    const bool less = other < significance || (other == significance && other_position > position);
    if (exists() && !less) return;
    significance = other;
    position = other_position;
    index = other_index;
  }
};

// Inputs of a step for one head, from the scores as of the previous step.
struct StepInput {
  bool leaving = false;  // a token leaves the ring (ring full)
  float leaving_significance = 0.0f;
  std::int32_t leaving_position = -1;
  bool leaving_on_probation = false;
  Lowest high;
  Lowest low;
  std::int32_t high_tokens = 0;
  std::int32_t low_tokens = 0;
  Thresholds thresholds;
  std::int32_t token_budget = 0;  // outside the ring, kEvict
};

namespace detail {

QUIRE_HD inline HeadPlan append_high(const StepInput& in) {
  HeadPlan plan;
  plan.high_after = in.high_tokens;
  plan.low_after = in.low_tokens;
  if (in.leaving) {
    plan.leaving_to = Tier::kHigh;
    ++plan.high_after;
  }
  return plan;
}

QUIRE_HD inline void drop_high_victim(const StepInput& in, HeadPlan& plan) {
  plan.high_victim = in.high.index;
  plan.high_victim_to = Tier::kDropped;
  --plan.high_after;
}

QUIRE_HD inline void drop_low_victim(const StepInput& in, HeadPlan& plan) {
  plan.low_victim = in.low.index;
  plan.low_victim_dropped = 1;
  --plan.low_after;
}

QUIRE_HD inline void demote_high_victim(const StepInput& in, HeadPlan& plan) {
  plan.high_victim = in.high.index;
  plan.high_victim_to = Tier::kLow;
  --plan.high_after;
  ++plan.low_after;
}

// DiffKV's decode step as its authors coded it (research table, cases 0 to 4); the token that
// leaves the ring plays their new token.
QUIRE_HD inline HeadPlan upstream_step(const StepInput& in) {
  HeadPlan plan = append_high(in);
  if (!in.leaving || !in.high.exists()) return plan;
  const float worst_high = in.high.significance;
  const bool low_exists = in.low.exists();
  if (worst_high < in.thresholds.low && (!low_exists || worst_high < in.low.significance)) {
    drop_high_victim(in, plan);
  } else if (worst_high < in.thresholds.high) {
    if (low_exists && in.low.significance < in.thresholds.low) drop_low_victim(in, plan);
    demote_high_victim(in, plan);
  }
  return plan;
}

// DiffKV's decode step as published (section 4 of the paper): the leaving token is classified
// first, then the worst token of the tier it joined.
QUIRE_HD inline HeadPlan paper_step(const StepInput& in) {
  HeadPlan plan = append_high(in);
  if (!in.leaving) return plan;
  plan.leaving_to = classify(in.leaving_significance, in.thresholds);
  if (plan.leaving_to == Tier::kHigh) {
    if (!in.high.exists()) return plan;
    const Tier worst = classify(in.high.significance, in.thresholds);
    if (worst == Tier::kLow) demote_high_victim(in, plan);
    if (worst == Tier::kDropped) drop_high_victim(in, plan);
    return plan;
  }
  --plan.high_after;
  if (plan.leaving_to == Tier::kLow) {
    ++plan.low_after;
    if (in.low.exists() && in.low.significance < in.thresholds.low) drop_low_victim(in, plan);
  }
  return plan;
}

QUIRE_HD inline HeadPlan classify_step(const StepInput& in) {
  HeadPlan plan = append_high(in);
  if (!in.leaving || in.leaving_on_probation) return plan;
  plan.leaving_to = classify(in.leaving_significance, in.thresholds);
  if (plan.leaving_to == Tier::kHigh) return plan;
  --plan.high_after;
  if (plan.leaving_to == Tier::kLow) ++plan.low_after;
  return plan;
}

// Room: append. No room: a low token (a foreign plan may have made some), else the least
// significant of the high tier and the leaving token goes.
QUIRE_HD inline HeadPlan evict_step(const StepInput& in) {
  HeadPlan plan = append_high(in);
  if (!in.leaving || in.high_tokens + in.low_tokens < in.token_budget) return plan;
  if (in.low.exists()) {
    drop_low_victim(in, plan);
    return plan;
  }
  Lowest worst = in.high;
  worst.consider(in.leaving_significance, in.leaving_position, in.high_tokens);
  if (worst.index == in.high_tokens) {
    plan.leaving_to = Tier::kDropped;
    --plan.high_after;
  } else {
    drop_high_victim(in, plan);
  }
  return plan;
}

}  // namespace detail

// The plan of one head for one step: a pure function of its inputs.
QUIRE_HD inline HeadPlan plan_step(StepRule rule, const StepInput& in) {
  switch (rule) {
    case StepRule::kUpstream: return detail::upstream_step(in);
    case StepRule::kPaper: return detail::paper_step(in);
    case StepRule::kClassify: return detail::classify_step(in);
    case StepRule::kEvict: return detail::evict_step(in);
    case StepRule::kAppend: break;
  }
  return detail::append_high(in);
}

// Everything that turns a stored score into a tier, for one head at one moment.
struct TierRule {
  Significance significance = Significance::kMean;
  std::uint32_t tail_queries = 0;
  std::uint32_t min_queries = 0;
  PromptEnds ends;
  std::int32_t length = 0;  // queries so far
  Thresholds thresholds;

  QUIRE_HD float significance_at(float score, std::int32_t position) const {
    return significance_of(
        significance, score, position, query_count(ends, tail_queries, position, length));
  }

  QUIRE_HD bool on_probation(std::int32_t position) const {
    return query_count(ends, tail_queries, position, length) <
           static_cast<std::int64_t>(min_queries);
  }

  // Tiers only go down: a token in `now` ends there or lower.
  QUIRE_HD Tier tier_of(float score, std::int32_t position, Tier now) const {
    if (on_probation(position)) return now;
    const Tier wanted = classify(significance_at(score, position), thresholds);
    return static_cast<std::uint8_t>(wanted) > static_cast<std::uint8_t>(now) ? wanted : now;
  }
};

}  // namespace quire
