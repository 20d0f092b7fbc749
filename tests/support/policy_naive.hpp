// The rules of a step over plain lists, written from their texts (DiffKV's table of five cases and
// its paper's decode step, H2O's and SnapKV's eviction, quire_budget's classification), and the
// judges that compare significances: exactly, or within an error with every outcome tried.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "quire/policy/policy.hpp"

namespace quire::test {

// A number that is known up to an error.
struct Range {
  double value = 0.0;
  double low = 0.0;
  double high = 0.0;

  static Range exact(double x) { return {x, x, x}; }
  static Range within(double x, double relative, double absolute) {
    const double error = std::fabs(x) * relative + absolute;
    return {x, x - error, x + error};
  }
};

struct NaiveToken {
  std::int32_t position = -1;
  Range significance;
};

using NaiveTier = std::vector<NaiveToken>;

// Worse: less significant, or as significant and later.
inline bool worse(const NaiveToken& a, const NaiveToken& b) {
  if (a.significance.value != b.significance.value)
    return a.significance.value < b.significance.value;
  return a.position > b.position;
}

class ExactJudge {
 public:
  bool below(const Range& a, const Range& b) const { return a.value < b.value; }
  std::size_t worst(const NaiveTier& tier) const {
    return static_cast<std::size_t>(std::min_element(tier.begin(), tier.end(), worse) -
                                    tier.begin());
  }
};

// Answers what is certain; what lies within the errors is a choice, and next() moves to the next
// combination of choices. The first combination is that of the values themselves.
class ChoosingJudge {
 public:
  bool below(const Range& a, const Range& b) {
    if (a.high < b.low) return true;
    if (a.low >= b.high) return false;
    return (choose(2) != 0) != (a.value < b.value);
  }

  std::size_t worst(const NaiveTier& tier) {
    double least = tier[0].significance.high;
    for (const NaiveToken& t : tier) least = std::min(least, t.significance.high);
    std::vector<std::size_t> candidates;
    for (std::size_t i = 0; i < tier.size(); ++i)
      if (tier[i].significance.low <= least) candidates.push_back(i);
    std::sort(candidates.begin(), candidates.end(), [&](std::size_t a, std::size_t b) {
      return worse(tier[a], tier[b]);
    });
    return candidates[choose(candidates.size())];
  }

  void rewind() { at_ = 0; }
  bool next() {
    digits_.resize(at_);
    while (!digits_.empty()) {
      if (++digits_.back().value < digits_.back().radix) return true;
      digits_.pop_back();
    }
    return false;
  }

 private:
  struct Digit {
    std::size_t value;
    std::size_t radix;
  };

  std::size_t choose(std::size_t radix) {
    if (radix == 1) return 0;
    if (at_ == digits_.size()) digits_.push_back({0, radix});
    return digits_[at_++].value;
  }

  std::vector<Digit> digits_;
  std::size_t at_ = 0;
};

struct NaiveInput {
  NaiveTier high;
  NaiveTier low;
  std::optional<NaiveToken> leaving;
  bool leaving_on_probation = false;
  Range high_threshold;
  Range low_threshold;
  std::size_t budget = 0;
};

enum class Fate { kNone, kHigh, kLow, kDropped };

struct NaiveStep {
  Fate leaving = Fate::kNone;
  std::int32_t high_victim = -1;
  Fate high_victim_to = Fate::kNone;
  std::int32_t low_victim = -1;  // always dropped

