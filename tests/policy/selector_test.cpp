// Oracle: closed forms and dense references of StreamingLLM, H2O and SnapKV; planted needles.
#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "support/catch.hpp"
#include "support/policy_reference.hpp"
#include "support/policy_rig.hpp"

namespace quire::test {
namespace {

StreamShape selector_shape(std::uint32_t tokens, std::uint32_t group = 2) {
  StreamShape shape;
  shape.layers = 1;
  shape.kv_heads = 2;
  shape.group = group;
  shape.tokens = tokens;
  return shape;
}

std::set<std::int32_t> positions(const Rig& rig, std::int32_t slot, std::uint32_t head) {
  std::set<std::int32_t> all;
  for (const KeptToken& t : rig.kept(slot, 0, head)) all.insert(t.position);
  return all;
}

// Sinks and the last of `budget` tokens.
std::set<std::int32_t> sinks_and_recent(std::uint32_t sinks,
                                        std::uint32_t budget,
                                        std::uint32_t n) {
  std::set<std::int32_t> all;
  for (std::uint32_t p = 0; p < n; ++p)
    if (p < sinks || p + (budget - sinks) >= n) all.insert(static_cast<std::int32_t>(p));
  return all;
}

TEST_CASE("streaming_llm holds the sinks and the last tokens, nothing else", "[policy][selector]") {
  const std::uint32_t sinks = GENERATE(0u, 1u, 4u);
  const std::uint32_t window = GENERATE(0u, 1u, 24u);
  const std::uint32_t prompt = GENERATE(0u, 3u, 30u, 200u);
  const std::uint32_t budget = sinks + window + GENERATE(0u, 1u, 50u);
  INFO("sinks " << sinks << " window " << window << " budget " << budget << " prompt " << prompt);
  if (budget == 0) return;  // no budget at all is refused
  Rng rng(8301);
  const Stream stream(selector_shape(prompt + 90), rng);
  RigSpec spec(QUIRE_RECIPE_STREAMING_LLM, stream.shape);
  spec.set_ring(sinks, window);
  spec.policy.budget_tokens = budget;
  Rig rig(spec);
  const std::int32_t slot = rig.open();
  if (prompt > 0) {
    rig.prompt(slot, stream, prompt);
    REQUIRE(positions(rig, slot, 1) == sinks_and_recent(sinks, budget, prompt));
  }
  for (std::uint32_t t = prompt; t < stream.shape.tokens; ++t) {
    rig.step(slot, stream, t);
    REQUIRE(positions(rig, slot, 0) == sinks_and_recent(sinks, budget, t + 1));
  }
}

TEST_CASE("streaming_llm takes constant memory over thousands of steps", "[policy][selector]") {
  constexpr std::uint32_t kSteps = 6000;
  StreamShape shape = selector_shape(500, 1);
  shape.dim = 16;
  Rng rng(8302);
  const Stream stream(shape, rng);
  RigSpec spec(QUIRE_RECIPE_STREAMING_LLM, shape);
  spec.set_ring(4, 16);
  spec.policy.budget_tokens = 100;
  spec.max_tokens = kSteps + 500;
  spec.pages = 2 * 6;  // of 16 tokens: 80 outside the ring, and one more
  spec.group.layout.page_bytes = 1536;
  Rig rig(spec);
  REQUIRE(rig.state().group.layout.tier[0].tokens == 16);
  const std::int32_t slot = rig.open();
  rig.prompt(slot, stream, 300);
  const std::uint64_t bytes = rig.cache.info(slot).total_bytes;
  for (std::uint32_t t = 0; t < kSteps; ++t) {
    rig.step(slot, stream, t % 500);
    REQUIRE(rig.cache.info(slot).total_bytes == bytes);
  }
  REQUIRE(positions(rig, slot, 1) == sinks_and_recent(4, 100, 300 + kSteps));
}

// The sums of all probabilities a token got from every query that ran while it was there.
class NaiveH2o {
 public:
  NaiveH2o(const Stream& input, std::uint32_t kv_head, std::uint32_t token_budget)
      : stream_(input), head_(kv_head), budget_(token_budget) {}

