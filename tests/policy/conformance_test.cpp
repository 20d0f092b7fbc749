// Oracle: DiffKV's worked numbers for a prompt of 100 tokens and the steps behind it. Keys and
// queries are chosen so that every probability of the example comes out of the cache's own passes.
#include <cmath>
#include <limits>
#include <vector>

#include "quire/policy/tiers.hpp"
#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/policy_rig.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kDim = 16;  // 1 / sqrt(16) is a power of two: logits are exact
constexpr std::uint32_t kPrompt = 100;
constexpr float kNothing = -200.0f;  // the logit of a probability that counts as 0

// A sum of up to 64 exponentials in fp32, each of a rounded logit of at most 20.
constexpr double kPlanted = (64.0 + 20.0 + 16.0) * kFloatEps;

struct PromptRow {
  std::uint32_t position;
  double sums[2];  // of the probabilities of two query heads
  std::uint32_t tier;
};

constexpr PromptRow kRows[] = {{0, {25.6, 12.0}, 0},
                               {10, {0.30, 0.90}, 0},
                               {20, {0.010, 0.004}, 254},
                               {30, {0.0160, 0.0}, 1},
                               {35, {0.60, 0.10}, 1},
                               {36, {0.001, 0.001}, 255},
                               {99, {0.5, 0.2}, 255}};

StreamShape planted_shape(std::uint32_t tokens) {
  StreamShape shape;
  shape.layers = 1;
  shape.kv_heads = 1;
  shape.group = 2;
  shape.dim = kDim;
  shape.tokens = tokens;
  return shape;
}

// Query head h reads channel h of a key, where the logarithm of the wanted probability lies.
class PlantedPrompt {
 public:
  PlantedPrompt() : k(kPrompt * kDim), v(kPrompt * kDim), q(64 * 2 * kDim), lse(64 * 2, 0.0f) {
    for (std::uint32_t t = 0; t < kPrompt; ++t) plant(t, 0.1, 0.1);
    for (const PromptRow& row : kRows) plant(row.position, row.sums[0], row.sums[1]);
    k[30 * kDim + 2] = -1.0f;  // for the step behind the prompt
    for (std::uint32_t r = 0; r < 64; ++r)
      for (std::uint32_t h = 0; h < 2; ++h) q[(r * 2 + h) * kDim + h] = 4.0f;
  }

  void store(Rig& rig, std::int32_t slot) {
    REQUIRE(rig.cache.prefill_begin(slot, kPrompt).ok());
    quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
    args.slot = slot;
    args.k = rows_of(k.data());
    args.v = rows_of(v.data());
    args.q = rows_of(q.data());
    args.q_rows = 64;
    args.lse = lse.data();
    const Result stored = rig.cache.prefill_layer(args);
    INFO(stored.text());
    REQUIRE(stored.ok());
    REQUIRE(rig.cache.prefill_end(slot).ok());
  }

 private:
  // All queries that see a token give it the same probability.
  void plant(std::uint32_t token, double sum_0, double sum_1) {
    const double queries = std::min(64u, kPrompt - token);
    const double sums[2] = {sum_0, sum_1};
    for (std::uint32_t h = 0; h < 2; ++h) {
      k[token * kDim + h] =
          sums[h] > 0.0 ? static_cast<float>(std::log(sums[h] / queries)) : kNothing;
    }
  }

  std::vector<float> k;
  std::vector<float> v;
  std::vector<float> q;
  std::vector<float> lse;
};

RigSpec upstream_spec() {
  RigSpec spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, planted_shape(0));
  spec.group.ring_format = QUIRE_RING_HIGH;
  return spec;
}

const KeptToken* find(const std::vector<KeptToken>& kept, std::int32_t position) {
  for (const KeptToken& t : kept)
    if (t.position == position) return &t;
  return nullptr;
}

