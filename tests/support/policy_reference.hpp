// What one head of a policy should hold, in plain arrays: its own scores in double, its own tiers.
// A decision that a score error of the promised size could turn is compared as such, never skipped.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/policy_naive.hpp"
#include "support/policy_rig.hpp"

namespace quire::test {

inline constexpr std::uint32_t kRefHigh = 0;
inline constexpr std::uint32_t kRefLow = 1;
inline constexpr std::uint32_t kRefGone = 254;
inline constexpr std::uint32_t kRefRing = 255;

struct ReferenceToken {
  std::uint32_t tier = kRefGone;
  double score = 0.0;
};

// How far the library's stored scores may be from the reference's.
struct ScoreError {
  double relative = 0.0;
  double per_query = 0.0;  // probabilities that may count as 0

  static ScoreError of(const Stream& stream, std::uint32_t statistic) {
    const AttentionScale s = stream.attention_scale();
    const double power = statistic == QUIRE_STATISTIC_MEAN_SQUARE ? 2.0 : 1.0;
    const double sums =
        (stream.shape.tokens + stream.shape.group) * kFloatEps;  // of queries and heads
    return {power * score_tolerance(s) + sums, std::exp(-32.0)};
  }
};

// How the probabilities of the query heads of a group become one number for one query.
inline double statistic_of(std::uint32_t statistic, const double* p, std::uint32_t group) {
  double sum = 0.0;
  double squares = 0.0;
  double most = 0.0;
  for (std::uint32_t g = 0; g < group; ++g) {
    sum += p[g];
    squares += p[g] * p[g];
    most = std::max(most, p[g]);
  }
  switch (statistic) {
    case QUIRE_STATISTIC_MEAN_SUM: return sum / group;
    case QUIRE_STATISTIC_MEAN_SQUARE: return squares / group;
    default: return most;
  }
}

// Softmax of one query over n keys in double; keys are [n][stride].
inline std::vector<double> softmax_of(const float* q,
                                      const float* keys,
                                      std::size_t n,
                                      std::size_t stride,
                                      std::size_t dim,
                                      double scale) {
  std::vector<double> p(n);
  double most = -std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < n; ++i) {
    double dot = 0.0;
    for (std::size_t d = 0; d < dim; ++d)
      dot += static_cast<double>(q[d]) * static_cast<double>(keys[i * stride + d]);
    p[i] = dot * scale;
    most = std::max(most, p[i]);
  }
  double sum = 0.0;
  for (double& x : p) sum += x = std::exp(x - most);
  for (double& x : p) x /= sum;
  return p;
}

class ReferenceHead {
 public:
  ReferenceHead(const RigSpec& rig_spec, ScoreError score_error)
      : error(score_error), spec(&rig_spec) {}

  std::int32_t sinks() const { return static_cast<std::int32_t>(spec->sinks()); }
  std::int32_t window_begin(std::int32_t length) const {
    return std::max(length - static_cast<std::int32_t>(spec->window()), sinks());
  }
  bool in_ring(std::int32_t position, std::int32_t length) const {
    return position < sinks() || position >= window_begin(length);
  }
  bool scored() const { return spec->policy.statistic != QUIRE_STATISTIC_NONE; }

  // Queries behind the score of a token when `length` tokens have been queries.
  std::int32_t queries(std::int32_t position, std::int32_t length) const {
    const std::int64_t first = std::int64_t{prompt} - std::int64_t{spec->policy.tail_queries};
    const bool of_prompt = position < prompt && first > position;
    return length - (of_prompt ? static_cast<std::int32_t>(first) : position);
  }
  bool on_probation(std::int32_t position, std::int32_t length) const {
    return queries(position, length) < static_cast<std::int32_t>(spec->policy.min_queries);
  }

  Range significance(double score, std::int32_t position, std::int32_t length) const {
    const double n = std::max(queries(position, length), 1);
    const Range sum = Range::within(score, error.relative, n * error.per_query);
    switch (spec->policy.significance) {
      case QUIRE_POSITION: return Range::exact(position);
      case QUIRE_SUM: return sum;
      case QUIRE_ROOT_MEAN:
        return {std::sqrt(sum.value / n),
                std::sqrt(std::max(sum.low, 0.0) / n),
                std::sqrt(sum.high / n)};
      default: return {sum.value / n, sum.low / n, sum.high / n};
    }
  }
  Range significance(std::int32_t position, std::int32_t length) const {
    return significance(tokens[static_cast<std::size_t>(position)].score, position, length);
  }

  // factor * alpha / base with the roundings of fp32.
  static Range threshold(float alpha, double factor, std::int32_t base) {
    if (base <= 0) return Range::exact(0.0);
    return Range::within(factor * static_cast<double>(alpha) / base, 8.0 * kFloatEps, 0.0);
  }

  // Tiers that a token may end in by the threshold rule, most wanted first.
  std::vector<std::uint32_t> classes(const Range& s, const Range& high, const Range& low) const {
    const auto tier = [&](double x, double h, double l) {
      return x < l ? kRefGone : (x < h ? kRefLow : kRefHigh);
    };
    const std::uint32_t wanted = tier(s.value, high.value, low.value);
    std::vector<std::uint32_t> all = {wanted};
    const std::uint32_t best = tier(s.high, high.low, low.low);
    const std::uint32_t least = tier(s.low, high.high, low.high);
    for (const std::uint32_t t : {kRefHigh, kRefLow, kRefGone})
      if (t >= best && t <= least && t != wanted) all.push_back(t);
    return all;
  }

