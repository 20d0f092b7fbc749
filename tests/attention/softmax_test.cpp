// The pieces of attention in the headers: running softmax, weights of parts, staged logits, rules.
// Oracle: their definitions in double. Tolerances count the fp32 roundings of each formula.
#include <cmath>
#include <vector>

#include "quire/attention/online_softmax.hpp"
#include "quire/attention/reference.hpp"
#include "quire/attention/rule.hpp"
#include "quire/attention/score_stage.hpp"
#include "support/attention_call.hpp"
#include "support/attention_formats.hpp"
#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/gen.hpp"

namespace quire {
namespace {

constexpr float kInf = __builtin_inff();

double log_sum(const std::vector<float>& x) {
  double sum = 0.0;
  for (const float l : x) sum += std::exp(static_cast<double>(l));
  return std::log(sum);
}

TEST_CASE("a running softmax gives the LSE in any order", "[attention][softmax]") {
  test::Rng rng(1);
  INFO(rng.describe());
  for (std::uint32_t n = 1; n < 40; ++n) {
    const std::vector<float> logits = rng.normals(n, 4.0f);
    SoftmaxState state;
    double accumulated = 0.0;  // what a caller scales by the factors
    for (const float l : logits) {
      const float factor = state.raise(l);
      const float p = std::exp(l - state.max);
      state.sum += p;
      accumulated = accumulated * static_cast<double>(factor) + static_cast<double>(p);
    }
    const double tolerance = test::kFloatEps * (8.0 * n + 4.0 * std::fabs(log_sum(logits)));
    REQUIRE(std::fabs(static_cast<double>(state.lse()) - log_sum(logits)) <= tolerance);
    const double share = accumulated / static_cast<double>(state.sum);
    REQUIRE(std::fabs(share - 1.0) <= test::kFloatEps * (8.0 * n));
    REQUIRE(state.max == *std::max_element(logits.begin(), logits.end()));
  }
}

TEST_CASE("an empty softmax has LSE minus infinity and no NaN", "[attention][softmax]") {
  SoftmaxState state;
  REQUIRE(state.lse() == -kInf);
  REQUIRE(state.raise(-kInf) == 1.0f);
  REQUIRE(state.lse() == -kInf);
  REQUIRE(state.raise(-3.0f) == 0.0f);
  REQUIRE(state.max == -3.0f);
  REQUIRE(state.raise(-5.0f) == 1.0f);
  REQUIRE(state.max == -3.0f);
}

TEST_CASE("log_add is neutral in minus infinity and symmetric", "[attention][softmax]") {
  REQUIRE(log_add(-kInf, -kInf) == -kInf);
  REQUIRE(log_add(2.5f, -kInf) == 2.5f);
  REQUIRE(log_add(-kInf, 2.5f) == 2.5f);
  test::Rng rng(2);
  INFO(rng.describe());
  for (int i = 0; i < 200; ++i) {
    const float a = 20.0f * rng.normal();
    const float b = 20.0f * rng.normal();
    REQUIRE(log_add(a, b) == log_add(b, a));
    const double want = log_sum({a, b});
    const double tolerance = test::kFloatEps * (4.0 * std::fabs(want) + 8.0);
    REQUIRE(std::fabs(static_cast<double>(log_add(a, b)) - want) <= tolerance);
  }
  REQUIRE(log_add(1.0e30f, 1.0e30f) == 1.0e30f);  // no overflow
  REQUIRE(log_add(-1.0e30f, 1.0e30f) == 1.0e30f);
}

TEST_CASE("a part without tokens weighs nothing", "[attention][softmax]") {
  REQUIRE(part_weight(-kInf, 3.0f) == 0.0f);
  REQUIRE(part_weight(-kInf, -kInf) == 0.0f);
  REQUIRE(part_weight(3.0f, 3.0f) == 1.0f);
}

TEST_CASE("a staged logit changes its probability by 2^-12 at most", "[attention][scores]") {
  test::Rng rng(3);
  INFO(rng.describe());
  const double step = std::expm1(0.5 / static_cast<double>(kStageSteps));  // half a step
  for (int i = 0; i < 2000; ++i) {
    const float max = 10.0f * rng.normal();
    const float logit = max - static_cast<float>(31.5 * rng.uniform() * rng.uniform());
    const float lse = max + static_cast<float>(3.0 * rng.uniform());
    const double exact = std::exp(static_cast<double>(logit) - static_cast<double>(lse));
    const auto got = static_cast<double>(staged_probability(stage_logit(logit, max), max, lse));
    const double rounding =
        test::kFloatEps * (8.0 + 4.0 * 32.0 + 2.0 * std::fabs(static_cast<double>(max)));
    REQUIRE(std::fabs(got - exact) <= exact * (step + rounding));
  }
  REQUIRE(step < 0x1.0p-11);
}

TEST_CASE("staging ends 32 below the maximum and knows masked logits", "[attention][scores]") {
  REQUIRE(stage_logit(5.0f, 5.0f) == 0);
  REQUIRE(stage_logit(-26.9f, 5.0f) != kStageNone);
  REQUIRE(stage_logit(-27.1f, 5.0f) == kStageNone);
  REQUIRE(stage_logit(-kInf, 5.0f) == kStageNone);
  REQUIRE(stage_logit(-kInf, -kInf) == kStageNone);
  REQUIRE(staged_probability(kStageNone, 5.0f, 5.0f) == 0.0f);
  REQUIRE(staged_probability(0, 5.0f, -kInf) == 0.0f);
  REQUIRE(staged_probability(0, 5.0f, 5.0f) == 1.0f);
}

TEST_CASE("a query sees itself, the past, and no more than its window", "[attention][rule]") {
  AttentionRule rule;
  REQUIRE(rule.visible(7, 7));
  REQUIRE(rule.visible(7, 0));
  REQUIRE_FALSE(rule.visible(7, 8));
  rule.sliding_window = 3;
  REQUIRE(rule.visible(7, 5));
  REQUIRE_FALSE(rule.visible(7, 4));
  REQUIRE_FALSE(rule.visible(7, 8));
  rule.sliding_window = 1;
  REQUIRE(rule.visible(7, 7));
  REQUIRE_FALSE(rule.visible(7, 6));
}

TEST_CASE("the soft cap comes before ALiBi", "[attention][rule]") {
  const float slopes[2] = {0.5f, 0.25f};
  AttentionRule rule;
  REQUIRE(rule.is_plain());
  REQUIRE(rule.finish(3.0f, 0, 9, 4) == 3.0f);
  rule.soft_cap = 2.0f;
  REQUIRE_FALSE(rule.is_plain());
  const double capped = 2.0 * std::tanh(1.5);
  const double tolerance = 8.0 * test::kFloatEps * (capped + 5.0);
  REQUIRE(std::fabs(static_cast<double>(rule.finish(3.0f, 0, 9, 4)) - capped) <= tolerance);
  rule.alibi_slopes = slopes;
  REQUIRE(std::fabs(static_cast<double>(rule.finish(3.0f, 1, 9, 4)) - (capped - 1.25)) <=
          tolerance);
  rule.soft_cap = 0.0f;
  REQUIRE_FALSE(rule.is_plain());
  REQUIRE(rule.finish(3.0f, 0, 9, 4) == 0.5f);
}

TEST_CASE("reference probabilities equal the oracle in segment order", "[attention][reference]") {
  test::Rng rng(4);
  INFO(rng.describe());
  for (std::uint32_t index = 0; index < 24; ++index) {
    test::TestHead head(test::walk_spec(index, 48, 32, 150 + static_cast<std::int32_t>(index)),
                        rng);
    test::HeadCall call;
    call.heads = {&head};
    call.random_queries(rng, 1.5f);
    const std::vector<float> sink = rng.normals(1, 2.0f);
    if (index % 2 == 1) call.rule.sink_logits = sink.data();
    if (index % 3 == 1) call.rule.sliding_window = 40;
    AttentionRule rule = call.rule;
    rule.scale = call.scale();
    const Query query = {call.q.data(), 0, head.spec.length - 1};
    std::vector<float> out(32);
    const float lse = attend_reference(head.view(), rule, query, out.data());
    std::vector<float> p(head.count());
    probabilities_reference(head.view(), rule, query, lse, p.data());
    const test::OracleResult want = test::oracle_of(call, 0, 0, 0);
    const test::AttentionScale s = test::scale_of(call, 0);
    const double relative = test::logit_tolerance(s) + test::lse_tolerance(s);
    INFO("head " << index);
    for (std::uint32_t t = 0; t < head.count(); ++t)
      REQUIRE(std::fabs(static_cast<double>(p[t]) - want.p[t]) <= 2.0 * relative * want.p[t]);
  }
}

}  // namespace
}  // namespace quire
