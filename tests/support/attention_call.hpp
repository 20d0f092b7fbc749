// One attention call of a backend over heads of attention_head.hpp, its result, and the comparison
// of all of it (output, LSE, scores) with the oracle in double.
#pragma once

#include <functional>
#include <vector>

#include "quire/attention/score_stage.hpp"
#include "src/backend.hpp"
#include "support/attention_head.hpp"
#include "support/catch.hpp"
#include "support/oracle.hpp"

namespace quire::test {

struct HeadCall {
  std::vector<TestHead*> heads;  // [sequences, kv_heads]
  std::uint32_t kv_heads = 1;
  std::uint32_t group = 1;
  std::uint32_t rows = 1;
  std::uint32_t score_rows = 0;
  std::uint32_t splits = 0;
  Statistic statistic = Statistic::kNone;
  bool lse_base_2 = false;
  AttentionRule rule;               // scale 0: 1 / sqrt(dim_k)
  std::vector<float> q;             // [sequences, rows, q_heads, dim_k]
  std::vector<std::int32_t> first;  // [sequences] position of row 0; empty: length - 1
  Parallel parallel;

  std::uint32_t sequences() const { return static_cast<std::uint32_t>(heads.size()) / kv_heads; }
  std::uint32_t q_heads() const { return kv_heads * group; }
  const HeadSpec& spec() const { return heads[0]->spec; }
  std::int32_t position(std::uint32_t sequence) const {
    return first.empty() ? heads[sequence * kv_heads]->spec.length - 1 : first[sequence];
  }
  float scale() const {
    return rule.scale > 0.0f ? rule.scale : 1.0f / std::sqrt(static_cast<float>(spec().dim_k));
  }
  std::size_t lane(std::uint32_t sequence, std::uint32_t row, std::uint32_t q_head) const {
    return (std::size_t{sequence} * rows + row) * q_heads() + q_head;
  }
  void random_queries(Rng& rng, float size) {
    q = rng.normals(std::size_t{sequences()} * rows * q_heads() * spec().dim_k, size);
  }
};

struct HeadResult {
  std::vector<float> out;  // [sequences, rows, q_heads, dim_v]
  std::vector<float> lse;  // [sequences, rows, q_heads]
  std::vector<HeadState> states;
};

inline AttentionShape shape_of(const HeadCall& call) {
  AttentionShape shape;
  shape.head_dim_k = call.spec().dim_k;
  shape.head_dim_v = call.spec().dim_v;
  shape.group = call.group;
  shape.rows = call.rows;
  shape.score_rows = call.score_rows;
  shape.splits = std::max(call.splits, 1u);
  shape.width = call.parallel.run == nullptr ? 1 : call.parallel.width;
  shape.max_units = call.heads.size();
  for (const TestHead* head : call.heads) {
    const HeadView v = head->view();
    shape.max_segments = std::max<std::uint64_t>(shape.max_segments, v.segment_count());
    shape.max_tokens = std::max<std::uint64_t>(shape.max_tokens, head->count());
    shape.k_groups = std::max(shape.k_groups, group_count(head->spec.ring.k, head->spec.dim_k));
    for (std::uint32_t t = 0; t < v.tier_count; ++t)
      shape.k_groups = std::max(shape.k_groups, group_count(v.tiers[t].format.k, head->spec.dim_k));
  }
  return shape;
}

// `adjust` may change units (policies, states) and the call before it runs.
inline HeadResult attend(const Backend& backend,
                         const HeadCall& call,
                         const std::function<void(AttentionCall&)>& adjust = {}) {
  HeadResult result;
  const std::size_t lanes = std::size_t{call.sequences()} * call.rows * call.q_heads();
  const float poison = bits_float(0x7fc00000u);
  result.out.assign(lanes * call.spec().dim_v, poison);
  result.lse.assign(lanes, poison);
  result.states.assign(call.heads.size(), HeadState{});
  std::vector<AttentionUnit> units(call.heads.size());
  for (std::size_t u = 0; u < units.size(); ++u) {
    units[u].view = call.heads[u]->view();
    units[u].sequence = static_cast<std::uint32_t>(u) / call.kv_heads;
    units[u].kv_head = static_cast<std::uint32_t>(u) % call.kv_heads;
    units[u].position = call.position(units[u].sequence);
    units[u].statistic = call.statistic;
    if (call.score_rows > 0) units[u].state = &result.states[u];
  }
  AttentionCall work;
  work.units = units.data();
  work.unit_count = static_cast<std::uint32_t>(units.size());
  work.rows = call.rows;
  work.q_heads = call.q_heads();
  work.group = call.group;
  const std::int64_t q_row = std::int64_t{call.q_heads()} * call.spec().dim_k;
  const std::int64_t o_row = std::int64_t{call.q_heads()} * call.spec().dim_v;
  work.q = {call.q.data(), DType::kF32, call.rows * q_row, q_row, call.spec().dim_k};
  work.out = {result.out.data(), DType::kF32, call.rows * o_row, o_row, call.spec().dim_v};
  work.lse = result.lse.data();
  work.lse_base_2 = call.lse_base_2;
  work.rule = call.rule;
  work.rule.scale = call.scale();
  work.score_rows = call.score_rows;
  work.splits = call.splits;
  work.parallel = call.parallel;
  const std::uint64_t bytes = backend.attention_workspace(shape_of(call));
  const Bytes workspace(bytes + 256);
  work.workspace = {workspace.data(), bytes};
  if (adjust) adjust(work);
  backend.attention(work);
  for (std::uint64_t i = bytes; i < workspace.size(); ++i) REQUIRE(workspace.data()[i] == 0xff);
  return result;
}

inline OracleResult oracle_of(const HeadCall& call,
                              std::uint32_t unit,
                              std::uint32_t row,
                              std::uint32_t g) {
  const TestHead& head = *call.heads[unit];
  const std::uint32_t sequence = unit / call.kv_heads;
  const std::uint32_t q_head = unit % call.kv_heads * call.group + g;
  OracleProblem problem;
  problem.q = call.q.data() + call.lane(sequence, row, q_head) * head.spec.dim_k;
  problem.k = head.keys.data();
  problem.v = head.values.data();
  problem.n = head.count();
  problem.dim_k = problem.k_stride = head.spec.dim_k;
  problem.dim_v = problem.v_stride = head.spec.dim_v;
  problem.positions = head.positions.data();
  problem.query_position = call.position(sequence) + static_cast<std::int32_t>(row);
  problem.scale = static_cast<double>(call.scale());
  problem.soft_cap = static_cast<double>(call.rule.soft_cap);
  problem.sliding_window = call.rule.sliding_window;
  if (call.rule.alibi_slopes != nullptr)
    problem.alibi_slope = static_cast<double>(call.rule.alibi_slopes[q_head]);
  problem.has_sink = call.rule.sink_logits != nullptr;
  if (problem.has_sink) problem.sink_logit = static_cast<double>(call.rule.sink_logits[q_head]);
  return oracle_attention(problem);
}

inline AttentionScale scale_of(const HeadCall& call, std::uint32_t unit) {
  const TestHead& head = *call.heads[unit];
  AttentionScale s;
  s.k_norm = head.k_norm;
  s.v_max = head.v_max;
  s.scale = static_cast<double>(call.scale());
  s.dim = head.spec.dim_k;
  s.n = head.count();
  for (std::size_t i = 0; i < call.q.size(); i += head.spec.dim_k)
    s.q_norm = std::max(s.q_norm, norm(call.q.data() + i, head.spec.dim_k));
  s.soft_max_logit = static_cast<double>(call.rule.soft_cap);
  for (std::uint32_t h = 0; h < call.q_heads(); ++h) {
    if (call.rule.alibi_slopes != nullptr)
      s.soft_max_logit =
          std::max(s.soft_max_logit,
                   std::fabs(static_cast<double>(call.rule.alibi_slopes[h])) * head.spec.length);
    if (call.rule.sink_logits != nullptr)
      s.soft_max_logit =
          std::max(s.soft_max_logit, std::fabs(static_cast<double>(call.rule.sink_logits[h])));
  }
  return s;
}

// Probabilities below this may count as 0: staged logits end 32 below the maximum of their tile.
inline double score_floor(std::uint32_t rows) {
  return rows * std::exp(-65534.0 / static_cast<double>(kStageSteps));
}

// Largest error of each kind, as a share of its tolerance: below 1 is right. NaN counts as wrong.
struct Deviation {
  double out = 0.0;
  double lse = 0.0;
  double score = 0.0;

