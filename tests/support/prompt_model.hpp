// Later prompts against a slow model: what a head held before, the raw keys and queries of the
// text, and the rules from their texts, in double and over plain lists.
#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "support/lifecycle.hpp"
#include "support/policy_naive.hpp"

namespace quire::test {

// One head before a prompt: where its tokens are, and their keys as they are stored.
struct HeadBefore {
  std::map<std::int32_t, KeptToken> kept;
  std::map<std::int32_t, std::vector<float>> keys;
  std::set<std::int32_t> frozen;
};

inline HeadBefore head_before(const Rig& rig,
                              std::int32_t slot,
                              std::uint32_t layer,
                              std::uint32_t head) {
  HeadBefore out;
  for (const KeptToken& t : rig.kept(slot, layer, head)) out.kept[t.position] = t;
  const DecodedHead decoded = rig.gather(slot, layer, head);
  const std::uint32_t dim = rig.spec.group.layout.head_dim_k;
  for (std::size_t i = 0; i < decoded.positions.size(); ++i) {
    const float* key = decoded.keys.data() + i * dim;
    out.keys[decoded.positions[i]].assign(key, key + dim);
  }
  rig.state().refresh_shared(slot);
  const HeadView view = rig.view(slot, layer, head);
  for (std::uint32_t t = 0; t < view.tier_count; ++t)
    for (std::uint32_t i = 0; i < view.frozen[t]; ++i)
      out.frozen.insert(place_of(view, t, i).position());
  return out;
}

// A prompt [begin, length) whose last round starts at `first`.
struct TextPrompt {
  std::int32_t begin = 0;
  std::int32_t first = 0;
  std::int32_t length = 0;
  AttentionRule rule;
};

using KeyList = std::map<std::int32_t, const float*>;  // by position

inline KeyList keys_of(const Stream& stream,
                       const TextPrompt& prompt,
                       std::uint32_t layer,
                       std::uint32_t head,
                       const HeadBefore& before) {
  KeyList keys;
  for (const auto& [p, key] : before.keys) keys[p] = key.data();
  for (std::int32_t p = prompt.first; p < prompt.length; ++p)
    keys[p] = stream.k(layer, static_cast<std::uint32_t>(p)) + head * stream.shape.dim;
  return keys;
}

// Probabilities of one query at position `row`; returns its log-sum-exp.
inline double text_probabilities(const Stream& stream,
                                 const AttentionRule& rule,
                                 const KeyList& keys,
                                 const float* q,
                                 std::uint32_t q_head,
                                 std::int32_t row,
                                 std::map<std::int32_t, double>* p) {
  double most = -1e300;
  for (const auto& [position, key] : keys) {
    const bool behind = rule.sliding_window > 0 && row - position >= rule.sliding_window;
    if (position > row || behind) continue;
    double dot = 0.0;
    for (std::uint32_t d = 0; d < stream.shape.dim; ++d)
      dot += static_cast<double>(q[d]) * static_cast<double>(key[d]);
    double logit = dot * stream.scale();
    if (rule.alibi_slopes != nullptr)
      logit += static_cast<double>(rule.alibi_slopes[q_head]) * (position - row);
    (*p)[position] = logit;
    most = std::max(most, logit);
  }
  double sum = 0.0;
  for (auto& [position, x] : *p) sum += x = std::exp(x - most);
  for (auto& [position, x] : *p) x /= sum;
  return most + std::log(sum);
}

// Sums of the scored queries' probabilities for every position of one head, in double.
class PromptSums {
 public:
  PromptSums(const Stream& stream,
             const Policy& policy,
             const TextPrompt& prompt,
             std::uint32_t layer,
             std::uint32_t head,
             const HeadBefore& before)
      : policy_(policy), length_(static_cast<std::size_t>(prompt.length)) {
    group_ = stream.shape.group;
    const bool last =
        policy.statistic == Statistic::kMaxSum || policy.statistic == Statistic::kMeanSum;
    sums_.assign(last ? group_ : 1, std::vector<double>(length_, 0.0));
    const std::int64_t rows =
        std::min<std::int64_t>(policy.tail_queries, prompt.length - prompt.begin);
    const KeyList keys = keys_of(stream, prompt, layer, head, before);
    for (std::int64_t row = prompt.length - rows; row < prompt.length; ++row) {
      std::vector<std::map<std::int32_t, double>> p;
      for (std::uint32_t g = 0; g < group_; ++g) {
        const float* q = stream.q(layer, static_cast<std::uint32_t>(row)) +
                         (std::size_t{head} * group_ + g) * stream.shape.dim;
        p.emplace_back();
        text_probabilities(stream,
                           prompt.rule,
                           keys,
                           q,
                           head * group_ + g,
                           static_cast<std::int32_t>(row),
                           &p.back());
      }
      add(p, last);
    }
    factor_ = static_cast<double>(prompt.length - prompt.begin) / static_cast<double>(rows);
  }

