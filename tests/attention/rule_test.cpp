// Window, soft cap, ALiBi and sink logits by true position, on sequences whose policies have
// dropped and demoted tokens. Oracle: attention in double over what quire_gather returns.
#include "support/attention_cache.hpp"

namespace quire {
namespace {

using test::CacheBox;
using test::CacheSpec;
using test::QueryResult;
using test::QuerySpec;

// Policies that leave holes between the positions of what they keep.
CacheSpec dropping_spec(std::uint32_t recipe) {
  CacheSpec spec(recipe, 2, 2, 64);
  spec.set_window(16);
  spec.policy.alpha_high = 4.0f;
  spec.policy.alpha_low = 1.0f;
  if (spec.policy.budget_tokens != 0) spec.policy.budget_tokens = 60;
  return spec;
}

bool has_hole(const test::PlainHead& head, std::uint32_t length) {
  return head.positions.size() < length;
}

struct Rules {
  std::vector<float> slopes;
  std::vector<float> sinks;

  explicit Rules(test::Rng& rng)
      : slopes(rng.normals(4, 0.02f, 0.04f)), sinks(rng.normals(4, 2.0f)) {}

  quire_rule rule(std::uint32_t which) const {
    quire_rule r = {};
    if ((which & 1) != 0) r.sliding_window = 70;
    if ((which & 2) != 0) r.soft_cap = 4.0f;
    if ((which & 4) != 0) r.alibi_slopes = slopes.data();
    if ((which & 8) != 0) r.sink_logits = sinks.data();
    if ((which & 16) != 0) r.scale = 0.3f;
    return r;
  }
};

TEST_CASE("rules hold by true position while a policy drops tokens", "[attention][rule]") {
  for (const std::uint32_t recipe : {2u, 3u, 4u, 5u, 6u, 8u}) {
    CacheBox box(dropping_spec(recipe), recipe);
    INFO(box.rng.describe() << " recipe " << recipe);
    const Rules rules(box.rng);
    const std::int32_t slot = box.open_with(120);
    for (std::uint32_t step = 0; step < 64; ++step) {
      QuerySpec query;
      query.rule = rules.rule(step % 32);
      query.rows = 1 + step % 3;
      query.splits = step % 5;
      box.begin({slot});
      const QueryResult result = box.attention(1, query);
      INFO("step " << step);
      test::require_oracle(box, slot, 0, query, result, static_cast<std::int32_t>(120 + step));
      CacheBox::need(box.cache.step_end());
    }
    REQUIRE((recipe == 8 || has_hole(box.head(slot, 0), 184)));
  }
}

TEST_CASE("the LSE does not know the sinks, outputs and scores do", "[attention][rule]") {
  CacheSpec spec = dropping_spec(QUIRE_RECIPE_H2O);
  CacheBox plain(spec, 9);
  CacheBox with(spec, 9);
  INFO(plain.rng.describe());
  const std::vector<float> sinks = {3.0f, 4.0f, 5.0f, 6.0f};
  plain.open_with(50);
  with.open_with(50);
  plain.begin({0});
  with.begin({0});
  const std::vector<float> before = plain.scores(0, 0);
  QuerySpec query;
  const QueryResult a = plain.attention(1, query);
  query.rule.sink_logits = sinks.data();
  const QueryResult b = with.attention(1, query, a.q.data());
  REQUIRE(b.lse == a.lse);
  for (std::size_t h = 0; h < 4; ++h) {
    const double lse = static_cast<double>(a.lse[h]);
    const double share = 1.0 / (1.0 + std::exp(static_cast<double>(sinks[h]) - lse));
    const double relative = test::kFloatEps * (64.0 + 8.0 * (std::fabs(lse) + 6.0));
    for (std::size_t d = 0; d < 64; ++d) {
      const double want = share * static_cast<double>(a.out[h * 64 + d]);
      REQUIRE(std::fabs(static_cast<double>(b.out[h * 64 + d]) - want) <=
              relative * std::fabs(want));
    }
  }
  double less = 0.0;
  double more = 0.0;
  for (const float x : with.scores(0, 0)) less += static_cast<double>(x);
  for (const float x : plain.scores(0, 0)) more += static_cast<double>(x);
  REQUIRE(less < more);
  CacheBox::need(plain.cache.step_end());
  CacheBox::need(with.cache.step_end());
}

// By the last row the window has passed everything that is stored: sinks are out of it as well.
TEST_CASE("a window that hides everything gives 0 and leaves scores alone", "[attention][rule]") {
  CacheSpec spec = dropping_spec(QUIRE_RECIPE_DIFFKV_UPSTREAM);
  CacheBox box(spec, 10);
  INFO(box.rng.describe());
  const Rules rules(box.rng);
  const std::int32_t slot = box.open_with(90);
  box.begin({slot});
  const std::vector<float> before[2] = {box.scores(slot, 0), box.scores(slot, 1)};
  QuerySpec query;
  query.rows = 3;  // rows 1 and 2 see nothing, row 0 only itself
  query.rule = rules.rule(8 + 4 + 2);
  query.rule.sliding_window = 1;
  query.score_rows = QUIRE_NONE;
  const QueryResult result = box.attention(1, query);
  test::require_oracle(box, slot, 0, query, result, 90);
  for (std::size_t i = 4; i < 12; ++i)
    REQUIRE(result.lse[i] == -std::numeric_limits<float>::infinity());
  for (std::size_t i = 4 * 64; i < 12 * 64; ++i) REQUIRE(result.out[i] == 0.0f);
  query.rows = 1;
  query.score_rows = 1;
  box.attention(1, query);
  for (std::uint32_t h = 0; h < 2; ++h) {
    const std::vector<float> after = box.scores(slot, h);
    const std::vector<std::int32_t> positions = box.head(slot, h).positions;
    for (std::size_t t = 0; t < after.size(); ++t) {
      if (positions[t] == 90) {
        REQUIRE(after[t] > before[h][t]);
      } else {
        REQUIRE(after[t] == before[h][t]);  // bit for bit
      }
    }
  }
  CacheBox::need(box.cache.step_end());
}

// exp underflows far below the maximum; nothing may turn into NaN or Inf on the way.
TEST_CASE("logits of any size give finite outputs", "[attention][rule]") {
  for (const std::uint32_t recipe : {1u, 3u, 7u, 8u}) {
    for (const float size : {1.0e3f, 1.0e10f, 9.0e29f}) {
      CacheSpec spec = dropping_spec(recipe);
      CacheBox box(spec, 11);
      box.k_mean = 3.0f;
      const std::int32_t slot = box.open_with(101);
      box.begin({slot});
      std::vector<float> q(4 * 64);
      for (std::size_t i = 0; i < q.size(); ++i) q[i] = i < 128 ? -size : size;
      QuerySpec query;
      const QueryResult result = box.attention(1, query, q.data());
      INFO("recipe " << recipe << " size " << size);
      for (const float x : result.lse) REQUIRE(std::isfinite(x));
      for (const float x : result.out) REQUIRE(std::fabs(x) <= 16.0f);  // values are normal numbers
      for (std::uint32_t h = 0; h < 2; ++h) {
        double sum = 0.0;
        for (const float x : box.scores(slot, h)) sum += static_cast<double>(x);
        REQUIRE(std::isfinite(sum));
      }
      CacheBox::need(box.cache.step_end());
    }
  }
}

}  // namespace
}  // namespace quire