  // Attention of a query over what is kept, in the cache's decoded vectors.
  void add(std::uint32_t query, const DecodedHead& decoded) {
    const std::uint32_t dim = stream_.shape.dim;
    sums_.resize(std::max<std::size_t>(sums_.size(), query + 1), 0.0);
    for (std::uint32_t g = 0; g < stream_.shape.group; ++g) {
      const std::vector<double> p =
          softmax_of(stream_.q(0, query) + (head_ * stream_.shape.group + g) * dim,
                     decoded.keys.data(),
                     decoded.positions.size(),
                     dim,
                     dim,
                     stream_.scale());
      for (std::size_t i = 0; i < p.size(); ++i)
        sums_[static_cast<std::size_t>(decoded.positions[i])] += p[i] / stream_.shape.group;
    }
  }

  // The heavy hitters among all but the last `recent` tokens, of those still there.
  std::set<std::int32_t> keep(const std::set<std::int32_t>& there,
                              std::uint32_t recent,
                              std::uint32_t n) const {
    std::vector<std::int32_t> old;
    std::set<std::int32_t> kept;
    for (const std::int32_t p : there) {
      if (static_cast<std::uint32_t>(p) + recent >= n)
        kept.insert(p);
      else
        old.push_back(p);
    }
    std::stable_sort(
        old.begin(), old.end(), [&](std::int32_t a, std::int32_t b) { return sum(a) > sum(b); });
    for (std::size_t i = 0; i < old.size() && kept.size() < budget_; ++i) kept.insert(old[i]);
    return kept;
  }

  double sum(std::int32_t p) const { return sums_[static_cast<std::size_t>(p)]; }

 private:
  const Stream& stream_;
  std::uint32_t head_;
  std::uint32_t budget_;
  std::vector<double> sums_;
};

TEST_CASE("h2o's online eviction equals a naive reference for 512 steps", "[policy][selector]") {
  constexpr std::uint32_t kRecent = 16;
  constexpr std::uint32_t kBudget = 64;
  constexpr std::uint32_t kSteps = 512;
  Rng rng(8303);
  INFO(rng.describe());
  const Stream stream(selector_shape(kSteps), rng);
  RigSpec spec(QUIRE_RECIPE_H2O, stream.shape);
  spec.set_ring(0, kRecent);
  spec.policy.budget_tokens = kBudget;
  Rig rig(spec);
  const std::int32_t slot = rig.open();
  const double error = score_tolerance(stream.attention_scale()) + kSteps * kFloatEps;
  std::vector<NaiveH2o> naive;
  for (std::uint32_t h = 0; h < 2; ++h) naive.emplace_back(stream, h, kBudget);
  std::set<std::int32_t> there[2];
  std::size_t turned = 0;
  for (std::uint32_t t = 0; t < kSteps; ++t) {
    rig.step(slot, stream, t);
    for (std::uint32_t h = 0; h < 2; ++h) {
      INFO("step " << t << " head " << h);
      there[h].insert(static_cast<std::int32_t>(t));
      const std::set<std::int32_t> want = naive[h].keep(there[h], kRecent, t + 1);
      const std::set<std::int32_t> got = positions(rig, slot, h);
      REQUIRE(got.size() == want.size());
      std::vector<std::int32_t> only_got, only_want;
      std::set_difference(
          got.begin(), got.end(), want.begin(), want.end(), std::back_inserter(only_got));
      std::set_difference(
          want.begin(), want.end(), got.begin(), got.end(), std::back_inserter(only_want));
      REQUIRE(only_got.size() <= 1);
      for (std::size_t i = 0; i < only_got.size(); ++i) {  // as heavy within the score error
        ++turned;
        REQUIRE(naive[h].sum(only_want[i]) * (1.0 - error) <=
                naive[h].sum(only_got[i]) * (1.0 + error));
      }
      there[h] = got;
      naive[h].add(t, rig.gather(slot, 0, h));
    }
  }
  REQUIRE(turned * 100 <= kSteps * 2);
}

struct SnapCase {
  std::uint32_t pool;
  std::uint32_t width;
  std::uint32_t group;
};

// Pooled window scores, per query head and then averaged, of all keys in double.
std::vector<double> snap_scores(const Stream& stream, const RigSpec& spec, std::uint32_t head) {
  ReferenceHead dense(spec, ScoreError{});
  dense.tokens.resize(stream.shape.tokens);
  PromptScorer(stream, spec, stream.shape.tokens).score(0, head, dense);
  return dense.ranking;
}

TEST_CASE("snapkv selects the indices of a dense reference", "[policy][selector]") {
  const std::uint32_t pool = GENERATE(1u, 2u);
  const std::uint32_t width = GENERATE(1u, 5u, 7u);
  const std::uint32_t group = GENERATE(1u, 3u, 8u);
  constexpr std::uint32_t kTokens = 300;
  constexpr std::uint32_t kWindow = 64;
  constexpr std::uint32_t kBudget = 128;
  Rng rng(8310 + pool * 100 + width * 10 + group);
  INFO(rng.describe() << " pool " << pool << " width " << width << " group " << group);
  const Stream stream(selector_shape(kTokens, group), rng);
  RigSpec spec(QUIRE_RECIPE_SNAPKV, stream.shape);
  spec.set_ring(0, kWindow);
  spec.policy.pool = pool;
  spec.policy.pool_width = width;
  spec.policy.budget_tokens = kBudget;
  Rig rig(spec);
  const std::int32_t slot = rig.open();
  rig.prompt(slot, stream, kTokens);
  for (std::uint32_t head = 0; head < 2; ++head) {
    const std::vector<double> scores = snap_scores(stream, spec, head);
    std::vector<std::int32_t> order;
    for (std::uint32_t t = 0; t < kTokens - kWindow; ++t)
      order.push_back(static_cast<std::int32_t>(t));
    // A maximum gives neighbours one score: ties go to the earlier token.
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
    });
    std::set<std::int32_t> want(order.begin(), order.begin() + (kBudget - kWindow));
    for (std::uint32_t t = kTokens - kWindow; t < kTokens; ++t)
      want.insert(static_cast<std::int32_t>(t));
    REQUIRE(positions(rig, slot, head) == want);
  }
}