  double factor() const { return factor_; }  // for tokens before the prompt
  double plain(std::int32_t position) const { return reduce(position, 0); }
  double pooled(std::int32_t position) const {
    return policy_.pool == PoolKind::kNone ? plain(position)
                                           : reduce(position, policy_.pool_width / 2);
  }

 private:
  void add(const std::vector<std::map<std::int32_t, double>>& p, bool per_head) {
    for (const auto& [position, unused] : p[0]) {
      const auto at = static_cast<std::size_t>(position);
      double most = 0.0, squares = 0.0;
      for (std::uint32_t g = 0; g < group_; ++g) {
        const double x = p[g].at(position);
        if (per_head) sums_[g][at] += x;
        most = std::max(most, x);
        squares += x * x / group_;
      }
      if (policy_.statistic == Statistic::kMaxFirst) sums_[0][at] += most;
      if (policy_.statistic == Statistic::kMeanSquare) sums_[0][at] += squares;
    }
  }

  double smooth(const std::vector<double>& x, std::int64_t at, std::int64_t reach) const {
    if (reach == 0) return x[static_cast<std::size_t>(at)];
    double out = 0.0;
    for (std::int64_t i = at - reach; i <= at + reach; ++i) {
      if (i < 0 || i >= static_cast<std::int64_t>(length_)) continue;
      const double y = x[static_cast<std::size_t>(i)];
      out = policy_.pool == PoolKind::kMaximum ? std::max(out, y) : out + y / policy_.pool_width;
    }
    return out;
  }

  double reduce(std::int64_t at, std::int64_t reach) const {
    double out = 0.0;
    for (const std::vector<double>& head : sums_) {
      const double x = smooth(head, at, reach);
      out = policy_.statistic == Statistic::kMeanSum ? out + x / group_ : std::max(out, x);
    }
    return out;
  }

  const Policy& policy_;
  std::size_t length_;
  std::uint32_t group_ = 1;
  double factor_ = 1.0;
  std::vector<std::vector<double>> sums_;
};

// Relative error of a sum of probabilities in fp32.
inline double sums_tolerance(const Stream& stream, const Policy& policy, std::int64_t rows) {
  const AttentionScale s = stream.attention_scale();
  const double p = logit_tolerance(s) + lse_tolerance(s);
  const double sums = (static_cast<double>(rows) + static_cast<double>(s.n) + 16.0) * kFloatEps;
  return (policy.statistic == Statistic::kMeanSquare ? 2.0 : 1.0) * p + sums;
}

// What one head must hold after a prompt.
class HeadAfter {
 public:
  HeadAfter(const Rig& rig,
            std::int32_t slot,
            std::uint32_t layer,
            std::uint32_t head,
            const HeadBefore& before,
            const PromptSums* sums,
            const TextPrompt& prompt,
            const PromptList& prompts,
            double tolerance)
      : before_(before),
        prompt_(prompt),
        slot_(rig.state().slots[slot]),
        state_(rig.state().head_state(slot, layer, head)) {
    for (const KeptToken& t : rig.kept(slot, layer, head)) after_[t.position] = t;
    budget_ = slot_.policy.kind != PolicyKind::kEvict
                  ? 0
                  : evict_tokens(slot_.policy,
                                 rig.state().admission(slot_.policy),
                                 static_cast<std::uint64_t>(prompt.length),
                                 std::uint64_t{layer} * rig.spec.group.kv_heads + head);
    for (std::int32_t p = 0; p < prompt.length; ++p) place(p, sums, prompts, tolerance);
  }

  // Empty when every token is where it may be, with the score it must have.
  std::string check() const {
    for (const auto& [p, token] : after_) {
      if (all_.count(p) == 0) return "token " + std::to_string(p) + " came back";
      const Expected& e = all_.at(p);
      const double score = static_cast<double>(token.score);
      if (score < e.score.low || score > e.score.high) return "score of token " + std::to_string(p);
    }
    for (const auto& [p, e] : all_) {
      const bool held = slot_.shape.holds(p, prompt_.length);
      if (held && tier_of(p) != 255) return "token " + std::to_string(p) + " is not in the ring";
      if (!held && tier_of(p) == 255) return "token " + std::to_string(p) + " is in the ring";
    }
    switch (slot_.policy.kind) {
      case PolicyKind::kThreshold: return check_thresholds();
      case PolicyKind::kEvict: return check_eviction();
      default: return check_kept();
    }
  }

 private:
  static constexpr std::uint32_t kGone = 254;

  struct Expected {
    std::uint32_t now = 0;  // where it was, or would enter
    bool frozen = false;
    Range score;
    Range significance;
    std::int32_t queries = 1;
  };

