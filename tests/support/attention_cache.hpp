// A cache fed with random tokens through quire.h, and what it holds as plain arrays (by
// quire_gather), so that attention of the cache can be compared with the oracle.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "quire/quire.hpp"
#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/gen.hpp"
#include "support/oracle.hpp"

namespace quire::test {

struct CacheSpec {
  quire_group_desc group = QUIRE_GROUP_DESC_INIT;
  quire_policy policy = QUIRE_POLICY_INIT;
  std::uint32_t sequences = 1;
  std::uint32_t max_tokens = 1024;
  std::uint32_t threads = 1;
  std::uint32_t splits = 16;
  std::uint64_t pages = 2000;

  CacheSpec(std::uint32_t recipe,
            std::uint32_t kv_heads,
            std::uint32_t per_group,
            std::uint32_t dim) {
    REQUIRE(quire_recipe_get(recipe, &policy, &group, nullptr) == QUIRE_OK);
    group.layers = 1;
    group.kv_heads = kv_heads;
    group.q_heads = kv_heads * per_group;
    group.layout.head_dim_k = group.layout.head_dim_v = dim;
  }

  void set_window(std::uint32_t window) { group.recent_window = policy.recent_window = window; }
  std::uint32_t dim_k() const { return group.layout.head_dim_k; }
  std::uint32_t dim_v() const { return group.layout.head_dim_v; }
};

// What one head holds.
struct PlainHead {
  std::vector<float> keys;
  std::vector<float> values;
  std::vector<std::int32_t> positions;
  double k_norm = 0.0;
  double v_max = 0.0;
};

// Arguments of an attention call that tests vary.
struct QuerySpec {
  std::uint32_t rows = 1;
  std::uint32_t splits = 1;
  std::uint32_t score_rows = 0;
  std::uint32_t lse_base_2 = 0;
  quire_rule rule = {};
};

struct QueryResult {
  std::vector<float> q;    // [sequences, rows, q_heads, dim_k]
  std::vector<float> out;  // [sequences, rows, q_heads, dim_v]
  std::vector<float> lse;  // [sequences, rows, q_heads]
};

class CacheBox {
 public:
  CacheBox(const CacheSpec& cache_spec, std::uint64_t seed) : spec(cache_spec), rng(seed) {
    quire_cache_desc desc = QUIRE_CACHE_DESC_INIT;
    desc.max_sequences = spec.sequences;
    desc.max_tokens = spec.max_tokens;
    desc.threads = spec.threads;
    desc.max_splits = spec.splits;
    desc.groups = &spec.group;
    desc.pages = spec.pages;
    need(Cache::create(desc, &cache));
  }

  static void need(const Result& result) {
    INFO(result.text());
    REQUIRE(result.ok());
  }

  std::int32_t open() {
    std::int32_t slot = -1;
    need(cache.open(spec.policy, &slot));
    return slot;
  }

  std::int32_t open_with(std::uint32_t prompt) {
    const std::int32_t slot = open();
    prefill(slot, prompt);
    return slot;
  }

  void prefill(std::int32_t slot, std::uint32_t tokens, const std::uint8_t* plan = nullptr) {
    const std::vector<float> k = make_rows(tokens, spec.group.kv_heads, spec.dim_k());
    const std::vector<float> v = make_rows(tokens, spec.group.kv_heads, spec.dim_v());
    const std::vector<float> q =
        rng.normals(std::size_t{tokens} * spec.group.q_heads * spec.dim_k());
    need(cache.prefill_begin(slot, tokens));
    for (std::uint32_t layer = 0; layer < spec.group.layers; ++layer) {
      quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
      args.slot = slot;
      args.layer = layer;
      args.k = rows_of(k.data());
      args.v = rows_of(v.data());
      args.q = rows_of(q.data());
      args.q_rows = tokens;
      args.plan = plan;
      args.parallel = parallel;
      need(cache.prefill_layer(args));
    }
    need(cache.prefill_end(slot));
  }

  // step_begin and append of every layer; `slots` may hold padding.
  void begin(const std::vector<std::int32_t>& slots) {
    need(cache.step_begin(slots.data(), static_cast<std::uint32_t>(slots.size())));
    const auto count = static_cast<std::uint32_t>(slots.size());
    new_keys = make_rows(count, spec.group.kv_heads, spec.dim_k());
    new_values = make_rows(count, spec.group.kv_heads, spec.dim_v());
    for (std::uint32_t layer = 0; layer < spec.group.layers; ++layer) append(layer);
  }

  void append(std::uint32_t layer) const {
    quire_append_args args = QUIRE_APPEND_ARGS_INIT;
    args.layer = layer;
    args.k = rows_of(new_keys.data());
    args.v = rows_of(new_values.data());
    args.parallel = parallel;
    need(cache.append(args));
  }

