// Oracle: counts of queries by enumeration; the ranges that quire.h states, field by field.
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "quire/policy/policy.hpp"
#include "quire/policy/recipes.hpp"
#include "support/catch.hpp"
#include "support/gen.hpp"
#include "support/policy_naive.hpp"

namespace quire::test {
namespace {

TEST_CASE("the query count of a token is the number of queries that could see it",
          "[policy][queries]") {
  Rng rng(7301);
  INFO(rng.describe());
  for (int i = 0; i < 4000; ++i) {
    const auto prompt = static_cast<std::int32_t>(rng.below(150));
    const std::uint32_t tail = rng.below(8) == 0 ? kAllQueries : rng.below(200);
    const std::int32_t length = prompt + static_cast<std::int32_t>(rng.below(150));
    PromptEnds ends;
    if (prompt > 0) ends.add(prompt);
    for (std::int32_t position = 0; position < length; position += 7) {
      INFO("prompt " << prompt << " tail " << tail << " position " << position);
      REQUIRE(query_count(ends, tail, position, length) ==
              naive_queries(position, prompt, tail, length));
    }
  }
}

TEST_CASE("the query count follows DiffKV's virtual birth", "[policy][queries]") {
  PromptEnds ends;  // a prompt of 100 with 64 scoring queries
  ends.add(100);
  REQUIRE(query_count(ends, 64, 0, 100) == 64);
  REQUIRE(query_count(ends, 64, 30, 100) == 64);
  REQUIRE(query_count(ends, 64, 36, 100) == 64);
  REQUIRE(query_count(ends, 64, 37, 100) == 63);
  REQUIRE(query_count(ends, 64, 99, 100) == 1);
  REQUIRE(query_count(ends, 64, 30, 101) == 65);
  REQUIRE(query_count(ends, 64, 100, 101) == 1);
  REQUIRE(query_count(ends, 64, 100, 164) == 64);
}

TEST_CASE("each prompt of a sequence has its own scoring queries", "[policy][queries]") {
  PromptEnds ends;  // prompts of tokens 0..49 and 60..99, answers behind both
  ends.add(50);
  ends.add(100);
  const std::uint32_t tail = 8;
  REQUIRE(query_count(ends, tail, 10, 120) == 120 - 42);
  REQUIRE(query_count(ends, tail, 45, 120) == 120 - 45);
  REQUIRE(query_count(ends, tail, 70, 120) == 120 - 92);
  REQUIRE(query_count(ends, tail, 110, 120) == 10);
}

TEST_CASE("a list of prompt ends keeps the last eight", "[policy][queries]") {
  PromptEnds ends;
  for (std::int32_t i = 1; i <= 11; ++i) ends.add(100 * i);
  REQUIRE(ends.count == 8);
  for (std::uint32_t i = 0; i < 8; ++i)
    REQUIRE(ends.end[i] == 100 * (static_cast<std::int32_t>(i) + 4));
  REQUIRE(query_count(ends, 10, 50, 1200) == 1200 - 390);  // merged with the oldest that is left
}

// Oracle: queries listed one by one. DiffKV's rule, with a birth per prompt.
TEST_CASE("query counts of a conversation are those of a list of its queries",
          "[policy][queries]") {
  Rng rng(7471);
  INFO(rng.describe());
  for (std::uint32_t round = 0; round < 40; ++round) {
    PromptEnds ends;
    PromptList prompts;
    std::int32_t length = 0;
    const std::uint32_t tail = round % 5 == 0 ? kAllQueries : 1 + rng.below(30);
    for (std::uint32_t turn = 0; turn < 1 + round % 8; ++turn) {
      length += static_cast<std::int32_t>(rng.below(3) == 0 ? 0 : rng.below(25));  // decoded
      const auto end = length + 1 + static_cast<std::int32_t>(rng.below(40));
      ends.add(end, length);
      prompts.push_back({length, end});
      length = end + static_cast<std::int32_t>(rng.below(9));
      for (std::int32_t p = 0; p < length; ++p) {
        INFO("tail " << tail << " turn " << turn << " position " << p << " length " << length);
        REQUIRE(query_count(ends, tail, p, length) == listed_queries(prompts, tail, p, length));
      }
    }
  }
}

TEST_CASE("significance is the mean, its root, the sum or the position", "[policy][significance]") {
  REQUIRE(significance_of(Significance::kMean, 3.0f, 17, 4) == 0.75f);
  REQUIRE(significance_of(Significance::kRootMean, 9.0f, 17, 4) == 1.5f);
  REQUIRE(significance_of(Significance::kSum, 9.0f, 17, 4) == 9.0f);
  REQUIRE(significance_of(Significance::kPosition, 9.0f, 17, 4) == 17.0f);
  REQUIRE(significance_of(Significance::kMean, 3.0f, 17, 0) == 3.0f);  // not seen yet: no NaN
}

struct BadField {
  const char* field;
  std::function<void(Policy&)> spoil;
};

template <class EnumT>
BadField bad_enum(const char* field, EnumT Policy::*member, std::uint32_t value) {
  return {field, [member, value](Policy& p) { p.*member = static_cast<EnumT>(value); }};
}

void refused(const Policy& good, const BadField& bad) {
  REQUIRE(check_policy(good).ok());
  Policy p = good;
  bad.spoil(p);
  const Status status = check_policy(p);
  INFO("expected field " << bad.field << ", got " << status.field << ": " << status.rule);
  REQUIRE(status.code == StatusCode::kInvalidArgument);
  REQUIRE(std::string(status.field) == bad.field);
  REQUIRE(std::string(status.rule) != "");
}

TEST_CASE("every recipe is a valid policy", "[policy][check]") {
  for (const Policy& p : {keep_all(),
                          diffkv_paper(1.0f, 0.02f),
                          diffkv_upstream(1.0f, 0.02f),
                          diffkv_upstream(0.0f, 0.0f),
                          streaming_llm(512),
                          h2o(512),
                          snapkv(512),
                          quire_uniform(),
                          quire_budget(0.25),
                          foreign_plan()}) {
    REQUIRE(check_policy(p).ok());
  }
}

TEST_CASE("unknown enums are refused with their field", "[policy][check]") {
  const Policy good = diffkv_upstream(1.0f, 0.02f);
  for (const std::uint32_t value : {0u, 5u, 77u, 0xffffffffu}) {
    refused(good, bad_enum("kind", &Policy::kind, value));
    refused(good, bad_enum("significance", &Policy::significance, value));
  }
  for (const std::uint32_t value : {0u, 6u, 0xffffffffu})
    refused(good, bad_enum("step_rule", &Policy::step_rule, value));
  for (const std::uint32_t value : {5u, 0x80000000u})
    refused(good, bad_enum("statistic", &Policy::statistic, value));
  for (const std::uint32_t value : {3u, 0xffffffffu})
    refused(good, bad_enum("pool", &Policy::pool, value));
  for (const std::uint32_t value : {0u, 3u})
    refused(good, bad_enum("threshold_base", &Policy::threshold_base, value));
}

TEST_CASE("bad thresholds are refused with their field", "[policy][check]") {
  const Policy good = diffkv_upstream(1.0f, 0.02f);
  const float nan = std::nanf("");
  const float inf = std::numeric_limits<float>::infinity();
  for (const float x : {nan, inf, -inf, -0.5f, -1e-30f, 2e30f}) {
    refused(good, {"alpha_high", [x](Policy& p) { p.alpha_high = x; }});
    refused(good, {"alpha_low", [x](Policy& p) { p.alpha_low = x; }});
  }
  refused(good, {"alpha_low", [](Policy& p) { p.alpha_low = 1.5f; }});  // crossed
  Policy equal = good;
  equal.alpha_low = equal.alpha_high;
  REQUIRE(check_policy(equal).ok());
}

TEST_CASE("a pool width that is even or too wide is refused", "[policy][check]") {
  const Policy good = snapkv(512);
  for (const std::uint32_t width : {0u, 2u, 4u, 62u, 64u, 65u, 1000u})
    refused(good, {"pool_width", [width](Policy& p) { p.pool_width = width; }});
  for (const std::uint32_t width : {1u, 3u, 5u, 63u}) {
    Policy p = good;
    p.pool_width = width;
    REQUIRE(check_policy(p).ok());
  }
  Policy unpooled = good;  // the width of no pool does not matter
  unpooled.pool = PoolKind::kNone;
  unpooled.pool_width = 4;
  REQUIRE(check_policy(unpooled).ok());
}

TEST_CASE("missing, double and misplaced budgets are refused", "[policy][check]") {
  for (const Policy& evicting : {streaming_llm(512), h2o(512), snapkv(512)}) {
    refused(evicting, {"budget_tokens", [](Policy& p) { p.budget_tokens = 0; }});
    refused(evicting, {"budget_tokens", [](Policy& p) { p.budget_bytes = 1u << 20; }});
    refused(evicting, {"budget_tokens", [](Policy& p) { p.byte_target = 0.25; }});
  }
  for (const Policy& unbounded : {keep_all(), foreign_plan(), quire_uniform()}) {
    refused(unbounded, {"budget_tokens", [](Policy& p) { p.budget_tokens = 512; }});
    refused(unbounded, {"budget_tokens", [](Policy& p) { p.budget_bytes = 512; }});
    refused(unbounded, {"budget_tokens", [](Policy& p) { p.byte_target = 0.5; }});
  }
  const Policy threshold = diffkv_upstream(1.0f, 0.02f);
  refused(threshold, {"budget_tokens", [](Policy& p) { p.budget_tokens = 512; }});
  refused(quire_budget(0.25), {"budget_tokens", [](Policy& p) { p.budget_bytes = 1u << 20; }});
}

TEST_CASE("a byte target that is no share is refused", "[policy][check]") {
  for (const double x :
       {std::nan(""), -0.1, -1e-300, 1.6, 1e300, std::numeric_limits<double>::infinity()}) {
    refused(quire_budget(0.25), {"byte_target", [x](Policy& p) { p.byte_target = x; }});
  }
  REQUIRE(check_policy(quire_budget(1.5)).ok());
}

TEST_CASE("a policy that plans from scores must collect them", "[policy][check]") {
  for (const Policy& scored : {diffkv_upstream(1.0f, 0.02f), h2o(512), quire_budget(0.25)}) {
    refused(scored, {"statistic", [](Policy& p) { p.statistic = Statistic::kNone; }});
    refused(scored, {"tail_queries", [](Policy& p) { p.tail_queries = 0; }});
  }
}

TEST_CASE("a controller's cadence is from 1 to 1024 steps", "[policy][check]") {
  for (const std::uint32_t cadence : {0u, 1025u, 0xffffffffu})
    refused(quire_budget(0.25), {"cadence", [cadence](Policy& p) { p.cadence = cadence; }});
  for (const std::uint32_t cadence : {1u, 16u, 1024u}) {
    Policy p = quire_budget(0.25);
    p.cadence = cadence;
    REQUIRE(check_policy(p).ok());
  }
}

}  // namespace
}  // namespace quire::test
