// Oracle: the ranges that quire.h states. A policy with one bad field is refused by its name, by
// open and by admission, and the cache is as it was.
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/policy_rig.hpp"

namespace quire::test {
namespace {

StreamShape open_shape() {
  StreamShape shape;
  shape.tokens = 60;
  return shape;
}

struct Refusal {
  std::uint32_t recipe;
  const char* field;
  std::function<void(quire_policy&)> spoil;
  quire_status status = QUIRE_INVALID_ARGUMENT;
};

template <class FieldT, class ValueT>
Refusal bad(std::uint32_t recipe, const char* name, FieldT quire_policy::*field, ValueT value) {
  return {recipe, name, [=](quire_policy& p) { p.*field = static_cast<FieldT>(value); }};
}

void refused(const Refusal& refusal, bool by_admission = true) {
  RigSpec spec(refusal.recipe, open_shape());
  spec.sequences = 2;
  Rig rig(spec);
  Rng rng(8601);
  const Stream stream(open_shape(), rng);
  const std::int32_t neighbour = rig.open();
  rig.prompt(neighbour, stream, 60);
  const std::vector<std::uint8_t> before = rig.records(neighbour);
  quire_policy policy = spec.policy;
  refusal.spoil(policy);
  std::int32_t slot = 77;
  const Result result = rig.cache.open(policy, &slot);
  INFO("recipe " << refusal.recipe << ", expected field " << refusal.field << ", got "
                 << result.field() << ": " << result.text());
  REQUIRE(result.status() == refusal.status);
  REQUIRE(std::string(result.field()).find(refusal.field) != std::string::npos);
  REQUIRE(slot == 77);
  REQUIRE(rig.cache.stats().sequences == 1);
  const bool unchanged = rig.records(neighbour) == before;
  REQUIRE(unchanged);
  if (by_admission) {
    std::uint64_t pages = 77;
    REQUIRE(quire_pages_for(rig.cache.get(), &policy, 100, &pages, nullptr, nullptr) ==
            refusal.status);
    REQUIRE(pages == 77);
  }
  REQUIRE(rig.open() == 1);  // the slot that a refusal must not take
}

TEST_CASE("open refuses unknown enums", "[policy][open]") {
  for (const std::uint32_t x : {0u, 5u, 0xffffffffu}) {
    refused(bad(QUIRE_RECIPE_DIFFKV_UPSTREAM, "kind", &quire_policy::kind, x));
    refused(bad(QUIRE_RECIPE_DIFFKV_UPSTREAM, "significance", &quire_policy::significance, x));
  }
  for (const std::uint32_t x : {0u, 6u, 0x10000u})
    refused(bad(QUIRE_RECIPE_H2O, "step_rule", &quire_policy::step_rule, x));
  for (const std::uint32_t x : {5u, 0xffffffffu})
    refused(bad(QUIRE_RECIPE_KEEP_ALL, "statistic", &quire_policy::statistic, x));
  refused(bad(QUIRE_RECIPE_SNAPKV, "pool", &quire_policy::pool, 3u));
}

TEST_CASE("open refuses thresholds that are no numbers, negative, infinite or crossed",
          "[policy][open]") {
  const float nan = std::nanf("");
  const float inf = std::numeric_limits<float>::infinity();
  for (const float x : {nan, -1.0f, inf, -inf, 2e30f}) {
    refused(bad(QUIRE_RECIPE_DIFFKV_PAPER, "alpha_high", &quire_policy::alpha_high, x));
    refused(bad(QUIRE_RECIPE_DIFFKV_PAPER, "alpha_low", &quire_policy::alpha_low, x));
  }
  refused(bad(QUIRE_RECIPE_DIFFKV_UPSTREAM, "alpha_low", &quire_policy::alpha_low, 1.5f));
  refused(bad(QUIRE_RECIPE_QUIRE_BUDGET, "alpha_low", &quire_policy::alpha_high, 0.05f));
}

TEST_CASE("open refuses even pools, missing and double budgets", "[policy][open]") {
  for (const std::uint32_t x : {0u, 2u, 64u, 65u})
    refused(bad(QUIRE_RECIPE_SNAPKV, "pool_width", &quire_policy::pool_width, x));
  for (const std::uint32_t recipe :
       {QUIRE_RECIPE_STREAMING_LLM, QUIRE_RECIPE_H2O, QUIRE_RECIPE_SNAPKV}) {
    refused(bad(recipe, "budget_tokens", &quire_policy::budget_tokens, 0u));
    refused(bad(recipe, "budget_tokens", &quire_policy::budget_bytes, 1u << 24));
    refused(bad(recipe, "budget_tokens", &quire_policy::byte_target, 0.5));
  }
  refused(bad(QUIRE_RECIPE_QUIRE_BUDGET, "budget_tokens", &quire_policy::budget_bytes, 1u << 24));
  refused(bad(QUIRE_RECIPE_DIFFKV_UPSTREAM, "budget_tokens", &quire_policy::budget_tokens, 90u));
  for (const std::uint32_t recipe : {QUIRE_RECIPE_KEEP_ALL, QUIRE_RECIPE_FOREIGN}) {
    refused(bad(recipe, "budget", &quire_policy::budget_tokens, 90u));
    refused(bad(recipe, "budget", &quire_policy::budget_bytes, 1u << 24));
    refused(bad(recipe, "budget", &quire_policy::byte_target, 0.5));
  }
  for (const double x : {std::nan(""), -0.25, 1.51, std::numeric_limits<double>::infinity()})
    refused(bad(QUIRE_RECIPE_QUIRE_BUDGET, "byte_target", &quire_policy::byte_target, x));
}

TEST_CASE("open refuses scores that nobody collects and cadences out of range", "[policy][open]") {
  for (const std::uint32_t recipe :
       {QUIRE_RECIPE_DIFFKV_UPSTREAM, QUIRE_RECIPE_H2O, QUIRE_RECIPE_QUIRE_BUDGET}) {
    refused(bad(recipe, "statistic", &quire_policy::statistic, 0u));
    refused(bad(recipe, "tail_queries", &quire_policy::tail_queries, 0u));
  }
  for (const std::uint32_t x : {1025u, 0xffffffffu})
    refused(bad(QUIRE_RECIPE_QUIRE_BUDGET, "cadence", &quire_policy::cadence, x));
}

// What a policy asks of the layout and of the ring is known to open only.
TEST_CASE("open refuses what layout and ring cannot give", "[policy][open]") {
  refused(bad(QUIRE_RECIPE_KEEP_ALL, "sink_tokens", &quire_policy::sink_tokens, 5u), false);
  refused(bad(QUIRE_RECIPE_KEEP_ALL, "recent_window", &quire_policy::recent_window, 65u), false);
  refused(bad(QUIRE_RECIPE_H2O, "budget_tokens", &quire_policy::budget_tokens, 63u), false);
  Refusal bytes =
      bad(QUIRE_RECIPE_QUIRE_BUDGET, "budget_bytes", &quire_policy::budget_bytes, 1000u);
  bytes.spoil = [](quire_policy& p) {
    p.byte_target = 0.0;
    p.budget_bytes = 1000;
  };
  refused(bytes, false);
  Refusal scored = bad(QUIRE_RECIPE_QUIRE_UNIFORM, "statistic", &quire_policy::statistic, 1u);
  scored.spoil = [](quire_policy& p) {
    p.statistic = QUIRE_STATISTIC_MAX_SUM;
    p.tail_queries = 64;
  };
  scored.status = QUIRE_UNSUPPORTED;
  refused(scored, false);
  Refusal foreign = bad(QUIRE_RECIPE_QUIRE_UNIFORM, "kind", &quire_policy::kind, QUIRE_FOREIGN);
  foreign.status = QUIRE_UNSUPPORTED;
  refused(foreign, false);
}

TEST_CASE("open refuses a low threshold without a low tier", "[policy][open]") {
  RigSpec spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, open_shape());
  spec.group.layout.tier_count = 1;
  Rig rig(spec);
  std::int32_t slot = 77;
  const Result result = rig.cache.open(spec.policy, &slot);
  REQUIRE(result.status() == QUIRE_INVALID_ARGUMENT);
  REQUIRE(std::string(result.field()).find("alpha_low") != std::string::npos);
  REQUIRE(slot == 77);
  quire_policy equal = spec.policy;
  equal.alpha_low = equal.alpha_high;
  REQUIRE(rig.cache.open(equal, &slot).ok());
}

TEST_CASE("open refuses structs and flags of another version", "[policy][open]") {
  Refusal small = bad(QUIRE_RECIPE_H2O, "struct_size", &quire_policy::struct_size, 8u);
  small.status = QUIRE_ABI_MISMATCH;
  refused(small);
  for (const std::uint32_t flag : {4u, 0x80000000u}) {
    Refusal flags = bad(QUIRE_RECIPE_H2O, "flags", &quire_policy::flags, flag);
    flags.status = QUIRE_ABI_MISMATCH;
    refused(flags);
  }
}

}  // namespace
}  // namespace quire::test
