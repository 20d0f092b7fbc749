// A policy as a plain struct. Named parameter sets are in recipes.hpp.
#pragma once

#include <cmath>
#include <cstdint>

#include "quire/core/config.hpp"
#include "quire/core/score_view.hpp"
#include "quire/core/status.hpp"
#include "quire/core/types.hpp"

namespace quire {

enum class PolicyKind : std::uint32_t {
  kKeepAll = 1,    // everything into the high tier
  kThreshold = 2,  // tier by significance against thresholds (DiffKV, quire_budget)
  kEvict = 3,      // one tier, a number of tokens per head, the least significant one goes
  kForeign = 4,    // the engine brings plans; a token without a plan is kept high
};

// How a score sum becomes a significance.
enum class Significance : std::uint32_t {
  kMean = 1,      // sum / queries that could see the token
  kRootMean = 2,  // sqrt(sum / queries)
  kSum = 3,       // the sum itself (H2O)
  kPosition = 4,  // the position: older is less significant (StreamingLLM)
};

enum class StepRule : std::uint32_t {
  kAppend = 1,    // the token that leaves the ring enters the high tier
  kUpstream = 2,  // DiffKV as coded: research table of five cases
  kPaper = 3,     // DiffKV as published: the leaving token is classified first
  kClassify = 4,  // the leaving token is classified by the thresholds
  kEvict = 5,     // the leaving token competes with the least significant one
};

enum class ThresholdBase : std::uint32_t {
  kLength = 1,    // alpha / number of tokens
  kPosition = 2,  // alpha / own position, in the prompt; alpha / length later
};

inline constexpr std::uint32_t kAllQueries = 0xffffffffu;
inline constexpr std::uint32_t kMaxCadence = 1024;

struct Policy {
  PolicyKind kind = PolicyKind::kKeepAll;
  Statistic statistic = Statistic::kNone;
  Significance significance = Significance::kMean;
  StepRule step_rule = StepRule::kAppend;
  ThresholdBase threshold_base = ThresholdBase::kLength;
  std::uint32_t sink_tokens = 0;    // kept in the ring for ever
  std::uint32_t recent_window = 0;  // W: last tokens kept in the ring
  std::uint32_t tail_queries = 0;   // Q: rows of the prompt's tail pass; kAllQueries: all
  std::uint32_t min_queries = 0;    // probation: a token seen by fewer stays high
  std::uint32_t cadence = 0;        // steps between two runs of the byte controller
  PoolKind pool = PoolKind::kNone;  // smoothing of prompt scores along the tokens
  std::uint32_t pool_width = 0;     // odd
  float alpha_high = 0.0f;
  float alpha_low = 0.0f;
  std::uint32_t budget_tokens = 0;  // per (layer, KV head), ring included; kEvict
  std::uint64_t budget_bytes = 0;   // records of the sequence, ring included
  double byte_target = 0.0;         // physical bytes as a share of fp16's
  bool grows = false;               // kEvict: the budget holds for the prompt, decode appends

  // A global factor on the thresholds is found (controller.hpp).
  QUIRE_HD bool has_controller() const {
    return kind == PolicyKind::kThreshold && (byte_target > 0.0 || budget_bytes > 0);
  }
};

// The prompts of a sequence, ascending: tokens [begin, end) each, what is between them was decoded.
// The two oldest merge when there are more than eight.
struct PromptEnds {
  std::int32_t begin[8] = {};
  std::int32_t end[8] = {};
  std::uint32_t count = 0;

