// Ragged batches with padding. Oracle: attention in double over what quire_gather returns, and the
// same sequence alone for bits.
#include "support/attention_cache.hpp"
#include "support/attention_threads.hpp"

namespace quire {
namespace {

using test::CacheBox;
using test::CacheSpec;
using test::QueryResult;
using test::QuerySpec;

CacheSpec batch_spec(std::uint32_t recipe) {
  CacheSpec spec(recipe, 2, 2, 64);
  spec.sequences = 7;
  spec.set_window(24);
  spec.policy.alpha_high = 2.0f;
  spec.policy.alpha_low = 0.5f;
  if (spec.policy.budget_tokens != 0) spec.policy.budget_tokens = 70;
  return spec;
}

constexpr std::uint32_t kLengths[] = {1, 300, 17, 64, 2, 129};

TEST_CASE("sequences of a ragged batch in any order equal the oracle", "[attention][batch]") {
  for (const std::uint32_t recipe : {1u, 3u, 5u, 7u, 8u}) {
    CacheBox box(batch_spec(recipe), recipe);
    INFO(box.rng.describe() << " recipe " << recipe);
    for (const std::uint32_t length : kLengths) box.open_with(length);
    box.open();  // slot 6: empty until its first step
    const std::vector<std::vector<std::int32_t>> orders = {
        {0, 1, 2, 3, 4, 5, 6}, {-1, 5, 3, -1, 1}, {6}, {4, -1}, {2, 0, 6, 5, -1, 1}};
    for (const std::vector<std::int32_t>& slots : orders) {
      box.begin(slots);
      QuerySpec query;
      query.rows = 1 + static_cast<std::uint32_t>(slots.size()) % 3;
      query.splits = static_cast<std::uint32_t>(slots.size()) % 4;
      const auto batch = static_cast<std::uint32_t>(slots.size());
      const QueryResult result = box.attention(batch, query);
      for (std::uint32_t i = 0; i < batch; ++i) {
        if (slots[i] >= 0) {
          const auto position = static_cast<std::int32_t>(box.length(slots[i]));
          test::require_oracle(box, slots[i], i, query, result, position);
          continue;
        }
        for (std::size_t lane = i * query.rows * 4; lane < (i + 1) * query.rows * 4; ++lane) {
          REQUIRE(result.lse[lane] == -std::numeric_limits<float>::infinity());
          for (std::size_t d = 0; d < 64; ++d) REQUIRE(result.out[lane * 64 + d] == 0.0f);
        }
      }
      CacheBox::need(box.cache.step_end());
    }
  }
}

TEST_CASE("a batch of nothing but padding gives zeros", "[attention][batch]") {
  CacheBox box(batch_spec(QUIRE_RECIPE_KEEP_ALL), 1);
  box.begin({-1, -1});
  const QueryResult result = box.attention(2, QuerySpec());
  for (const float x : result.out) REQUIRE(x == 0.0f);
  for (const float x : result.lse) REQUIRE(x == -std::numeric_limits<float>::infinity());
  CacheBox::need(box.cache.step_end());
}

TEST_CASE("queries of padding rows are not looked at", "[attention][batch]") {
  CacheBox box(batch_spec(QUIRE_RECIPE_KEEP_ALL), 2);
  const std::int32_t slot = box.open_with(40);
  box.begin({-1, slot});
  std::vector<float> q = box.rng.normals(2 * 4 * 64);
  std::fill(q.begin(), q.begin() + 4 * 64, std::nanf(""));
  const QueryResult result = box.attention(2, QuerySpec(), q.data());
  for (const float x : result.out) REQUIRE(std::isfinite(x));
  CacheBox::need(box.cache.step_end());
}

// One sequence in a cache of its own and the same one among others: all that follows has equal
// bits.
TEST_CASE("a sequence has the same bits alone and in a batch", "[attention][batch]") {
  for (const std::uint32_t recipe : {1u, 3u, 5u, 7u, 8u}) {
    CacheBox alone(batch_spec(recipe), 77);
    CacheBox others(batch_spec(recipe), 78);
    INFO("recipe " << recipe);
    for (const std::uint32_t length : kLengths) others.open_with(length);
    others.rng = test::Rng(77);
    const std::int32_t in_batch = others.open_with(111);
    const std::int32_t single = alone.open_with(111);
    QuerySpec query;
    query.splits = 4;
    query.score_rows = 1;
    for (int step = 0; step < 40; ++step) {
      alone.begin({single});
      const QueryResult a = alone.attention(1, query);
      // The batch gets the same token and query in its second row.
      const std::vector<std::int32_t> slots = {step % 6, in_batch, -1, (step + 2) % 6};
      CacheBox::need(others.cache.step_begin(slots.data(), 4));
      others.new_keys = others.rng.normals(4 * 2 * 64);
      others.new_values = others.rng.normals(4 * 2 * 64);
      std::copy(alone.new_keys.begin(), alone.new_keys.end(), others.new_keys.begin() + 2 * 64);
      std::copy(
          alone.new_values.begin(), alone.new_values.end(), others.new_values.begin() + 2 * 64);
      others.append(0);
      std::vector<float> q = others.rng.normals(4 * 4 * 64);
      std::copy(a.q.begin(), a.q.end(), q.begin() + 4 * 64);
      const QueryResult b = others.attention(4, query, q.data());
      INFO("step " << step);
      REQUIRE(std::equal(a.out.begin(), a.out.end(), b.out.begin() + 4 * 64));
      REQUIRE(std::equal(a.lse.begin(), a.lse.end(), b.lse.begin() + 4));
      REQUIRE(alone.scores(single, 1) == others.scores(in_batch, 1));
      CacheBox::need(alone.cache.step_end());
      CacheBox::need(others.cache.step_end());
    }
  }
}

// Prompt, steps and attention of a cache on threads, against the same on none.
TEST_CASE("a cache gives the same bits on any workers", "[attention][batch]") {
  CacheSpec spec = batch_spec(QUIRE_RECIPE_QUIRE_BUDGET);
  spec.threads = 8;
  std::vector<QueryResult> want;
  std::vector<float> want_scores;
  for (const std::uint32_t width : {0u, 1u, 2u, 3u, 8u}) {
    test::Workers workers(std::max(width, 1u), test::Order::kThreads);
    const quire_parallel parallel = workers.c_parallel();
    CacheBox box(spec, 5);
    if (width > 0) box.parallel = &parallel;
    for (const std::uint32_t length : kLengths) box.open_with(length);
    std::vector<QueryResult> got;
    QuerySpec query;
    query.splits = 3;
    for (int step = 0; step < 20; ++step) {
      box.begin({0, 1, 2, 3, 4, 5});
      got.push_back(box.attention(6, query));
      CacheBox::need(box.cache.step_end());
      query.rows = 1 + static_cast<std::uint32_t>(got.size()) % 3;
    }
    got.push_back(box.extend(1, 400, query));
    INFO("width " << width);
    REQUIRE(workers.most_tasks() <= std::max(width, 1u));
    if (width > 1) REQUIRE(workers.most_tasks() > 1);
    if (width == 0) {
      want = got;
      want_scores = box.scores(1, 1);
    }
    for (std::size_t i = 0; i < got.size(); ++i) {
      REQUIRE(got[i].out == want[i].out);
      REQUIRE(got[i].lse == want[i].lse);
    }
    REQUIRE(box.scores(1, 1) == want_scores);
  }
}

// Sequences of one cache may have policies with and without scores.
TEST_CASE("policies mix in one batch and score only their own", "[attention][batch]") {
  CacheSpec spec = batch_spec(QUIRE_RECIPE_DIFFKV_UPSTREAM);
  CacheBox box(spec, 6);
  INFO(box.rng.describe());
  box.open_with(100);
  quire_group_desc unused = QUIRE_GROUP_DESC_INIT;
  for (const std::uint32_t recipe : {QUIRE_RECIPE_KEEP_ALL, QUIRE_RECIPE_STREAMING_LLM}) {
    REQUIRE(quire_recipe_get(recipe, &box.spec.policy, &unused, nullptr) == QUIRE_OK);
    box.spec.policy.sink_tokens = QUIRE_NONE;
    box.spec.policy.recent_window = 24;
    box.open_with(100);
  }
  for (int step = 0; step < 30; ++step) {
    box.begin({1, 0, 2});
    const std::vector<float> before = box.scores(0, 0);
    QuerySpec query;
    query.score_rows = 1;
    const QueryResult result = box.attention(3, query);
    for (std::uint32_t i = 0; i < 3; ++i) {
      const std::int32_t slot = i == 0 ? 1 : (i == 1 ? 0 : 2);
      test::require_oracle(box, slot, i, query, result, 100 + step);
      for (const float x : box.scores(slot, 1)) REQUIRE((x == 0.0f || slot == 0));
    }
    REQUIRE(box.scores(0, 0) != before);
    CacheBox::need(box.cache.step_end());
  }
}

// Rows of many small pages: both ends of the table run over several chunks of 32 ids.
TEST_CASE("long rows of small pages equal the oracle", "[attention][batch]") {
  CacheSpec spec = batch_spec(QUIRE_RECIPE_FOREIGN);
  spec.group.layout.page_bytes = 2048;
  spec.max_tokens = 2000;
  CacheBox box(spec, 7);
  INFO(box.rng.describe());
  const std::uint32_t tokens = 1900;
  std::vector<std::uint8_t> plan(2 * tokens);
  for (std::uint8_t& tier : plan) tier = static_cast<std::uint8_t>(box.rng.below(2));
  const std::int32_t slot = box.open();
  box.prefill(slot, tokens, plan.data());
  REQUIRE(box.cache.info(slot).live_pages > 2 * (33 + 33));
  QuerySpec query;
  query.rows = 3;
  for (const std::uint32_t splits : {0u, 1u, 16u}) {
    query.splits = splits;
    const QueryResult result = box.extend(slot, 1900, query);
    test::require_oracle(box, slot, 0, query, result, 1900);
  }
}

}  // namespace
}  // namespace quire
