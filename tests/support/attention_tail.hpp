// A tail pass and its oracle: all probabilities of the last query rows in double, no tiles, then
// sums, statistic and smoothing by their definitions.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "src/backend.hpp"
#include "support/attention_formats.hpp"
#include "support/attention_head.hpp"
#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/oracle.hpp"

namespace quire::test {

class TailProblem {
 public:
  struct Result {
    std::vector<float> scores;  // [kv_heads, tokens]
    std::vector<float> pooled;
  };

  TailProblem(std::uint32_t token_count,
              std::uint32_t row_count,
              std::uint32_t head_count,
              std::uint32_t group_size,
              std::uint32_t head_dim,
              Rng& rng)
      : tokens(token_count),
        rows(row_count),
        kv_heads(head_count),
        group(group_size),
        dim(head_dim) {
    k = rng.normals(std::size_t{tokens} * kv_heads * dim);
    q = rng.normals(std::size_t{rows} * q_heads() * dim, 1.5f);
    rule.scale = 1.0f / std::sqrt(static_cast<float>(dim));
  }

  // A past in a ring and two tiers, with holes, behind which the prompt begins.
  void add_past(std::uint32_t count, std::uint32_t index, Rng& rng) {
    past = count;
    for (std::uint32_t head = 0; head < kv_heads; ++head) {
      HeadSpec spec = walk_spec(index + head, dim, dim, static_cast<std::int32_t>(count));
      spec.fields = TokenFields{};
      held.push_back(std::make_unique<TestHead>(spec, rng));
    }
  }

  std::uint32_t q_heads() const { return kv_heads * group; }
  std::uint32_t length() const { return past + tokens; }

  Result run(const Backend& backend) const {
    Result result;
    result.scores.assign(std::size_t{kv_heads} * length(), std::nanf(""));
    result.pooled.assign(pool == PoolKind::kNone ? 0 : result.scores.size(), std::nanf(""));
    const std::vector<float> lse = natural_lse();
    TailCall call;
    call.k = {k.data(), DType::kF32, 0, std::int64_t{kv_heads} * dim, dim};
    call.q = {q.data(), DType::kF32, 0, std::int64_t{q_heads()} * dim, dim};
    call.lse = give_lse ? lse.data() : nullptr;
    call.tokens = tokens;
    std::vector<HeadView> views;
    for (const auto& head : held) views.push_back(head->view());
    call.first = past;
    call.held = held.empty() ? nullptr : views.data();
    call.q_rows = rows;
    call.kv_heads = kv_heads;
    call.group = group;
    call.head_dim = dim;
    call.rule = rule;
    call.statistic = statistic;
    call.pool = pool;
    call.pool_width = pool_width;
    call.scores = result.scores.data();
    call.pooled = pool == PoolKind::kNone ? nullptr : result.pooled.data();
    call.parallel = parallel;
    const std::uint32_t width = parallel.run == nullptr ? 1 : std::min(parallel.width, kv_heads);
    const std::uint64_t bytes = backend.tail_workspace({dim, group, width, length(), rows});
    const Bytes workspace(bytes + 256);
    call.workspace = {workspace.data(), bytes};
    backend.tail_scores(call);
    for (std::uint64_t i = bytes; i < workspace.size(); ++i) REQUIRE(workspace.data()[i] == 0xff);
    return result;
  }

  // Probability of key t for row r of query head h; [kv_heads * group, rows, length].
  std::vector<double> probabilities() const {
    std::vector<double> p;
    for (std::uint32_t h = 0; h < q_heads(); ++h) {
      for (std::uint32_t r = 0; r < rows; ++r) {
        const OracleResult row = attend(h, r);
        p.insert(p.end(), row.p.begin(), row.p.end());
      }
    }
    return p;
  }

  // Largest error of scores and pooled scores as a share of the tolerance.
  double deviation(const Result& got) const {
    double worst = 0.0;
    const std::vector<double> p = probabilities();
    const double relative = relative_tolerance();
    for (std::uint32_t head = 0; head < kv_heads; ++head) {
      const std::vector<std::vector<double>> sums = sums_of(p, head);
      const auto check = [&](const std::vector<double>& want, const std::vector<float>& all) {
        for (std::uint32_t t = 0; t < length(); ++t) {
          const double error =
              std::fabs(static_cast<double>(all[std::size_t{head} * length() + t]) - want[t]);
          const double tolerance = relative * want[t] + rows * std::exp(-87.0);
          worst = std::max(worst,
                           error == 0.0 ? 0.0 : (error <= tolerance ? error / tolerance : 1.0e9));
        }
      };
      check(reduce(sums), got.scores);
      if (pool != PoolKind::kNone) check(pooled(sums), got.pooled);
    }
    return worst;
  }

  std::uint32_t tokens;
  std::uint32_t past = 0;
  std::vector<std::unique_ptr<TestHead>> held;  // [kv_heads], or none
  std::uint32_t rows;
  std::uint32_t kv_heads;
  std::uint32_t group;
  std::uint32_t dim;
  std::vector<float> k;  // [tokens, kv_heads, dim]
  std::vector<float> q;  // [rows, q_heads, dim]
  AttentionRule rule;
  Statistic statistic = Statistic::kMaxSum;
  PoolKind pool = PoolKind::kNone;
  std::uint32_t pool_width = 0;
  bool give_lse = false;
  Parallel parallel;