  // quire_attention of an open step with random queries, or with those of `given`.
  QueryResult attention(std::uint32_t batch, const QuerySpec& query, const float* given = nullptr) {
    QueryResult r = make_result(batch, query, given);
    quire_attention_args args = QUIRE_ATTENTION_ARGS_INIT;
    args.rows = query.rows;
    args.q = rows_of(r.q.data());
    args.out = rows_of(r.out.data());
    args.lse = r.lse.data();
    args.lse_base_2 = query.lse_base_2;
    args.splits = query.splits;
    args.score_rows = query.score_rows;
    args.rule = query.rule;
    args.parallel = parallel;
    need(cache.attention(args));
    return r;
  }

  QueryResult extend(std::int32_t slot,
                     std::int32_t first_position,
                     const QuerySpec& query,
                     const float* given = nullptr) {
    QueryResult r = make_result(1, query, given);
    quire_extend_args args = QUIRE_EXTEND_ARGS_INIT;
    args.slot = slot;
    args.rows = query.rows;
    args.first_position = first_position;
    args.q = rows_of(r.q.data());
    args.out = rows_of(r.out.data());
    args.lse = r.lse.data();
    args.lse_base_2 = query.lse_base_2;
    args.splits = query.splits;
    args.rule = query.rule;
    args.parallel = parallel;
    need(cache.extend(args));
    return r;
  }

  // A whole decode step of one sequence with one scored attention.
  QueryResult step(std::int32_t slot, const QuerySpec& query) {
    begin({slot});
    const QueryResult r = attention(1, query);
    need(cache.step_end());
    return r;
  }

  std::uint32_t length(std::int32_t slot) const { return cache.info(slot).tokens; }

  PlainHead head(std::int32_t slot, std::uint32_t kv_head, std::uint32_t layer = 0) const {
    PlainHead out;
    std::uint32_t count = 0;
    quire_gather_args args = QUIRE_GATHER_ARGS_INIT;
    args.slot = slot;
    args.layer = layer;
    args.head = kv_head;
    args.count = &count;
    need(cache.gather(args));
    out.keys.resize(std::size_t{count} * spec.dim_k());
    out.values.resize(std::size_t{count} * spec.dim_v());
    out.positions.resize(count);
    if (count == 0) return out;
    args.capacity = count;
    args.k = rows_of(out.keys.data());
    args.v = rows_of(out.values.data());
    args.positions = out.positions.data();
    need(cache.gather(args));
    for (std::uint32_t t = 0; t < count; ++t)
      out.k_norm = std::max(out.k_norm, norm(out.keys.data() + t * spec.dim_k(), spec.dim_k()));
    out.v_max = largest(out.values.data(), static_cast<std::int64_t>(out.values.size()));
    return out;
  }

  std::vector<float> scores(std::int32_t slot, std::uint32_t kv_head) const {
    std::uint32_t count = 0;
    quire_query_args args = QUIRE_QUERY_ARGS_INIT;
    args.slot = slot;
    args.head = kv_head;
    args.count = &count;
    need(cache.query(args));
    std::vector<float> out(count);
    args.capacity = count;
    args.scores = out.data();
    need(cache.query(args));
    return out;
  }

  CacheSpec spec;
  Rng rng;
  Cache cache;
  std::vector<float> new_keys;  // of the open step, [batch, kv_heads, dim_k]
  std::vector<float> new_values;
  const quire_parallel* parallel = nullptr;  // of every call
  float k_mean = 0.0f;                       // of every channel of later tokens
  float v_mean = 0.0f;

 private:
  std::vector<float> make_rows(std::uint32_t count, std::uint32_t heads, std::uint32_t dim) {
    const bool keys = next_is_key_;
    next_is_key_ = !next_is_key_;
    return rng.normals(std::size_t{count} * heads * dim, 1.0f, keys ? k_mean : v_mean);
  }

  QueryResult make_result(std::uint32_t batch, const QuerySpec& query, const float* given) {
    QueryResult r;
    const std::size_t lanes = std::size_t{batch} * query.rows * spec.group.q_heads;
    if (given == nullptr) {
      r.q = rng.normals(lanes * spec.dim_k(), 1.5f);
    } else {
      r.q.assign(given, given + lanes * spec.dim_k());
    }
    r.out.assign(lanes * spec.dim_v(), std::nanf(""));
    r.lse.assign(lanes, std::nanf(""));
    return r;
  }