// What both heads keep of a prompt with a needle at a position (none: kNoNeedle) that either the
// queries of the window look at, or only earlier ones.
constexpr std::uint32_t kNoNeedle = 1000;

std::set<std::int32_t> kept_with_needle(std::uint32_t needle, bool window_looks) {
  constexpr std::uint32_t kTokens = 300;
  StreamShape shape = selector_shape(kTokens);
  shape.spread = 0.3;
  Rng rng(8350);
  Stream stream(shape, rng);
  for (std::uint32_t t = 0; t < kTokens; ++t) {
    const bool in_window = t >= kTokens - 64;
    for (std::uint32_t h = 0; h < 4; ++h)
      stream.q_at(0, t)[h * shape.dim + 31] = in_window == window_looks ? 12.0f : 0.0f;
    for (std::uint32_t h = 0; h < 2; ++h)
      stream.k_at(0, t)[h * shape.dim + 31] = t == needle ? 3.0f : -0.3f;
  }
  RigSpec spec(QUIRE_RECIPE_SNAPKV, shape);
  spec.set_ring(0, 64);
  spec.policy.budget_tokens = 64 + 8;
  spec.policy.pool_width = 1;
  Rig rig(spec);
  const std::int32_t slot = rig.open();
  rig.prompt(slot, stream, kTokens);
  std::set<std::int32_t> all = positions(rig, slot, 0);
  for (const std::int32_t p : positions(rig, slot, 1)) all.insert(p + 1000);
  return all;
}

TEST_CASE("snapkv keeps a needle that its window looks at and is blind to another",
          "[policy][selector]") {
  const std::uint32_t needle = GENERATE(0u, 17u, 120u, 230u);
  INFO("needle " << needle);
  const std::set<std::int32_t> seen = kept_with_needle(needle, true);
  REQUIRE(seen.count(static_cast<std::int32_t>(needle)) == 1);
  REQUIRE(seen.count(static_cast<std::int32_t>(needle) + 1000) == 1);
  REQUIRE(kept_with_needle(needle, false) == kept_with_needle(kNoNeedle, false));
}

}  // namespace
}  // namespace quire::test