 private:
  OracleResult attend(std::uint32_t q_head, std::uint32_t row) const {
    std::vector<float> keys;
    std::vector<std::int32_t> positions;
    if (!held.empty()) {
      keys = held[q_head / group]->keys;
      positions = held[q_head / group]->positions;
    }
    for (std::uint32_t t = 0; t < tokens; ++t) {
      const float* key = k.data() + (std::size_t{t} * kv_heads + q_head / group) * dim;
      keys.insert(keys.end(), key, key + dim);
      positions.push_back(static_cast<std::int32_t>(past + t));
    }
    OracleProblem problem;
    problem.q = q.data() + (std::size_t{row} * q_heads() + q_head) * dim;
    problem.k = keys.data();
    problem.n = static_cast<std::int64_t>(positions.size());
    problem.dim_k = dim;
    problem.k_stride = dim;
    problem.positions = positions.data();
    problem.query_position = static_cast<std::int32_t>(length()) - static_cast<std::int32_t>(rows) +
                             static_cast<std::int32_t>(row);
    problem.scale = static_cast<double>(rule.scale);
    problem.soft_cap = static_cast<double>(rule.soft_cap);
    problem.sliding_window = rule.sliding_window;
    if (rule.alibi_slopes != nullptr)
      problem.alibi_slope = static_cast<double>(rule.alibi_slopes[q_head]);
    problem.has_sink = rule.sink_logits != nullptr;
    if (problem.has_sink) problem.sink_logit = static_cast<double>(rule.sink_logits[q_head]);
    OracleResult result = oracle_attention(problem);
    std::vector<double> dense(length(), 0.0);  // 0 for what is not held
    for (std::size_t i = 0; i < positions.size(); ++i)
      dense[static_cast<std::size_t>(positions[i])] = result.p[i];
    result.p = dense;
    return result;
  }

  std::vector<float> natural_lse() const {
    std::vector<float> lse;
    for (std::uint32_t r = 0; r < rows; ++r)
      for (std::uint32_t h = 0; h < q_heads(); ++h)
        lse.push_back(static_cast<float>(attend(h, r).lse));
    return lse;
  }

  bool per_head() const {
    return statistic == Statistic::kMaxSum || statistic == Statistic::kMeanSum;
  }

  // Sums over the rows: [group][tokens] per query head, or [1][tokens] of what a row gives.
  std::vector<std::vector<double>> sums_of(const std::vector<double>& p, std::uint32_t head) const {
    std::vector<std::vector<double>> sums(per_head() ? group : 1,
                                          std::vector<double>(length(), 0.0));
    for (std::uint32_t r = 0; r < rows; ++r) {
      for (std::uint32_t t = 0; t < length(); ++t) {
        double most = 0.0;
        double squares = 0.0;
        for (std::uint32_t g = 0; g < group; ++g) {
          const double x = p[((std::size_t{head} * group + g) * rows + r) * length() + t];
          if (per_head()) sums[g][t] += x;
          most = std::max(most, x);
          squares += x * x / group;
        }
        if (statistic == Statistic::kMaxFirst) sums[0][t] += most;
        if (statistic == Statistic::kMeanSquare) sums[0][t] += squares;
      }
    }
    return sums;
  }

  std::vector<double> reduce(const std::vector<std::vector<double>>& sums) const {
    std::vector<double> out(length(), 0.0);
    for (const std::vector<double>& head : sums) {
      for (std::uint32_t t = 0; t < length(); ++t) {
        if (statistic == Statistic::kMeanSum) {
          out[t] += head[t] / group;
        } else {
          out[t] = std::max(out[t], head[t]);
        }
      }
    }
    return out;
  }

  // Smoothing comes before the group is reduced where sums are per head.
  std::vector<double> pooled(const std::vector<std::vector<double>>& sums) const {
    std::vector<std::vector<double>> smooth;
    const auto reach = static_cast<std::int64_t>(pool_width / 2);
    for (const std::vector<double>& head : sums) {
      std::vector<double> out(length(), 0.0);
      for (std::int64_t t = 0; t < length(); ++t) {
        for (std::int64_t i = std::max<std::int64_t>(t - reach, 0);
             i <= std::min<std::int64_t>(t + reach, std::int64_t{length()} - 1);
             ++i) {
          double& x = out[static_cast<std::size_t>(t)];
          const double value = head[static_cast<std::size_t>(i)];
          x = pool == PoolKind::kMaximum ? std::max(x, value) : x + value / pool_width;
        }
      }
      smooth.push_back(out);
    }
    return reduce(smooth);
  }

  // Of a sum of probabilities: logits and LSE in fp32, sums of rows and heads.
  double relative_tolerance() const {
    AttentionScale s;
    s.dim = dim;
    s.n = length();
    s.scale = static_cast<double>(rule.scale);
    for (std::size_t i = 0; i < k.size(); i += dim)
      s.k_norm = std::max(s.k_norm, norm(k.data() + i, dim));
    for (const auto& head : held) s.k_norm = std::max(s.k_norm, head->k_norm);
    for (std::size_t i = 0; i < q.size(); i += dim)
      s.q_norm = std::max(s.q_norm, norm(q.data() + i, dim));
    s.soft_max_logit = static_cast<double>(rule.soft_cap);
    for (std::uint32_t h = 0; h < q_heads(); ++h) {
      const double slope =
          rule.alibi_slopes == nullptr ? 0.0 : static_cast<double>(rule.alibi_slopes[h]);
      const double sink =
          rule.sink_logits == nullptr ? 0.0 : static_cast<double>(rule.sink_logits[h]);
      s.soft_max_logit = std::max({s.soft_max_logit, std::fabs(slope) * length(), std::fabs(sink)});
    }
    const double sums = (static_cast<double>(rows) + group + 16.0) * kFloatEps;
    const double p = logit_tolerance(s) + lse_tolerance(s);
    return (statistic == Statistic::kMeanSquare ? 2.0 : 1.0) * p + sums;
  }
};

}  // namespace quire::test
