// Offsets and rotations are invisible to the engine: LSEs are those of the true logits, the V
// offset comes back once. Oracle: attention in double over the union of what the cache holds (by
// quire_gather) and of tokens that only the engine has, joined by quire_merge.
#include "support/attention_cache.hpp"

namespace quire {
namespace {

using test::CacheBox;
using test::CacheSpec;
using test::QueryResult;
using test::QuerySpec;

constexpr std::uint32_t kHeads = 2;  // KV heads
constexpr std::uint32_t kDim = 64;

// Formats with the given transforms on K and V in every tier.
CacheSpec transformed_spec(std::uint32_t k_transform, std::uint32_t v_transform) {
  CacheSpec spec(QUIRE_RECIPE_QUIRE_BUDGET, kHeads, 2, kDim);
  for (quire_format& format : spec.group.layout.tier) {
    format.k.transform = k_transform;
    format.v.transform = v_transform;
  }
  spec.set_window(16);
  return spec;
}

// Tokens of the engine's own, [count][dim] per KV head.
struct OwnTokens {
  std::vector<float> keys[kHeads];
  std::vector<float> values[kHeads];

  OwnTokens(std::uint32_t count, CacheBox& box) {
    for (std::uint32_t h = 0; h < kHeads; ++h) {
      keys[h] = box.rng.normals(std::size_t{count} * kDim, 1.0f, box.k_mean);
      values[h] = box.rng.normals(std::size_t{count} * kDim, 1.0f, box.v_mean);
    }
  }