TEST_CASE("a prompt gets the tiers and scores of DiffKV's worked example",
          "[policy][conformance]") {
  Rig rig(upstream_spec());
  const std::int32_t slot = rig.open();
  PlantedPrompt().store(rig, slot);
  const std::vector<KeptToken> kept = rig.kept(slot, 0, 0);
  for (const PromptRow& row : kRows) {
    INFO("token " << row.position);
    const KeptToken* token = find(kept, static_cast<std::int32_t>(row.position));
    REQUIRE((token == nullptr) == (row.tier == 254));
    if (token == nullptr) continue;
    REQUIRE(token->tier == row.tier);
    const double want = std::max(row.sums[0], row.sums[1]);
    REQUIRE(std::fabs(static_cast<double>(token->score) - want) <= kPlanted * want);
  }
}

TEST_CASE("an average over heads would put token 10 into the low tier", "[policy][conformance]") {
  RigSpec spec = upstream_spec();
  spec.policy.statistic = QUIRE_STATISTIC_MEAN_SUM;
  Rig rig(spec);
  const std::int32_t slot = rig.open();
  PlantedPrompt().store(rig, slot);
  const std::vector<KeptToken> kept = rig.kept(slot, 0, 0);
  REQUIRE(find(kept, 10)->tier == 1);
  REQUIRE(find(kept, 0)->tier == 0);
}

TEST_CASE("thresholds over the own position prune token 30, those over the length keep it low",
          "[policy][conformance]") {
  RigSpec by_position = upstream_spec();
  by_position.policy.flags |= QUIRE_POLICY_POSITION_THRESHOLDS;
  Rig paper(by_position);
  Rig upstream(upstream_spec());
  for (Rig* rig : {&paper, &upstream}) PlantedPrompt().store(*rig, rig->open());
  REQUIRE(find(paper.kept(0, 0, 0), 30) == nullptr);
  REQUIRE(find(upstream.kept(0, 0, 0), 30)->tier == 1);
  REQUIRE(find(paper.kept(0, 0, 0), 0)->tier == 0);  // no earlier token to share attention with
}

// One key, two queries: probabilities 0.10 and 0.40 of one head, 0.30 and 0.20 of the other.
float order_of_max_and_sum(std::uint32_t statistic) {
  RigSpec spec = upstream_spec();
  spec.set_ring(0, 0);
  spec.policy.statistic = statistic;
  spec.policy.tail_queries = 2;
  spec.policy.alpha_high = spec.policy.alpha_low = 0.0f;
  Rig rig(spec);
  const std::int32_t slot = rig.open();
  constexpr double kP[2][2] = {{0.10, 0.40}, {0.30, 0.20}};
  std::vector<float> k(3 * kDim), v(3 * kDim), q(2 * 2 * kDim), lse(4, 0.0f);
  for (std::uint32_t h = 0; h < 2; ++h) {
    for (std::uint32_t r = 0; r < 2; ++r) {
      k[h * 2 + r] = static_cast<float>(std::log(kP[h][r]));
      q[(r * 2 + h) * kDim + h * 2 + r] = 4.0f;
    }
  }
  REQUIRE(rig.cache.prefill_begin(slot, 3).ok());
  quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
  args.slot = slot;
  args.k = rows_of(k.data());
  args.v = rows_of(v.data());
  args.q = rows_of(q.data());
  args.q_rows = 2;
  args.lse = lse.data();
  REQUIRE(rig.cache.prefill_layer(args).ok());
  return rig.kept(slot, 0, 0)[0].score;
}

TEST_CASE("the maximum of sums is 0.5 where the sum of maxima is 0.7", "[policy][conformance]") {
  const auto max_sum = static_cast<double>(order_of_max_and_sum(QUIRE_STATISTIC_MAX_SUM));
  const auto max_first = static_cast<double>(order_of_max_and_sum(QUIRE_STATISTIC_MAX_FIRST));
  REQUIRE(std::fabs(max_sum - 0.5) <= kPlanted * 0.5);
  REQUIRE(std::fabs(max_first - 0.7) <= kPlanted * 0.7);
}

