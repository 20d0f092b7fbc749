// Oracle: every row of DiffKV's worked state machine at p = 1000, carried out by a cache whose
// scores are planted.
#include <vector>

#include "quire/policy/tiers.hpp"
#include "support/catch.hpp"
#include "support/policy_rig.hpp"

namespace quire::test {
namespace {

constexpr std::int32_t kHighVictim = 17;
constexpr std::int32_t kLowVictim = 423;
constexpr std::int32_t kLeaving = 1000 - 64;

StreamShape machine_shape() {
  StreamShape shape;
  shape.layers = 1;
  shape.kv_heads = 1;
  shape.group = 1;
  shape.dim = 16;
  shape.tokens = 1001;
  return shape;
}

// 1000 tokens of which so many are high and low; the rest outside the ring is dropped.
class Machine {
 public:
  Machine(std::uint32_t high, std::uint32_t low, float alpha_high, float alpha_low)
      : rng_(7501),
        stream_(machine_shape(), rng_),
        rig(spec_of(alpha_high, alpha_low)),
        slot_(rig.open()),
        thresholds_(thresholds_at(alpha_high, alpha_low, 1.0f, 1000)) {
    std::vector<std::uint8_t> plan(1000, 254);
    for (std::uint32_t t = 0; t < high; ++t) plan[t] = 0;
    for (std::uint32_t t = 300; t < 300 + low; ++t) plan[t] = 1;
    rig.prompt(slot_, stream_, 1000, plan.data());
  }

  // Plants least significances, runs the step; returns its moves.
  MoveList step(float least_high, float least_low) {
    constexpr float kQueries = 64.0f;  // behind the sums of all tokens of the pages
    rig.plant_scores(slot_,
                     [&](std::uint32_t, std::uint32_t, std::int32_t position, std::uint32_t tier) {
                       if (tier == 2) return 0.25f * kQueries;
                       if (position == kHighVictim) return least_high * kQueries;
                       if (position == kLowVictim) return least_low * kQueries;
                       return 0.5f * kQueries;
                     });
    MoveList log;
    const Result begun = rig.begin(slot_, &log);
    INFO(begun.text());
    REQUIRE(begun.ok());
    rig.append(0, stream_.k(0, 1000), stream_.v(0, 1000));
    return log;
  }

  std::uint64_t high() const { return rig.cache.info(slot_).high_tokens; }
  std::uint64_t low() const { return rig.cache.info(slot_).low_tokens; }
  std::vector<KeptToken> kept() const { return rig.kept(slot_, 0, 0); }
  float high_threshold() const { return thresholds_.high; }

 private:
  static RigSpec spec_of(float alpha_high, float alpha_low) {
    RigSpec spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, machine_shape());
    spec.group.ring_format = QUIRE_RING_HIGH;
    spec.policy.alpha_high = alpha_high;
    spec.policy.alpha_low = alpha_low;
    spec.max_tokens = 1100;
    return spec;
  }

  Rng rng_;
  Stream stream_;

 public:
  Rig rig;