  test::PlainHead head(std::uint32_t h) const {
    test::PlainHead own;
    own.keys = keys[h];
    own.values = values[h];
    own.positions.assign(keys[h].size() / kDim, 0);
    return own;
  }
};

test::PlainHead joined(test::PlainHead a, const test::PlainHead& b) {
  a.keys.insert(a.keys.end(), b.keys.begin(), b.keys.end());
  a.values.insert(a.values.end(), b.values.begin(), b.values.end());
  a.positions.insert(a.positions.end(), b.positions.begin(), b.positions.end());
  for (std::size_t t = 0; t < a.positions.size(); ++t)
    a.k_norm = std::max(a.k_norm, test::norm(a.keys.data() + t * kDim, kDim));
  a.v_max = test::largest(a.values.data(), static_cast<std::int64_t>(a.values.size()));
  return a;
}

// Merges the cache's part with the engine's, sinks last, and compares with the whole.
void check_merged(const CacheBox& box,
                  const OwnTokens& own,
                  const QueryResult& part,
                  const std::vector<float>* sinks) {
  quire_rule rule = {};
  std::vector<float> own_out(4 * kDim), own_lse(4), out(4 * kDim), lse(4);
  for (std::uint32_t h = 0; h < 4; ++h) {
    const test::OracleResult o =
        test::oracle_of(box.spec, own.head(h / 2), rule, part.q.data() + h * kDim, h, 1000);
    own_lse[h] = static_cast<float>(o.lse);
    for (std::uint32_t d = 0; d < kDim; ++d) own_out[h * kDim + d] = static_cast<float>(o.out[d]);
  }
  const quire_part parts[2] = {{rows_of(part.out.data()), part.lse.data(), 0, 0},
                               {rows_of(own_out.data()), own_lse.data(), 0, 0}};
  quire_merge_args args = QUIRE_MERGE_ARGS_INIT;
  args.parts = parts;
  args.part_count = 2;
  args.rows = 1;
  args.q_heads = 4;
  args.head_dim_v = kDim;
  args.sink_logits = sinks == nullptr ? nullptr : sinks->data();
  args.out = rows_of(out.data());
  args.lse = lse.data();
  REQUIRE(quire_merge(&args) == QUIRE_OK);
  if (sinks != nullptr) rule.sink_logits = sinks->data();
  for (std::uint32_t h = 0; h < 4; ++h) {
    const test::PlainHead all = joined(box.head(0, h / 2), own.head(h / 2));
    const test::AttentionScale s = test::norms_of(box.spec, all, rule, part.q, 1000);
    const test::OracleResult want =
        test::oracle_of(box.spec, all, rule, part.q.data() + h * kDim, h, 1000);
    INFO("query head " << h);
    REQUIRE(std::fabs(static_cast<double>(lse[h]) - want.lse) <= test::lse_tolerance(s));
    for (std::uint32_t d = 0; d < kDim; ++d) {
      const double error = std::fabs(static_cast<double>(out[h * kDim + d]) - want.out[d]);
      REQUIRE(error <= test::output_tolerance(s));
    }
  }
}

TEST_CASE("a cache part with offsets merges with an engine's part", "[attention][offset]") {
  for (std::uint32_t k_transform = 0; k_transform < 4; ++k_transform) {
    for (std::uint32_t v_transform = 0; v_transform < 4; ++v_transform) {
      CacheBox box(transformed_spec(k_transform, v_transform), 4 * k_transform + v_transform);
      INFO(box.rng.describe() << " transforms " << k_transform << " " << v_transform);
      box.k_mean = 2.0f;
      box.v_mean = -5.0f;
      box.open_with(150);
      const OwnTokens own(30, box);
      const std::vector<float> sinks = box.rng.normals(4, 2.0f);
      QuerySpec query;
      const QueryResult part = box.extend(0, 150, query);
      test::require_oracle(box, 0, 0, query, part, 150);
      check_merged(box, own, part, nullptr);
      check_merged(box, own, part, &sinks);
    }
  }
}

// Large offsets that the tokens do not have: a missing or doubled one cannot hide.
TEST_CASE("offsets given at open are undone once, with sinks", "[attention][offset]") {
  CacheSpec spec = transformed_spec(QUIRE_TRANSFORM_OFFSET, QUIRE_TRANSFORM_OFFSET);
  CacheBox box(spec, 50);
  INFO(box.rng.describe());
  const std::vector<float> k_offset = box.rng.normals(kHeads * kDim, 3.0f);
  const std::vector<float> v_offset = box.rng.normals(kHeads * kDim, 3.0f, 20.0f);
  quire_seq_open_args open = QUIRE_SEQ_OPEN_ARGS_INIT;
  open.policy = &spec.policy;
  open.k_offset = k_offset.data();
  open.v_offset = v_offset.data();
  std::int32_t slot = -1;
  CacheBox::need(box.cache.open(open, &slot));
  box.prefill(slot, 100);
  const std::vector<float> sinks = {1.0f, 2.0f, 3.0f, 4.0f};
  QuerySpec query;
  query.rule.sink_logits = sinks.data();
  query.rule.soft_cap = 6.0f;  // of the true logits, not of those without the offset
  for (std::uint32_t step = 0; step < 5; ++step) {
    box.begin({slot});
    query.lse_base_2 = step % 2;
    const QueryResult result = box.attention(1, query);
    test::require_oracle(box, slot, 0, query, result, static_cast<std::int32_t>(100 + step));
    CacheBox::need(box.cache.step_end());
  }
}

// All values equal: the output is that value whatever the weights are.
TEST_CASE("constant values come back exactly through offset and rotation", "[attention][offset]") {
  CacheSpec spec = transformed_spec(3, 3);
  CacheBox box(spec, 60);
  INFO(box.rng.describe());
  const std::int32_t slot = box.open();
  const std::uint32_t n = 80;
  const std::vector<float> k = box.rng.normals(n * kHeads * kDim);
  const std::vector<float> v(n * kHeads * kDim, -1.5f);
  const std::vector<float> q = box.rng.normals(n * 4 * kDim);
  CacheBox::need(box.cache.prefill_begin(slot, n));
  quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
  args.slot = slot;
  args.k = rows_of(k.data());
  args.v = rows_of(v.data());
  args.q = rows_of(q.data());
  args.q_rows = n;
  CacheBox::need(box.cache.prefill_layer(args));
  CacheBox::need(box.cache.prefill_end(slot));
  const QueryResult result = box.extend(slot, 80, QuerySpec());
  const double tolerance = 1.5 * test::kFloatEps * (n + 16.0);
  for (const float x : result.out) REQUIRE(std::fabs(static_cast<double>(x) + 1.5) <= tolerance);
}

}  // namespace
}  // namespace quire
