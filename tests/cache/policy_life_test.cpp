// Oracle: a policy that quire_seq_open takes can be lived with. Every combination of kind, step
// rule, statistic, significance and tiers is refused or serves a prompt and steps: no call of a
// step that began is refused, nothing is written outside the memory, all pages come back.
#include <cmath>

#include "support/raw_calls.hpp"

namespace quire::test {
namespace {

struct Combination {
  std::uint32_t kind;
  std::uint32_t step_rule;
  std::uint32_t statistic;
  std::uint32_t significance;
  std::uint32_t tiers;
  std::uint32_t budget;  // 0 none, 1 tokens, 2 bytes, 3 byte target
};

RawSpec spec_of(const Combination& c) {
  RawSpec spec;
  spec.group.layout.tier_count = c.tiers;
  spec.group.layout.expected_tokens = 16;  // small pages: tiers gain and lose them
  spec.policy.kind = c.kind;
  spec.policy.step_rule = c.step_rule;
  spec.policy.statistic = c.statistic;
  spec.policy.significance = c.significance;
  spec.policy.cadence = 2;
  spec.policy.alpha_high = 1.0f;
  spec.policy.alpha_low = c.tiers == 2 || c.kind != QUIRE_THRESHOLD ? 0.5f : 1.0f;
  spec.policy.budget_tokens = c.budget == 1 ? 20 : 0;
  spec.policy.budget_bytes = c.budget == 2 ? 12000 : 0;
  spec.policy.byte_target = c.budget == 3 ? 0.9 : 0.0;
  return spec;
}

// True when the policy was taken.
bool live(const Combination& c) {
  RawCache cache(spec_of(c));
  RawCalls calls(cache, 101);
  const quire_seq_open_args open = calls.open();
  std::int32_t slot = -1;
  const quire_status status = quire_seq_open(cache.get(), &open, &slot);
  if (status != QUIRE_OK) {
    CHECK((status == QUIRE_INVALID_ARGUMENT || status == QUIRE_UNSUPPORTED));
    return false;
  }
  calls.fill_prompt(slot, 40);
  for (int step = 0; step < 12; ++step) calls.step({slot});
  const quire_seq_info info = cache.info(slot);
  CHECK(info.tokens == 52);
  CHECK((c.tiers == 2 || info.low_tokens == 0));
  for (std::size_t i = 0; i < 4 * 16; ++i) CHECK(std::isfinite(calls.out[i]));
  calls.need(quire_seq_close(cache.get(), slot, &calls.error));
  CHECK(cache.stats().live_pages == 0);
  CHECK(cache.guards_intact());
  return true;
}

// Every combination of one kind and a number of tiers.
void live_all(std::uint32_t kind, std::uint32_t tiers) {
  std::uint32_t taken = 0;
  for (std::uint32_t step_rule = 1; step_rule <= 5; ++step_rule) {
    for (std::uint32_t statistic = 0; statistic <= 4; ++statistic) {
      for (std::uint32_t significance = 1; significance <= 4; ++significance) {
        for (std::uint32_t budget = 0; budget <= 3; ++budget) {
          INFO("kind " << kind << " step rule " << step_rule << " statistic " << statistic
                       << " significance " << significance << " tiers " << tiers << " budget "
                       << budget);
          if (live({kind, step_rule, statistic, significance, tiers, budget})) ++taken;
        }
      }
    }
  }
  CHECK(taken > 0);
}

}  // namespace

TEST_CASE("a keep-all policy of any fields is refused or served", "[cache][policy]") {
  for (const std::uint32_t tiers : {1u, 2u}) live_all(QUIRE_KEEP_ALL, tiers);
}

TEST_CASE("a threshold policy of any fields is refused or served", "[cache][policy]") {
  for (const std::uint32_t tiers : {1u, 2u}) live_all(QUIRE_THRESHOLD, tiers);
}

TEST_CASE("an evicting policy of any fields is refused or served in one tier", "[cache][policy]") {
  live_all(QUIRE_EVICT, 1);
}

TEST_CASE("an evicting policy of any fields is refused or served in two tiers", "[cache][policy]") {
  live_all(QUIRE_EVICT, 2);
}

TEST_CASE("a foreign policy of any fields is refused or served", "[cache][policy]") {
  for (const std::uint32_t tiers : {1u, 2u}) live_all(QUIRE_FOREIGN, tiers);
}

}  // namespace quire::test