 private:
  std::int32_t slot_;
  Thresholds thresholds_;
};

bool moved(const MoveList& log, std::int32_t position, std::uint8_t to) {
  for (const quire_plan_move& m : log)
    if (m.position == position && m.to == to) return true;
  return false;
}

struct Row {
  float least_high;
  float least_low;
  std::uint32_t low_before;
  int expected_case;
};

TEST_CASE("a cache carries out every row of the worked state machine", "[policy][conformance]") {
  const float exactly = thresholds_at(1.0f, 0.02f, 1.0f, 1000).high;
  const Row row = GENERATE_COPY(Row{1e-5f, 5e-5f, 200, 1},
                                Row{1e-5f, 0.5f, 0, 1},
                                Row{1e-5f, 1e-5f, 200, 2},
                                Row{1.5e-5f, 1e-5f, 200, 2},
                                Row{5e-4f, 1e-5f, 200, 2},
                                Row{5e-4f, 3e-4f, 200, 3},
                                Row{5e-4f, 0.5f, 0, 3},
                                Row{2e-3f, 1e-5f, 200, 4},
                                Row{exactly, 1e-5f, 200, 4},
                                Row{exactly, 3e-4f, 200, 4},
                                Row{exactly, 0.5f, 0, 4});
  INFO("least high " << row.least_high << ", least low " << row.least_low);
  Machine machine(300, row.low_before, 1.0f, 0.02f);
  const MoveList log = machine.step(row.least_high, row.least_low);
  REQUIRE(moved(log, kLeaving, 0));
  const bool pruned = row.expected_case == 1;
  const bool demoted = row.expected_case == 2 || row.expected_case == 3;
  const bool replaced = row.expected_case == 2;
  REQUIRE(moved(log, kHighVictim, 254) == pruned);
  REQUIRE(moved(log, kHighVictim, 1) == demoted);
  REQUIRE(moved(log, kLowVictim, 254) == replaced);
  REQUIRE(log.size() == 1u + pruned + demoted + replaced);
  REQUIRE(machine.high() == 301u - pruned - demoted);
  REQUIRE(machine.low() == row.low_before + demoted - replaced);
  for (const KeptToken& t : machine.kept()) {
    REQUIRE(!(pruned && t.position == kHighVictim));
    REQUIRE(!(replaced && t.position == kLowVictim));
    if (t.position == kHighVictim) REQUIRE(t.tier == (demoted ? 1u : 0u));
    if (t.position == kLeaving) REQUIRE(t.tier == 0);
  }
}

TEST_CASE("with no high token the leaving one is appended and the low victim stays",
          "[policy][conformance]") {
  Machine machine(0, 200, 1.0f, 0.02f);
  const MoveList log = machine.step(0.0f, 1e-5f);
  REQUIRE(log.size() == 1);
  REQUIRE(moved(log, kLeaving, 0));
  REQUIRE(machine.high() == 1);
  REQUIRE(machine.low() == 200);
}

TEST_CASE("with alpha_low 0 a cache prunes nothing and replaces nothing", "[policy][conformance]") {
  for (const float least_high : {0.0f, 1e-5f, 5e-4f, 2e-3f}) {
    Machine machine(300, 200, 1.0f, 0.0f);
    const MoveList log = machine.step(least_high, 0.0f);
    const bool demoted = least_high < machine.high_threshold();
    INFO("least high " << least_high);
    REQUIRE(log.size() == 1u + demoted);
    REQUIRE(machine.high() == 301u - demoted);
    REQUIRE(machine.low() == 200u + demoted);
  }
}

TEST_CASE("with equal alphas a cache uses the low tier only for a worse low token",
          "[policy][conformance]") {
  Machine none(300, 0, 0.02f, 0.02f);
  const MoveList pruned = none.step(1e-5f, 0.0f);
  REQUIRE(moved(pruned, kHighVictim, 254));
  REQUIRE(none.low() == 0);
  Machine worse_low(300, 200, 0.02f, 0.02f);
  const MoveList exchanged = worse_low.step(1.5e-5f, 1e-5f);
  REQUIRE(moved(exchanged, kHighVictim, 1));
  REQUIRE(moved(exchanged, kLowVictim, 254));
  REQUIRE(worse_low.low() == 200);
}

TEST_CASE("while the ring fills nothing moves", "[policy][conformance]") {
  RigSpec spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, machine_shape());
  spec.group.ring_format = QUIRE_RING_HIGH;
  Rig rig(spec);
  Rng rng(7502);
  const Stream stream(machine_shape(), rng);
  const std::int32_t slot = rig.open();
  rig.prompt(slot, stream, 40);
  for (std::uint32_t p = 40; p < 64; ++p) {
    MoveList log;
    rig.step(slot, stream, p, &log);
    REQUIRE(log.empty());
    REQUIRE(rig.cache.info(slot).high_tokens == 0);
  }
  MoveList log;
  rig.step(slot, stream, 64, &log);
  REQUIRE(log.size() == 1);
  REQUIRE(moved(log, 0, 0));
}

}  // namespace
}  // namespace quire::test
