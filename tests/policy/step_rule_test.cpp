// Oracle: the rules of a step over plain lists, written from their texts
// (support/policy_naive.hpp), and the table of worked cases of DiffKV's state machine.
#include <map>
#include <vector>

#include "quire/policy/tiers.hpp"
#include "support/catch.hpp"
#include "support/gen.hpp"
#include "support/policy_naive.hpp"

namespace quire::test {
namespace {

Lowest lowest_of(const NaiveTier& tier) {
  Lowest lowest;
  for (std::size_t i = 0; i < tier.size(); ++i) {
    lowest.consider(static_cast<float>(tier[i].significance.value),
                    tier[i].position,
                    static_cast<std::int32_t>(i));
  }
  return lowest;
}

StepInput step_input(const NaiveInput& in) {
  StepInput input;
  input.leaving = in.leaving.has_value();
  if (in.leaving) {
    input.leaving_significance = static_cast<float>(in.leaving->significance.value);
    input.leaving_position = in.leaving->position;
  }
  input.leaving_on_probation = in.leaving_on_probation;
  input.high = lowest_of(in.high);
  input.low = lowest_of(in.low);
  input.high_tokens = static_cast<std::int32_t>(in.high.size());
  input.low_tokens = static_cast<std::int32_t>(in.low.size());
  input.thresholds = {static_cast<float>(in.high_threshold.value),
                      static_cast<float>(in.low_threshold.value)};
  input.token_budget = static_cast<std::int32_t>(in.budget);
  return input;
}

Fate fate_of(Tier tier) {
  switch (tier) {
    case Tier::kHigh: return Fate::kHigh;
    case Tier::kLow: return Fate::kLow;
    case Tier::kDropped: return Fate::kDropped;
    case Tier::kKeep: break;
  }
  return Fate::kNone;
}

NaiveStep step_of(const HeadPlan& plan, const NaiveInput& in) {
  NaiveStep step;
  step.leaving = fate_of(plan.leaving_to);
  step.high_victim_to = fate_of(plan.high_victim_to);
  if (plan.high_victim_to != Tier::kKeep)
    step.high_victim = in.high.at(static_cast<std::size_t>(plan.high_victim)).position;
  if (plan.low_victim_dropped != 0)
    step.low_victim = in.low.at(static_cast<std::size_t>(plan.low_victim)).position;
  return step;
}

void erase(NaiveTier& tier, std::int32_t position) {
  const auto found = std::find_if(
      tier.begin(), tier.end(), [&](const NaiveToken& t) { return t.position == position; });
  REQUIRE(found != tier.end());
  *found = tier.back();  // order within a tier does not matter
  tier.pop_back();
}

// Carries a step out on the lists.
void apply(const NaiveStep& step, NaiveInput& in) {
  if (step.low_victim >= 0) erase(in.low, step.low_victim);
  if (step.high_victim >= 0) {
    const auto victim = std::find_if(in.high.begin(), in.high.end(), [&](const NaiveToken& t) {
      return t.position == step.high_victim;
    });
    REQUIRE(victim != in.high.end());
    if (step.high_victim_to == Fate::kLow) in.low.push_back(*victim);
    erase(in.high, step.high_victim);
  }
  if (step.leaving == Fate::kHigh) in.high.push_back(*in.leaving);
  if (step.leaving == Fate::kLow) in.low.push_back(*in.leaving);
}

// A head that lives through a stream of scores: half of the significances lie on a coarse grid, so
// that ties with each other and with the thresholds happen all the time.
class ScoreStream {
 public:
  ScoreStream(Rng& rng, std::size_t budget) : rng_(rng) { in.budget = budget; }

  void advance() {
    ++length_;
    for (NaiveTier* tier : {&in.high, &in.low})
      for (NaiveToken& t : *tier)
        if (rng_.below(4) == 0) t.significance = draw();
    in.leaving.reset();
    if (rng_.below(8) != 0) in.leaving = NaiveToken{length_, draw()};
    in.leaving_on_probation = rng_.below(3) == 0;
    in.low_threshold = grid(rng_.below(4));
    in.high_threshold = grid(in.low_threshold.value * 8.0 + rng_.below(5));
  }

  NaiveInput in;