  friend bool operator==(const NaiveStep& a, const NaiveStep& b) {
    return a.leaving == b.leaving && a.high_victim == b.high_victim &&
           a.high_victim_to == b.high_victim_to && a.low_victim == b.low_victim;
  }
};

template <class JudgeT>
Fate naive_class(JudgeT& judge, const Range& significance, const NaiveInput& in) {
  if (judge.below(significance, in.low_threshold)) return Fate::kDropped;
  return judge.below(significance, in.high_threshold) ? Fate::kLow : Fate::kHigh;
}

template <class JudgeT>
NaiveStep naive_upstream(JudgeT& judge, const NaiveInput& in) {
  NaiveStep out;
  if (!in.leaving) return out;  // case 0
  out.leaving = Fate::kHigh;
  if (in.high.empty()) return out;  // case 4: no candidate counts as the largest number
  const NaiveToken& left = in.high[judge.worst(in.high)];
  const NaiveToken* right = in.low.empty() ? nullptr : &in.low[judge.worst(in.low)];
  const auto demote = [&] {
    out.high_victim = left.position;
    out.high_victim_to = Fate::kLow;
  };
  if (judge.below(left.significance, in.low_threshold) &&
      (right == nullptr || judge.below(left.significance, right->significance))) {  // case 1
    out.high_victim = left.position;
    out.high_victim_to = Fate::kDropped;
    return out;
  }
  if (!judge.below(left.significance, in.high_threshold)) return out;  // case 4
  if (right != nullptr && judge.below(right->significance, in.low_threshold))
    out.low_victim = right->position;  // case 2
  demote();
  return out;
}

template <class JudgeT>
NaiveStep naive_paper(JudgeT& judge, const NaiveInput& in) {
  NaiveStep out;
  if (!in.leaving) return out;
  out.leaving = naive_class(judge, in.leaving->significance, in);
  if (out.leaving == Fate::kHigh && !in.high.empty()) {
    const NaiveToken& worst = in.high[judge.worst(in.high)];
    const Fate fate = naive_class(judge, worst.significance, in);
    if (fate == Fate::kHigh) return out;
    out.high_victim = worst.position;
    out.high_victim_to = fate;
  }
  if (out.leaving == Fate::kLow && !in.low.empty()) {
    const NaiveToken& worst = in.low[judge.worst(in.low)];
    if (judge.below(worst.significance, in.low_threshold)) out.low_victim = worst.position;
  }
  return out;
}

template <class JudgeT>
NaiveStep naive_evict(JudgeT& judge, const NaiveInput& in) {
  NaiveStep out;
  if (!in.leaving) return out;
  out.leaving = Fate::kHigh;
  if (in.high.size() < in.budget) return out;
  NaiveTier all = in.high;
  all.push_back(*in.leaving);
  const NaiveToken& worst = all[judge.worst(all)];
  if (worst.position == in.leaving->position) {
    out.leaving = Fate::kDropped;
    return out;
  }
  out.high_victim = worst.position;
  out.high_victim_to = Fate::kDropped;
  return out;
}

template <class JudgeT>
NaiveStep naive_step(StepRule rule, JudgeT& judge, const NaiveInput& in) {
  NaiveStep out;
  switch (rule) {
    case StepRule::kUpstream: return naive_upstream(judge, in);
    case StepRule::kPaper: return naive_paper(judge, in);
    case StepRule::kEvict: return naive_evict(judge, in);
    case StepRule::kClassify:
      if (!in.leaving) return out;
      out.leaving =
          in.leaving_on_probation ? Fate::kHigh : naive_class(judge, in.leaving->significance, in);
      return out;
    case StepRule::kAppend: break;
  }
  out.leaving = in.leaving ? Fate::kHigh : Fate::kNone;
  return out;
}

// Queries that have seen a token: those from its own on, or, for a token of the prompt, from the
// first query of the tail pass on.
inline std::int32_t naive_queries(std::int32_t position,
                                  std::int32_t prompt,
                                  std::uint32_t tail,
                                  std::int32_t length) {
  std::int32_t count = 0;
  for (std::int32_t query = position; query < length; ++query) {
    const bool in_tail = std::int64_t{query} >= std::int64_t{prompt} - std::int64_t{tail};
    if (position >= prompt || in_tail) ++count;
  }
  return count;
}

// [first token, end) of every prompt that is complete.
using PromptList = std::vector<std::pair<std::int32_t, std::int32_t>>;

// Queries that count for a token: of its own prompt those of the tail pass, else all from its own
// on.
inline std::int32_t listed_queries(const PromptList& prompts,
                                   std::uint32_t tail,
                                   std::int32_t position,
                                   std::int32_t length) {
  std::int32_t count = 0;
  for (std::int32_t query = position; query < length; ++query) {
    bool counts = true;
    for (const auto& [begin, end] : prompts) {
      const bool own = position >= begin && position < end && query < end;
      if (own && std::int64_t{query} < std::int64_t{end} - std::int64_t{tail}) counts = false;
    }
    count += counts ? 1 : 0;
  }
  return count;
}

}  // namespace quire::test