// The step behind the prompt with exact keys: token 30 gets 0.0008, the new one 0.05.
class FirstStep {
 public:
  FirstStep() : rig(exact_spec()), slot(rig.open()) {
    PlantedPrompt().store(rig, slot);
    std::vector<float> k(kDim, 0.0f), v(kDim, 0.0f), q(2 * kDim, 0.0f);
    k[3] = 1.0f;
    REQUIRE(rig.begin(slot).ok());
    rig.append(0, k.data(), v.data());
    aim(0.0008, 0.05, q.data());
    aim(0.0004, 0.02, q.data() + kDim);
    rig.attend(0, q.data());
    REQUIRE(rig.cache.step_end().ok());
  }

  // A further step whose query sees all keys alike; returns its moves.
  MoveList next() {
    const std::vector<float> zero(2 * kDim, 0.0f);
    MoveList log;
    REQUIRE(rig.begin(slot, &log).ok());
    rig.append(0, zero.data(), zero.data());
    rig.attend(0, zero.data());
    REQUIRE(rig.cache.step_end().ok());
    return log;
  }

  Rig rig;
  std::int32_t slot;

 private:
  static RigSpec exact_spec() {
    RigSpec spec = upstream_spec();
    const quire_vector_format f16 = {QUIRE_GRID_F16, 16, 0, QUIRE_TRANSFORM_NONE};
    spec.group.layout.tier[0] = spec.group.layout.tier[1] = {f16, f16};
    return spec;
  }

  // Keys of all other tokens have nothing in channels 2 and 3: their weight is 1.
  void aim(double token_30, double newest, float* q) const {
    const double others = static_cast<double>(rig.kept(slot, 0, 0).size()) - 2.0;
    const double sum = others / (1.0 - token_30 - newest);
    q[2] = static_cast<float>(-4.0 * std::log(token_30 * sum));
    q[3] = static_cast<float>(4.0 * std::log(newest * sum));
  }
};

TEST_CASE("a step adds the maximum over the group to the sums of the worked example",
          "[policy][conformance]") {
  FirstStep first;
  const std::vector<KeptToken> kept = first.rig.kept(first.slot, 0, 0);
  constexpr double kStaged = 0x1.0p-9;  // relative error of an increment that is promised
  const auto score = static_cast<double>(find(kept, 30)->score);
  REQUIRE(std::fabs(score - 0.0168) <= kStaged * 0.0008 + kPlanted * 0.0168);
  const TierRule rule = first.rig.state().rule(first.slot, 0, 0, 101, 1.0f);
  const auto mean = static_cast<double>(rule.significance_at(find(kept, 30)->score, 30));
  REQUIRE(std::fabs(mean - 0.0168 / 65.0) <= (kStaged + kPlanted) * mean);
  const KeptToken* newest = find(kept, 100);
  REQUIRE(newest->tier == 255);
  REQUIRE(std::fabs(static_cast<double>(newest->score) - 0.05) <= (kStaged + kPlanted) * 0.05);
  REQUIRE(rule.significance_at(newest->score, 100) == newest->score);  // one query
}

TEST_CASE("the token of step 100 is first looked at in step 164", "[policy][conformance]") {
  FirstStep first;
  for (std::int32_t p = 101; p < 164; ++p) {
    for (const quire_plan_move& move : first.next()) REQUIRE(move.position != 100);
  }
  REQUIRE(find(first.rig.kept(first.slot, 0, 0), 100)->tier == 255);
  MoveList log;
  REQUIRE(first.rig.begin(first.slot, &log).ok());
  REQUIRE(first.rig.state().rule(first.slot, 0, 0, 164, 1.0f).significance_at(64.0f, 100) == 1.0f);
  int moves = 0;
  for (const quire_plan_move& move : log) moves += move.position == 100 ? 1 : 0;
  REQUIRE(moves == 1);
}

}  // namespace
}  // namespace quire::test
