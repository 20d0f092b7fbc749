// Several query rows of a step, and quire_extend with any number of rows. Oracle: attention in
// double over what quire_gather returns, each row at its true position; one row at a time for bits.
#include "support/attention_cache.hpp"

namespace quire {
namespace {

using test::CacheBox;
using test::CacheSpec;
using test::QueryResult;
using test::QuerySpec;

// Every recipe once: what they store differs in everything.
CacheSpec recipe_spec(std::uint32_t recipe) {
  CacheSpec spec(recipe, 2, 3, 64);
  spec.group.layout.head_dim_v = 80;
  spec.group.transform_seed = recipe;
  spec.set_window(20);
  spec.policy.alpha_high = 3.0f;  // demotes and drops much
  spec.policy.alpha_low = 1.0f;
  if (spec.policy.budget_tokens != 0) spec.policy.budget_tokens = 90;
  return spec;
}

TEST_CASE("rows of a step see the past at their true positions", "[attention][rows]") {
  for (std::uint32_t recipe = 1; recipe <= 9; ++recipe) {
    CacheBox box(recipe_spec(recipe), 10 + recipe);
    INFO(box.rng.describe() << " recipe " << recipe);
    const std::int32_t slot = box.open_with(130);
    for (std::uint32_t rows = 1; rows <= 16; rows += 3) {
      box.begin({slot});
      QuerySpec query;
      query.rows = rows;
      query.splits = rows % 4;
      query.lse_base_2 = rows % 2;
      query.rule.sliding_window = rows % 3 == 1 ? 37 : 0;
      const QueryResult result = box.attention(1, query);
      test::require_oracle(
          box, slot, 0, query, result, static_cast<std::int32_t>(box.length(slot)));
      test::CacheBox::need(box.cache.step_end());
    }
  }
}

TEST_CASE("scores of several rows add up and later rows can be left out", "[attention][rows]") {
  for (const std::uint32_t scored : {1u, 2u, 5u, QUIRE_NONE}) {
    CacheSpec spec = recipe_spec(QUIRE_RECIPE_DIFFKV_UPSTREAM);
    spec.policy.alpha_high = spec.policy.alpha_low = 0.0f;
    CacheBox box(spec, 20);
    INFO(box.rng.describe() << " score_rows " << scored);
    const std::int32_t slot = box.open_with(100);
    box.begin({slot});
    std::vector<float> before[2] = {box.scores(slot, 0), box.scores(slot, 1)};
    QuerySpec query;
    query.rows = 5;
    query.score_rows = scored;
    const QueryResult r = box.attention(1, query);
    const std::uint32_t rows = scored == QUIRE_NONE ? 0 : scored;
    for (std::uint32_t h = 0; h < 2; ++h) {
      const test::PlainHead head = box.head(slot, h);
      const test::AttentionScale s = test::norms_of(spec, head, query.rule, r.q, 105);
      std::vector<double> want(head.positions.size(), 0.0);
      for (std::uint32_t row = 0; row < rows; ++row) {
        std::vector<double> most(want.size(), 0.0);
        for (std::uint32_t q_head = 3 * h; q_head < 3 * h + 3; ++q_head) {
          const float* q = r.q.data() + (row * 6 + q_head) * 64;
          const auto position = static_cast<std::int32_t>(100 + row);
          const test::OracleResult o = test::oracle_of(spec, head, query.rule, q, q_head, position);
          for (std::size_t t = 0; t < most.size(); ++t) most[t] = std::max(most[t], o.p[t]);
        }
        for (std::size_t t = 0; t < most.size(); ++t) want[t] += most[t];
      }
      const std::vector<float> after = box.scores(slot, h);
      for (std::size_t t = 0; t < after.size(); ++t) {
        const double start = static_cast<double>(before[h][t]);
        const double tolerance = test::score_tolerance(s) * want[t] + 4.0 * test::kFloatEps * start;
        REQUIRE(std::fabs(static_cast<double>(after[t]) - start - want[t]) <= tolerance);
      }
    }
    test::CacheBox::need(box.cache.step_end());
  }
}

TEST_CASE("extend with many rows equals extend row by row", "[attention][extend]") {
  for (const std::uint32_t recipe : {1u, 3u, 7u, 8u}) {
    CacheBox box(recipe_spec(recipe), 30 + recipe);
    INFO(box.rng.describe() << " recipe " << recipe);
    const std::int32_t slot = box.open_with(150);
    for (const std::uint32_t rows : {1u, 2u, 15u, 16u, 17u, 33u, 100u}) {
      QuerySpec query;
      query.rows = rows;
      query.splits = 3;
      query.rule.sliding_window = rows % 2 == 0 ? 60 : 0;
      const QueryResult all = box.extend(slot, 150, query);
      test::require_oracle(box, slot, 0, query, all, 150);
      query.rows = 1;
      for (std::uint32_t row = 0; row < rows; ++row) {
        const QueryResult one = box.extend(
            slot, 150 + static_cast<std::int32_t>(row), query, all.q.data() + row * 6 * 64);
        INFO("row " << row << " of " << rows);
        REQUIRE(std::equal(one.out.begin(), one.out.end(), all.out.begin() + row * 6 * 80));
        REQUIRE(std::equal(one.lse.begin(), one.lse.end(), all.lse.begin() + row * 6));
      }
    }
  }
}

TEST_CASE("rows before the end see only their own past", "[attention][extend]") {
  for (const std::uint32_t recipe : {1u, 4u, 5u, 8u}) {
    CacheBox box(recipe_spec(recipe), 40 + recipe);
    INFO(box.rng.describe() << " recipe " << recipe);
    const std::int32_t slot = box.open_with(140);
    for (const std::int32_t first : {0, 1, 60, 119, 135}) {
      QuerySpec query;
      query.rows = 20;
      const QueryResult result = box.extend(slot, first, query);
      test::require_oracle(box, slot, 0, query, result, first);
    }
  }
}

TEST_CASE("extend writes no score and leaves the sequence as it is", "[attention][extend]") {
  CacheSpec spec = recipe_spec(QUIRE_RECIPE_H2O);
  CacheBox box(spec, 50);
  INFO(box.rng.describe());
  const std::int32_t slot = box.open_with(140);
  const std::vector<float> before = box.scores(slot, 0);
  QuerySpec query;
  query.rows = 40;
  box.extend(slot, 140, query);
  REQUIRE(box.scores(slot, 0) == before);
  REQUIRE(box.length(slot) == 140);
}

TEST_CASE("extend of an empty sequence gives zeros and minus infinity", "[attention][extend]") {
  CacheBox box(recipe_spec(QUIRE_RECIPE_KEEP_ALL), 60);
  const std::int32_t slot = box.open();
  QuerySpec query;
  query.rows = 18;
  const QueryResult result = box.extend(slot, 0, query);
  for (const float x : result.out) REQUIRE(x == 0.0f);
  for (const float x : result.lse) REQUIRE(x == -std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace quire