  NaiveInput step_input(std::int32_t length, double factor, std::size_t budget) const {
    NaiveInput in;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto position = static_cast<std::int32_t>(i);
      if (tokens[i].tier == kRefHigh) in.high.push_back({position, significance(position, length)});
      if (tokens[i].tier == kRefLow) in.low.push_back({position, significance(position, length)});
    }
    const std::int32_t leaving = window_begin(length);
    if (window_begin(length + 1) > leaving) {
      const bool stored = leaving < length;  // without a window it is the new token itself
      in.leaving = NaiveToken{
          leaving, stored ? significance(leaving, length) : significance(0.0, leaving, length)};
      in.leaving_on_probation = on_probation(leaving, length);
    }
    in.high_threshold = threshold(alpha_high, factor, length);
    in.low_threshold = threshold(alpha_low, factor, length);
    in.budget = budget;
    return in;
  }

  std::vector<ReferenceToken> tokens;  // by position
  std::vector<double> ranking;         // of the prompt: scores, smoothed where the policy smooths
  std::int32_t prompt = 0;
  float alpha_high = 0.0f;
  float alpha_low = 0.0f;
  ScoreError error;
  const RigSpec* spec;
};

// Scores of a prompt: the last queries against all keys, sums per query head or per query, the
// statistic, the smoothing, each by its definition.
class PromptScorer {
 public:
  PromptScorer(const Stream& stream, const RigSpec& spec, std::uint32_t tokens)
      : stream_(stream), spec_(spec), tokens_(tokens) {}

  void score(std::uint32_t layer, std::uint32_t head, ReferenceHead& out) const {
    const std::vector<std::vector<double>> sums = sums_of(layer, head);
    const std::vector<double> scores = reduce(sums);
    for (std::uint32_t t = 0; t < tokens_; ++t) out.tokens[t].score = scores[t];
    if (spec_.policy.pool == 0) {
      out.ranking = scores;
      return;
    }
    std::vector<std::vector<double>> smooth;
    for (const std::vector<double>& one : sums) smooth.push_back(smoothed(one));
    out.ranking = reduce(smooth);
  }

 private:
  bool reduces_last() const {
    return spec_.policy.statistic == QUIRE_STATISTIC_MAX_SUM ||
           spec_.policy.statistic == QUIRE_STATISTIC_MEAN_SUM;
  }

  std::vector<std::vector<double>> sums_of(std::uint32_t layer, std::uint32_t head) const {
    const std::uint32_t group = stream_.shape.group;
    const std::uint32_t dim = stream_.shape.dim;
    std::vector<std::vector<double>> sums(reduces_last() ? group : 1,
                                          std::vector<double>(tokens_, 0.0));
    const std::uint32_t rows = std::min(spec_.policy.tail_queries, tokens_);
    for (std::uint32_t query = tokens_ - rows; query < tokens_; ++query) {
      std::vector<std::vector<double>> p;
      for (std::uint32_t g = 0; g < group; ++g) {
        p.push_back(softmax_of(stream_.q(layer, query) + (head * group + g) * dim,
                               stream_.k(layer, 0) + head * dim,
                               query + 1,
                               std::size_t{stream_.shape.kv_heads} * dim,
                               dim,
                               stream_.scale()));
      }
      for (std::uint32_t t = 0; t <= query; ++t) {
        std::vector<double> column(group);
        for (std::uint32_t g = 0; g < group; ++g) column[g] = p[g][t];
        if (!reduces_last())
          sums[0][t] += statistic_of(spec_.policy.statistic, column.data(), group);
        for (std::uint32_t g = 0; reduces_last() && g < group; ++g) sums[g][t] += column[g];
      }
    }
    return sums;
  }

  std::vector<double> reduce(const std::vector<std::vector<double>>& sums) const {
    if (!reduces_last()) return sums[0];
    std::vector<double> out(tokens_);
    std::vector<double> column(sums.size());
    for (std::uint32_t t = 0; t < tokens_; ++t) {
      for (std::size_t g = 0; g < sums.size(); ++g) column[g] = sums[g][t];
      out[t] = statistic_of(
          spec_.policy.statistic, column.data(), static_cast<std::uint32_t>(sums.size()));
    }
    return out;
  }

  // Zeros beyond the borders; an average always divides by the width.
  std::vector<double> smoothed(const std::vector<double>& x) const {
    const auto reach = static_cast<std::int64_t>(spec_.policy.pool_width / 2);
    std::vector<double> out(x.size(), 0.0);
    for (std::int64_t t = 0; t < static_cast<std::int64_t>(x.size()); ++t) {
      double& y = out[static_cast<std::size_t>(t)];
      for (std::int64_t i = t - reach; i <= t + reach; ++i) {
        const bool inside = i >= 0 && i < static_cast<std::int64_t>(x.size());
        const double value = inside ? x[static_cast<std::size_t>(i)] : 0.0;
        y = spec_.policy.pool == 2 ? std::max(y, value) : y + value / spec_.policy.pool_width;
      }
    }
    return out;
  }

  const Stream& stream_;
  const RigSpec& spec_;
  std::uint32_t tokens_;
};

}  // namespace quire::test
