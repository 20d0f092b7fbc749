// Named parameter sets. A recipe is a value: take one, change fields, open a sequence with it.
//
// The formats and the ring that a recipe was measured with are set by quire_recipe() (quire.h)
// beside the policy, since a policy knows nothing of codecs.
#pragma once

#include <cstdint>

#include "quire/policy/policy.hpp"

namespace quire {

// Numbers are part of the C ABI and never reused.
enum class Recipe : std::uint32_t {
  kKeepAll = 1,
  kDiffkvPaper = 2,
  kDiffkvUpstream = 3,
  kStreamingLlm = 4,
  kH2o = 5,
  kSnapKv = 6,
  kQuireUniform = 7,
  kQuireBudget = 8,
  kForeign = 9,
};

inline constexpr std::uint32_t kDefaultWindow = 64;   // DiffKV's W
inline constexpr std::uint32_t kOwnWindow = 48;       // of quire_uniform and quire_budget
inline constexpr std::uint32_t kDefaultCadence = 16;  // steps between two controller runs

// Every token in the high tier: uniform quantization, and the control of all other recipes.
inline Policy keep_all() {
  Policy p;
  p.recent_window = kDefaultWindow;
  return p;
}

// DiffKV as its authors' code runs it (arXiv 2412.03131, repository zyqCSL/DiffKV), without the
// defects of that code: scores stay with their token, and all paths give the same scores.
inline Policy diffkv_upstream(float alpha_high, float alpha_low) {
  Policy p;
  p.kind = PolicyKind::kThreshold;
  p.statistic = Statistic::kMaxSum;
  p.significance = Significance::kMean;
  p.step_rule = StepRule::kUpstream;
  p.recent_window = kDefaultWindow;
  p.tail_queries = 64;
  p.cadence = kDefaultCadence;
  p.alpha_high = alpha_high;
  p.alpha_low = alpha_low;
  return p;
}

// DiffKV as published: all later queries score a prompt token, the prompt's threshold is alpha over
// the token's own position (section 4), and the token leaving the window is classified first.
inline Policy diffkv_paper(float alpha_high, float alpha_low) {
  Policy p = diffkv_upstream(alpha_high, alpha_low);
  p.step_rule = StepRule::kPaper;
  p.threshold_base = ThresholdBase::kPosition;
  p.tail_queries = kAllQueries;
  return p;
}

// Sinks and the most recent tokens, nothing else (arXiv 2309.17453; defaults of its code: 4 sinks).
// Keys keep their rotation: positions are true ones.
inline Policy streaming_llm(std::uint32_t budget_tokens) {
  Policy p;
  p.kind = PolicyKind::kEvict;
  p.significance = Significance::kPosition;
  p.step_rule = StepRule::kEvict;
  p.sink_tokens = 4;
  p.recent_window = kDefaultWindow;
  p.budget_tokens = budget_tokens;
  return p;
}

// Heavy hitters by the running sum of attention over all queries, plus recent tokens
// (arXiv 2306.14048). Grouped heads: the mean over the group.
inline Policy h2o(std::uint32_t budget_tokens) {
  Policy p;
  p.kind = PolicyKind::kEvict;
  p.statistic = Statistic::kMeanSum;
  p.significance = Significance::kSum;
  p.step_rule = StepRule::kEvict;
  p.recent_window = kDefaultWindow;
  p.tail_queries = kAllQueries;
  p.budget_tokens = budget_tokens;
  return p;
}

// The prompt's tokens that its last queries look at, scores smoothed over neighbours
// (arXiv 2404.14469; window 64 and width 5 as in kvpress). While the answer grows, the least
// significant token goes, by mean attention; `grows` keeps all of the answer, as published.
inline Policy snapkv(std::uint32_t budget_tokens) {
  Policy p;
  p.kind = PolicyKind::kEvict;
  p.statistic = Statistic::kMeanSum;
  p.significance = Significance::kMean;
  p.step_rule = StepRule::kEvict;
  p.recent_window = kDefaultWindow;
  p.tail_queries = 64;
  p.pool = PoolKind::kAverage;
  p.pool_width = 5;
  p.budget_tokens = budget_tokens;
  return p;
}

// One symmetric tier, sink and window in 8 bits; no scores.
inline Policy quire_uniform() {
  Policy p;
  p.sink_tokens = 1;
  p.recent_window = kOwnWindow;
  return p;
}

// Three tiers (K6V4, K4V2, dropped) by root mean square attention under a byte target.
inline Policy quire_budget(double byte_target) {
  Policy p;
  p.kind = PolicyKind::kThreshold;
  p.statistic = Statistic::kMeanSquare;
  p.significance = Significance::kRootMean;
  p.step_rule = StepRule::kClassify;
  p.sink_tokens = 1;
  p.recent_window = kOwnWindow;
  p.tail_queries = 256;
  p.min_queries = 96;
  p.cadence = kDefaultCadence;
  p.alpha_high = 1.0f;
  p.alpha_low = 0.1f;
  p.byte_target = byte_target;
  return p;
}

// The engine plans: prompts by prefill_layer's plan, later by plan_apply.
inline Policy foreign_plan() {
  Policy p;
  p.kind = PolicyKind::kForeign;
  p.recent_window = kDefaultWindow;
  return p;
}

}  // namespace quire