  std::uint32_t tier_of(std::int32_t p) const {
    const auto found = after_.find(p);
    return found == after_.end() ? kGone : found->second.tier;
  }

  void place(std::int32_t p, const PromptSums* sums, const PromptList& prompts, double tolerance) {
    const auto old = before_.kept.find(p);
    if (p < prompt_.first && old == before_.kept.end()) return;  // dropped before
    Expected e;
    double stored = 0.0;
    if (old != before_.kept.end()) {
      stored = static_cast<double>(old->second.score);
      if (old->second.tier != 255) e.now = old->second.tier;
    }
    e.frozen = before_.frozen.count(p) != 0;
    const double factor = p < prompt_.begin ? (sums == nullptr ? 0.0 : sums->factor()) : 1.0;
    const double inc = sums == nullptr || e.frozen ? 0.0 : factor * sums->plain(p);
    const double rank = sums == nullptr || e.frozen ? 0.0 : factor * sums->pooled(p);
    e.score = Range::within(stored + inc, 4.0 * kFloatEps, inc * tolerance + std::exp(-87.0));
    const Range ranked =
        Range::within(stored + rank, 4.0 * kFloatEps, rank * tolerance + std::exp(-87.0));
    e.queries = listed_queries(prompts, slot_.policy.tail_queries, p, prompt_.length);
    const auto significance = [&](double score) {
      const double n = e.queries;
      switch (slot_.policy.significance) {
        case Significance::kMean: return score / n;
        case Significance::kRootMean: return std::sqrt(std::max(score, 0.0) / n);
        case Significance::kSum: return score;
        case Significance::kPosition: break;
      }
      return static_cast<double>(p);
    };
    e.significance = {
        significance(ranked.value), significance(ranked.low), significance(ranked.high)};
    all_[p] = e;
  }

  bool movable(std::int32_t p, const Expected& e) const {
    return !e.frozen && !slot_.shape.holds(p, prompt_.length);
  }

  std::string check_kept() const {
    for (const auto& [p, e] : all_)
      if (!slot_.shape.holds(p, prompt_.length) && tier_of(p) != e.now)
        return "token " + std::to_string(p) + " moved";
    return "";
  }

  std::string check_thresholds() const {
    for (const auto& [p, e] : all_) {
      if (slot_.shape.holds(p, prompt_.length)) continue;
      const std::uint32_t got = tier_of(p);
      const bool probation = e.queries < static_cast<std::int64_t>(slot_.policy.min_queries);
      if (e.frozen || probation) {
        if (got != e.now) return "token " + std::to_string(p) + " moved";
        continue;
      }
      std::set<std::uint32_t> allowed;
      const bool own =
          p >= prompt_.begin && slot_.policy.threshold_base == ThresholdBase::kPosition;
      const Thresholds limit = thresholds_at(
          state_.alpha_high, state_.alpha_low, slot_.factor, own ? p : prompt_.length);
      for (const double s : {e.significance.low * (1.0 - 8.0 * kFloatEps),
                             e.significance.value,
                             e.significance.high * (1.0 + 8.0 * kFloatEps)}) {
        const std::uint32_t wanted = s < static_cast<double>(limit.low)    ? kGone
                                     : s < static_cast<double>(limit.high) ? 1u
                                                                           : 0u;
        allowed.insert(std::max(wanted, e.now));
      }
      if (allowed.count(got) == 0)
        return "token " + std::to_string(p) + " went from " + std::to_string(e.now) + " to " +
               std::to_string(got);
    }
    return "";
  }

  std::string check_eviction() const {
    std::uint64_t kept = 0, movable_count = 0, frozen = 0;
    double worst_kept = 1e300, best_gone = -1e300;
    for (const auto& [p, e] : all_) {
      if (slot_.shape.holds(p, prompt_.length)) continue;
      frozen += e.frozen ? 1 : 0;
      if (!movable(p, e)) continue;
      ++movable_count;
      if (tier_of(p) == kGone) {
        best_gone = std::max(best_gone, e.significance.low);
      } else {
        ++kept;
        worst_kept = std::min(worst_kept, e.significance.high);
        if (tier_of(p) != e.now) return "token " + std::to_string(p) + " changed its tier";
      }
    }
    const std::uint64_t room = budget_ > frozen ? budget_ - frozen : 0;
    if (kept != std::min(room, movable_count)) return "tokens kept: " + std::to_string(kept);
    if (best_gone > worst_kept) return "a more significant token went";
    return "";
  }

  const HeadBefore& before_;
  const TextPrompt& prompt_;
  const Slot& slot_;
  const HeadState& state_;
  std::uint64_t budget_ = 0;
  std::map<std::int32_t, KeptToken> after_;
  std::map<std::int32_t, Expected> all_;
};

}  // namespace quire::test