  static void raise(double& worst, double error, double tolerance) {
    const double share = error <= tolerance ? error / tolerance : 1.0e9;
    worst = std::max(worst, error == 0.0 ? 0.0 : share);
  }
  double worst() const { return std::max({out, lse, score}); }
};

inline double expected_increment(Statistic statistic, const double* p, std::uint32_t group) {
  double sum = 0.0;
  double most = 0.0;
  double squares = 0.0;
  for (std::uint32_t g = 0; g < group; ++g) {
    sum += p[g];
    most = std::max(most, p[g]);
    squares += p[g] * p[g];
  }
  if (statistic == Statistic::kMeanSum) return sum / group;
  return statistic == Statistic::kMeanSquare ? squares / group : most;
}

// Oracle results of one unit, [rows, group].
inline std::vector<OracleResult> oracles_of(const HeadCall& call, std::uint32_t unit) {
  std::vector<OracleResult> all;
  for (std::uint32_t row = 0; row < call.rows; ++row)
    for (std::uint32_t g = 0; g < call.group; ++g) all.push_back(oracle_of(call, unit, row, g));
  return all;
}

inline void compare_outputs(const HeadCall& call,
                            const HeadResult& result,
                            std::uint32_t unit,
                            const std::vector<OracleResult>& oracle,
                            Deviation& worst) {
  const AttentionScale s = scale_of(call, unit);
  const std::uint32_t dim = call.heads[unit]->spec.dim_v;
  const double log_unit = call.lse_base_2 ? 1.0 / std::log(2.0) : 1.0;
  for (std::uint32_t row = 0; row < call.rows; ++row) {
    for (std::uint32_t g = 0; g < call.group; ++g) {
      const OracleResult& want = oracle[row * call.group + g];
      const std::size_t lane =
          call.lane(unit / call.kv_heads, row, unit % call.kv_heads * call.group + g);
      const bool empty = std::isinf(want.lse);
      for (std::uint32_t d = 0; d < dim; ++d) {
        const double error =
            std::fabs(static_cast<double>(result.out[lane * dim + d]) - want.out[d]);
        Deviation::raise(worst.out, error, empty ? 0.0 : output_tolerance(s));
      }
      const auto lse = static_cast<double>(result.lse[lane]);
      const double error = empty && lse == want.lse ? 0.0 : std::fabs(lse - want.lse * log_unit);
      Deviation::raise(worst.lse, error, empty ? 0.0 : log_unit * lse_tolerance(s));
    }
  }
}

// Scores that were 0 before the call.
inline void compare_scores(const HeadCall& call,
                           std::uint32_t unit,
                           const std::vector<OracleResult>& oracle,
                           Deviation& worst) {
  const AttentionScale s = scale_of(call, unit);
  const std::vector<float> scores = call.heads[unit]->scores();
  const double power = call.statistic == Statistic::kMeanSquare ? 2.0 : 1.0;
  std::vector<double> p(call.group);
  for (std::size_t t = 0; t < scores.size(); ++t) {
    double want = 0.0;
    for (std::uint32_t row = 0; row < call.score_rows; ++row) {
      for (std::uint32_t g = 0; g < call.group; ++g) p[g] = oracle[row * call.group + g].p[t];
      want += expected_increment(call.statistic, p.data(), call.group);
    }
    const double tolerance = power * score_tolerance(s) * want + score_floor(call.score_rows);
    Deviation::raise(worst.score, std::fabs(static_cast<double>(scores[t]) - want), tolerance);
  }
}

// Runs the call and compares everything; scores are reset before.
inline Deviation deviation(const Backend& backend, const HeadCall& call) {
  for (const TestHead* head : call.heads) {
    if (head->spec.fields.score) head->set_scores(0.0f);
  }
  const HeadResult result = attend(backend, call);
  Deviation worst;
  for (std::uint32_t u = 0; u < call.heads.size(); ++u) {
    const std::vector<OracleResult> oracle = oracles_of(call, u);
    compare_outputs(call, result, u, oracle, worst);
    if (call.score_rows > 0) compare_scores(call, u, oracle, worst);
  }
  return worst;
}

}  // namespace quire::test