 private:
  static Range grid(double eighths) { return Range::exact(eighths / 8.0); }
  Range draw() {
    if (rng_.below(2) == 0) return grid(rng_.below(12));
    return Range::exact(static_cast<double>(static_cast<float>(1.5 * rng_.uniform())));
  }

  Rng& rng_;
  std::int32_t length_ = 0;
};

TEST_CASE("every step rule equals the naive model over random score streams", "[policy][step]") {
  constexpr int kStreams = 300;
  constexpr int kSteps = 220;
  const StepRule rule = GENERATE(StepRule::kAppend,
                                 StepRule::kUpstream,
                                 StepRule::kPaper,
                                 StepRule::kClassify,
                                 StepRule::kEvict);
  Rng rng(7101 + static_cast<std::uint64_t>(rule));
  INFO(rng.describe() << " rule " << static_cast<int>(rule));
  std::map<int, int> seen;
  for (int s = 0; s < kStreams; ++s) {
    ScoreStream stream(rng, rng.below(30));
    for (int i = 0; i < kSteps; ++i) {
      stream.advance();
      ExactJudge judge;
      const NaiveStep want = naive_step(rule, judge, stream.in);
      const HeadPlan plan = plan_step(rule, step_input(stream.in));
      if (!(step_of(plan, stream.in) == want)) FAIL("stream " << s << " step " << i);
      apply(want, stream.in);
      REQUIRE(plan.high_after == static_cast<std::int32_t>(stream.in.high.size()));
      REQUIRE(plan.low_after == static_cast<std::int32_t>(stream.in.low.size()));
      REQUIRE(plan.retier == 0);
      ++seen[static_cast<int>(want.leaving) * 16 + static_cast<int>(want.high_victim_to) * 2 +
             (want.low_victim >= 0 ? 1 : 0)];
    }
  }
  const std::map<StepRule, std::size_t> outcomes = {{StepRule::kAppend, 2},
                                                    {StepRule::kUpstream, 5},
                                                    {StepRule::kPaper, 7},
                                                    {StepRule::kClassify, 4},
                                                    {StepRule::kEvict, 4}};
  REQUIRE(seen.size() == outcomes.at(rule));  // every outcome of the rule was met
}

struct MachineRow {
  double high;  // least significance of a tier; negative: no candidate
  double low;
  int expected_case;
  int high_after;
  int low_after;
};

// p = 1000, alpha_low = 0.02, alpha_high = 1; 300 high and 200 low tokens before.
constexpr MachineRow kMachine[] = {{1e-5, 5e-5, 1, 300, 200},
                                   {1e-5, -1, 1, 300, 200},
                                   {1e-5, 1e-5, 2, 300, 200},
                                   {1.5e-5, 1e-5, 2, 300, 200},
                                   {5e-4, 1e-5, 2, 300, 200},
                                   {5e-4, 3e-4, 3, 300, 201},
                                   {5e-4, -1, 3, 300, 201},
                                   {2e-3, 1e-5, 4, 301, 200},
                                   {-1, 1e-5, 4, 301, 200},
                                   {1e-3, 1e-5, 4, 301, 200},
                                   {1e-3, 3e-4, 4, 301, 200},
                                   {1e-3, -1, 4, 301, 200}};

StepInput machine_input(const MachineRow& row, float alpha_high, float alpha_low) {
  StepInput in;
  in.leaving = true;
  in.leaving_position = 935;
  in.high_tokens = 300;
  in.low_tokens = 200;
  if (row.high >= 0) in.high.consider(static_cast<float>(row.high), 17, 5);
  if (row.low >= 0) in.low.consider(static_cast<float>(row.low), 23, 9);
  in.thresholds = thresholds_at(alpha_high, alpha_low, 1.0f, 1000);
  return in;
}

int case_of(const HeadPlan& plan) {
  if (plan.leaving_to != Tier::kHigh) return 0;
  if (plan.high_victim_to == Tier::kDropped) return 1;
  if (plan.high_victim_to == Tier::kLow) return plan.low_victim_dropped != 0 ? 2 : 3;
  return 4;
}

TEST_CASE("the upstream rule follows every row of the worked state machine", "[policy][step]") {
  for (const MachineRow& row : kMachine) {
    INFO("least high " << row.high << ", least low " << row.low);
    const HeadPlan plan = plan_step(StepRule::kUpstream, machine_input(row, 1.0f, 0.02f));
    REQUIRE(case_of(plan) == row.expected_case);
    REQUIRE(plan.high_after == row.high_after);
    REQUIRE(plan.low_after == row.low_after);
    if (plan.high_victim_to != Tier::kKeep) REQUIRE(plan.high_victim == 5);
    if (plan.low_victim_dropped != 0) REQUIRE(plan.low_victim == 9);
  }
}

TEST_CASE("without a leaving token the upstream rule is case 0", "[policy][step]") {
  for (const MachineRow& row : kMachine) {
    StepInput in = machine_input(row, 1.0f, 0.02f);
    in.leaving = false;
    const HeadPlan plan = plan_step(StepRule::kUpstream, in);
    REQUIRE(case_of(plan) == 0);
    REQUIRE(plan.leaving_to == Tier::kKeep);
    REQUIRE(plan.high_after == 300);
    REQUIRE(plan.low_after == 200);
  }
}

TEST_CASE("with a low threshold of zero the upstream rule prunes nothing", "[policy][step]") {
  for (MachineRow row : kMachine) {
    for (const double low : {row.low, 0.0}) {  // a significance of 0 is not below 0
      row.low = low;
      const int happened = case_of(plan_step(StepRule::kUpstream, machine_input(row, 1.0f, 0.0f)));
      REQUIRE((happened == 3 || happened == 4));
      REQUIRE(happened == (row.high >= 0 && row.high < 1e-3 ? 3 : 4));
    }
  }
}

TEST_CASE("with equal thresholds the low tier is used only by a worse low token",
          "[policy][step]") {
  Rng rng(7102);
  INFO(rng.describe());
  int exchanges = 0;
  for (int i = 0; i < 100000; ++i) {
    MachineRow row{rng.uniform() * 4e-5, rng.uniform() * 4e-5, 0, 0, 0};
    if (rng.below(4) == 0) row.low = -1;
    if (rng.below(4) == 0) row.low = row.high;
    const HeadPlan plan = plan_step(StepRule::kUpstream, machine_input(row, 0.02f, 0.02f));
    const int happened = case_of(plan);
    REQUIRE(happened != 3);
    if (happened == 2) {
      ++exchanges;
      REQUIRE((row.low >= 0 && row.low <= row.high));
    }
    if (row.low < 0) REQUIRE((happened == 1 || happened == 4));
  }
  REQUIRE(exchanges > 0);
}

TEST_CASE("thresholds of zero keep every token high under every threshold rule", "[policy][step]") {
  const StepRule rule = GENERATE(StepRule::kUpstream, StepRule::kPaper, StepRule::kClassify);
  Rng rng(7103);
  INFO(rng.describe());
  ScoreStream stream(rng, 0);
  for (int i = 0; i < 1000; ++i) {
    stream.advance();
    stream.in.low_threshold = stream.in.high_threshold = Range::exact(0.0);
    const std::size_t before = stream.in.high.size();
    const HeadPlan plan = plan_step(rule, step_input(stream.in));
    REQUIRE(plan.high_after == static_cast<std::int32_t>(before + (stream.in.leaving ? 1 : 0)));
    REQUIRE(plan.low_after == 0);
    apply(step_of(plan, stream.in), stream.in);
  }
}

TEST_CASE("equal alphas put no token into the low tier under the paper's rules", "[policy][step]") {
  const StepRule rule = GENERATE(StepRule::kPaper, StepRule::kClassify);
  Rng rng(7104);
  INFO(rng.describe());
  ScoreStream stream(rng, 0);
  int dropped = 0;
  for (int i = 0; i < 3000; ++i) {
    stream.advance();
    stream.in.high_threshold = stream.in.low_threshold;
    const HeadPlan plan = plan_step(rule, step_input(stream.in));
    dropped += plan.leaving_to == Tier::kDropped ? 1 : 0;
    REQUIRE(plan.low_after == 0);
    apply(step_of(plan, stream.in), stream.in);
  }
  REQUIRE(dropped > 0);
}

}  // namespace
}  // namespace quire::test