  bool next_is_key_ = true;
};

inline float scale_of(const CacheSpec& spec, const quire_rule& rule) {
  return rule.scale > 0.0f ? rule.scale : 1.0f / std::sqrt(static_cast<float>(spec.dim_k()));
}

inline OracleResult oracle_of(const CacheSpec& spec,
                              const PlainHead& head,
                              const quire_rule& rule,
                              const float* q,
                              std::uint32_t q_head,
                              std::int32_t position) {
  OracleProblem problem;
  problem.q = q;
  problem.k = head.keys.data();
  problem.v = head.values.data();
  problem.n = static_cast<std::int64_t>(head.positions.size());
  problem.dim_k = problem.k_stride = spec.dim_k();
  problem.dim_v = problem.v_stride = spec.dim_v();
  problem.positions = head.positions.data();
  problem.query_position = position;
  problem.scale = static_cast<double>(scale_of(spec, rule));
  problem.soft_cap = static_cast<double>(rule.soft_cap);
  problem.sliding_window = rule.sliding_window;
  if (rule.alibi_slopes != nullptr)
    problem.alibi_slope = static_cast<double>(rule.alibi_slopes[q_head]);
  problem.has_sink = rule.sink_logits != nullptr;
  if (problem.has_sink) problem.sink_logit = static_cast<double>(rule.sink_logits[q_head]);
  return oracle_attention(problem);
}

inline AttentionScale norms_of(const CacheSpec& spec,
                               const PlainHead& head,
                               const quire_rule& rule,
                               const std::vector<float>& q,
                               std::int32_t position) {
  AttentionScale s;
  s.dim = spec.dim_k();
  s.n = static_cast<std::int64_t>(head.positions.size());
  s.k_norm = head.k_norm;
  s.v_max = head.v_max;
  s.scale = static_cast<double>(scale_of(spec, rule));
  for (std::size_t i = 0; i < q.size(); i += spec.dim_k())
    s.q_norm = std::max(s.q_norm, norm(q.data() + i, spec.dim_k()));
  s.soft_max_logit = static_cast<double>(rule.soft_cap);
  for (std::uint32_t h = 0; h < spec.group.q_heads; ++h) {
    const double slope =
        rule.alibi_slopes == nullptr ? 0.0 : static_cast<double>(rule.alibi_slopes[h]);
    const double sink =
        rule.sink_logits == nullptr ? 0.0 : static_cast<double>(rule.sink_logits[h]);
    s.soft_max_logit = std::max({s.soft_max_logit, std::fabs(slope) * position, std::fabs(sink)});
  }
  return s;
}

// Compares the rows of sequence `index` of a result with the oracle over what `slot` holds now.
inline void require_oracle(const CacheBox& box,
                           std::int32_t slot,
                           std::uint32_t index,
                           const QuerySpec& query,
                           const QueryResult& r,
                           std::int32_t first_position) {
  const CacheSpec& spec = box.spec;
  const std::uint32_t group = spec.group.q_heads / spec.group.kv_heads;
  const double unit = query.lse_base_2 != 0 ? 1.0 / std::log(2.0) : 1.0;
  for (std::uint32_t h = 0; h < spec.group.kv_heads; ++h) {
    const PlainHead head = box.head(slot, h);
    const auto last = first_position + static_cast<std::int32_t>(query.rows);
    const AttentionScale s = norms_of(spec, head, query.rule, r.q, last);
    for (std::uint32_t row = 0; row < query.rows; ++row) {
      for (std::uint32_t q_head = h * group; q_head < (h + 1) * group; ++q_head) {
        const std::size_t lane =
            (std::size_t{index} * query.rows + row) * spec.group.q_heads + q_head;
        const OracleResult want = oracle_of(spec,
                                            head,
                                            query.rule,
                                            r.q.data() + lane * spec.dim_k(),
                                            q_head,
                                            first_position + static_cast<std::int32_t>(row));
        INFO("sequence " << index << " row " << row << " query head " << q_head);
        if (std::isinf(want.lse)) {
          REQUIRE(r.lse[lane] == -std::numeric_limits<float>::infinity());
        } else {
          const double error = std::fabs(static_cast<double>(r.lse[lane]) - want.lse * unit);
          REQUIRE(error <= unit * lse_tolerance(s));
        }
        double worst = 0.0;
        for (std::uint32_t d = 0; d < spec.dim_v(); ++d) {
          const auto got = static_cast<double>(r.out[lane * spec.dim_v() + d]);
          const double error = std::fabs(got - want.out[d]);
          worst = error <= worst || std::isnan(worst) ? worst : error;
        }
        REQUIRE(worst <= (std::isinf(want.lse) ? 0.0 : output_tolerance(s)));
      }
    }
  }
}

}  // namespace quire::test