  // Without a begin the prompt starts where the one before it ends.
  QUIRE_HD void add(std::int32_t prompt_end, std::int32_t prompt_begin = -1) {
    if (prompt_begin < 0) prompt_begin = count == 0 ? 0 : end[count - 1];
    if (count == 8) {
      begin[1] = begin[0];
      for (std::uint32_t i = 0; i + 1 < 8; ++i) {
        begin[i] = begin[i + 1];
        end[i] = end[i + 1];
      }
      count = 7;
    }
    begin[count] = prompt_begin;
    end[count++] = prompt_end;
  }
};

// Queries behind the score of a token at `position` when `length` tokens have been queries:
// length - birth, with birth = max(position, end of its prompt - Q); a token that was decoded is
// born at its position. (DiffKV's "virtual birth", recomputed so that true positions are kept.)
QUIRE_HD inline std::int32_t query_count(const PromptEnds& ends,
                                         std::uint32_t tail_queries,
                                         std::int32_t position,
                                         std::int32_t length) {
  for (std::uint32_t i = 0; i < ends.count; ++i) {
    if (position >= ends.end[i]) continue;
    if (position < ends.begin[i]) break;
    const std::int64_t first = std::int64_t{ends.end[i]} - std::int64_t{tail_queries};
    return length - static_cast<std::int32_t>(first > position ? first : position);
  }
  return length - position;
}

// Higher means keep. `queries` is at least 1 for every token that has been a query itself.
QUIRE_HD inline float significance_of(Significance significance,
                                      float score,
                                      std::int32_t position,
                                      std::int32_t queries) {
  const float n = static_cast<float>(queries > 0 ? queries : 1);
  switch (significance) {
    case Significance::kMean: return score / n;
    case Significance::kRootMean: return sqrtf(score / n);
    case Significance::kSum: return score;
    case Significance::kPosition: return static_cast<float>(position);
  }
  return score;
}

namespace detail {

inline bool bad_threshold(float x) { return !(x >= 0.0f) || x > 1.0e30f; }

inline Status check_thresholds(float alpha_high, float alpha_low) {
  if (bad_threshold(alpha_high)) return invalid("alpha_high", "a number from 0 to 1e30, not NaN");
  if (bad_threshold(alpha_low)) return invalid("alpha_low", "a number from 0 to 1e30, not NaN");
  if (alpha_low > alpha_high)
    return invalid("alpha_low", "not above alpha_high (thresholds crossed)");
  return ok_status();
}

inline Status check_budgets(const Policy& policy) {
  const int budgets =
      (policy.budget_tokens != 0) + (policy.budget_bytes != 0) + (policy.byte_target != 0.0);
  if (!(policy.byte_target >= 0.0) || policy.byte_target > 1.5) {
    return invalid("byte_target", "a share from 0 (none) to 1.5");
  }
  if (budgets > 1)
    return invalid("budget_tokens", "one of budget_tokens, budget_bytes, byte_target");
  if (policy.kind == PolicyKind::kEvict) {
    if (budgets != 1) return invalid("budget_tokens", "a budget in tokens, bytes or a byte target");
    return ok_status();
  }
  if (policy.kind != PolicyKind::kThreshold && budgets > 0) {
    return invalid("budget_tokens", "0: this policy kind has no budget");
  }
  if (policy.budget_tokens != 0) {
    return invalid(
        "budget_tokens", "0 for threshold policies: they take bytes", 0, policy.budget_tokens);
  }
  return ok_status();
}

// Only rules that keep what the other fields promise: a budget, a probation.
inline Status check_step_rule(const Policy& policy) {
  const bool evicts = policy.step_rule == StepRule::kEvict;
  if (policy.min_queries > 0 && !policy.has_controller()) {
    return invalid("min_queries",
                   "0 without a byte budget or target: nothing would end a probation",
                   0,
                   policy.min_queries);
  }
  if (policy.kind == PolicyKind::kEvict && !evicts)
    return invalid("step_rule", "QUIRE_STEP_EVICT for evicting policies");
  if (policy.kind != PolicyKind::kThreshold) return ok_status();
  if (evicts) return invalid("step_rule", "not QUIRE_STEP_EVICT for threshold policies");
  return ok_status();
}

}  // namespace detail

// Every field against its range, before a sequence opens. Names are those of quire_policy.
inline Status check_policy(const Policy& policy) {
  const auto in = [](auto value, std::uint32_t low, std::uint32_t high) {
    const auto number = static_cast<std::uint32_t>(value);
    return number >= low && number <= high;
  };
  if (!in(policy.kind, 1, 4)) return invalid("kind", "a quire_policy_kind from 1 to 4");
  if (!in(policy.statistic, 0, 4)) return invalid("statistic", "a quire_statistic from 0 to 4");
  if (!in(policy.significance, 1, 4))
    return invalid("significance", "a quire_significance from 1 to 4");
  if (!in(policy.step_rule, 1, 5)) return invalid("step_rule", "a quire_step_rule from 1 to 5");
  if (!in(policy.threshold_base, 1, 2))
    return invalid("threshold_base", "1 (length) or 2 (position)");
  if (!in(policy.pool, 0, 2)) return invalid("pool", "0 (none), 1 (average) or 2 (maximum)");
  if (policy.pool != PoolKind::kNone && (policy.pool_width % 2 == 0 || policy.pool_width > 63)) {
    return invalid("pool_width", "an odd number from 1 to 63", 0, policy.pool_width);
  }
  QUIRE_TRY(detail::check_thresholds(policy.alpha_high, policy.alpha_low));
  QUIRE_TRY(detail::check_budgets(policy));
  const bool scored =
      policy.kind == PolicyKind::kThreshold ||
      (policy.kind == PolicyKind::kEvict && policy.significance != Significance::kPosition);
  if (scored && policy.statistic == Statistic::kNone) {
    return invalid("statistic", "not none: this policy plans from scores");
  }
  if (policy.statistic != Statistic::kNone && policy.tail_queries == 0) {
    return invalid("tail_queries", "at least 1 for a policy with scores", 1, 0);
  }
  QUIRE_TRY(detail::check_step_rule(policy));
  if (policy.has_controller() && !in(policy.cadence, 1, kMaxCadence)) {
    return invalid(
        "cadence", "1 to 1024 steps with a byte budget or target", kMaxCadence, policy.cadence);
  }
  return ok_status();
}

}  // namespace quire
