// Re-tiering one head. Oracle: the head's tokens as plain arrays (pages_head_model.hpp), on which
// the same decisions are carried out; which token ends where is also told from the decisions alone.
#include "quire/pages/head_tokens.hpp"

#include <memory>
#include <vector>

#include "support/attention_head.hpp"
#include "support/catch.hpp"
#include "support/gen.hpp"
#include "support/pages_head_model.hpp"

namespace quire {
namespace {

constexpr std::uint32_t kDim = 64;
constexpr std::uint32_t kPageTokens = 16;

enum class Pair { kDiffkv, kOwn, kFromHalf, kOneTier };
constexpr Pair kPairs[] = {Pair::kDiffkv, Pair::kOwn, Pair::kFromHalf, Pair::kOneTier};

// The smallest pages that hold 16 tokens, so that a few tokens cross page borders.
test::HeadSpec head_spec(Pair pair, std::uint32_t high, std::uint32_t low) {
  test::HeadSpec spec;
  const VectorFormat k8 = {Grid::kAffine, 8, 0, 0}, k4 = {Grid::kAffine, 4, 0, 0};
  const VectorFormat v2 = {Grid::kAffine, 2, 0, 0};
  const VectorFormat k6 = {Grid::kSymmetricUniform, 6, 32, kTransformHadamard};
  const VectorFormat t4 = {Grid::kSymmetricTable, 4, 0, kTransformHadamard};
  const VectorFormat t3 = {Grid::kSymmetricTable, 3, 0, kTransformHadamard};
  const VectorFormat f16 = test::float_format(Grid::kF16);
  switch (pair) {
    case Pair::kDiffkv: spec.tier[0] = {k8, k4}, spec.tier[1] = {k4, v2}; break;
    case Pair::kOwn: spec.tier[0] = {k6, t4}, spec.tier[1] = {t4, t3}; break;
    case Pair::kFromHalf: spec.tier[0] = {f16, f16}, spec.tier[1] = {k4, v2}; break;
    case Pair::kOneTier: spec.tier[0] = {k8, k4}, spec.tier_count = 1; break;
  }
  spec.ring = spec.tier[0];
  spec.dim_k = spec.dim_v = kDim;
  spec.sinks = 2;
  spec.window = 8;
  spec.tokens[0] = high;
  spec.tokens[1] = spec.tier_count > 1 ? low : 0;
  spec.room[1] = high;
  spec.length = static_cast<std::int32_t>(high + low) + 17;  // some were dropped before
  for (std::uint32_t t = 0; t < spec.tier_count; ++t) {
    const std::uint64_t bytes =
        tier_layout(spec.tier[t], kDim, kDim, spec.fields, kPageTokens).bytes;
    spec.page_bytes = std::max(spec.page_bytes, round_up<std::uint64_t>(bytes, 64));
  }
  return spec;
}

// A head with a score of its own for every token.
std::unique_ptr<test::TestHead> make_head(const test::HeadSpec& spec, std::uint64_t seed) {
  test::Rng rng(seed);
  auto head = std::make_unique<test::TestHead>(spec, rng);
  REQUIRE(head->layout.tier[0].tokens == kPageTokens);
  float score = 0.0f;
  head->each_token([&](const Segment& s, std::uint32_t t) {
    score_array(*s.layout, s.base)[s.first + t] = score += 0.25f;
  });
  return head;
}

struct Rates {
  std::uint32_t drop;    // of 16 tokens
  std::uint32_t demote;  // of 16 tokens of the high tier
};

std::vector<Tier> decide(const test::HeadModel& model,
                         std::int32_t length,
                         Rates rates,
                         test::Rng& rng) {
  std::vector<Tier> wanted(static_cast<std::size_t>(length), Tier::kKeep);
  for (std::uint32_t t = 0; t < kMaxTiers; ++t) {
    for (const test::ModelToken& token : model.tier[t]) {
      Tier& to = wanted[static_cast<std::size_t>(token.position)];
      const std::uint32_t draw = rng.below(16);
      if (draw < rates.drop) {
        to = Tier::kDropped;
      } else if (t == 0 && draw < rates.drop + rates.demote) {
        to = Tier::kLow;
      } else {
        to = rng.below(2) == 0 ? Tier::kKeep : static_cast<Tier>(t);
      }
    }
  }
  return wanted;
}

// Positions that end in a tier, told from where they were and what was decided.
std::vector<std::int32_t> expected_positions(const test::HeadModel& before,
                                             const std::vector<Tier>& wanted,
                                             std::uint32_t tier) {
  std::vector<std::int32_t> out;
  for (std::uint32_t t = 0; t < kMaxTiers; ++t) {
    for (const std::int32_t p : before.positions(t)) {
      const Tier to = wanted[static_cast<std::size_t>(p)];
      const std::uint32_t ends = to == Tier::kKeep ? t : static_cast<std::uint32_t>(to);
      if (ends == tier) out.push_back(p);
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

void require_counts(const RetierCounts& counts, const test::HeadModel& model) {
  REQUIRE(counts.tokens[0] == model.tier[0].size());
  REQUIRE(counts.tokens[1] == model.tier[1].size());
  REQUIRE(counts.demoted == model.demoted_tokens);
  REQUIRE(counts.dropped == model.dropped);
}

// One head through count_retier and retier.
void run_retier(Pair pair, std::uint32_t high, std::uint32_t low, Rates rates, test::Rng& rng) {
  if (pair == Pair::kOneTier) rates.demote = 0;
  const test::HeadSpec spec = head_spec(pair, high, low);
  const auto head = make_head(spec, rng.bits());
  const test::HeadModel before(head->view());
  const std::vector<Tier> wanted = decide(before, spec.length, rates, rng);
  test::HeadModel model = before;
  model.retier(wanted);
  const auto tier_of = [&](float score, std::int32_t position, Tier now) {
    const auto t = static_cast<std::uint32_t>(now);
    bool known = false;  // the decision is asked with what the token carries
    for (const test::ModelToken& token : before.tier[t])
      known = known || (token.position == position && token.score == score);
    REQUIRE(known);
    return wanted[static_cast<std::size_t>(position)];
  };
  const std::vector<std::uint8_t> bytes = head->bytes();
  require_counts(count_retier(head->view(), tier_of), model);
  REQUIRE(head->bytes() == bytes);  // only counted

  const test::Snapshot ring = test::snapshot(head->view());
  CodecEvents events;
  const RetierCounts counts = retier(head->view(), tier_of, events);
  require_counts(counts, model);
  REQUIRE(events.saturated == 0);
  head->set_tokens(counts.tokens[0], counts.tokens[1], spec.length);
  const test::HeadModel after(head->view());
  REQUIRE(after.positions(0) == expected_positions(before, wanted, 0));
  REQUIRE(after.positions(1) == expected_positions(before, wanted, 1));
  REQUIRE(after == model);
  for (const auto& entry : ring) {  // what the ring holds is not touched
    if (entry.second.tier != kRingTier) continue;
    const test::Snapshot now = test::snapshot(head->view());
    REQUIRE(now.at(entry.first) == entry.second);
  }
}

TEST_CASE("a plan moves and drops tokens as the arrays say, at every page border",
          "[pages][head_tokens]") {
  test::Rng rng(41);
  INFO(rng.describe());
  const Rates rates[] = {{0, 0}, {0, 16}, {16, 0}, {4, 6}, {1, 1}, {8, 8}, {0, 3}, {14, 1}};
  for (const Pair pair : kPairs) {
    for (const std::uint32_t high : {0u, 1u, 15u, 16u, 17u, 32u, 33u}) {
      for (const std::uint32_t low : {0u, 1u, 16u, 17u, 31u, 48u}) {
        const Rates r = rates[rng.below(8)];
        INFO("pair " << static_cast<int>(pair) << " high " << high << " low " << low << " drop "
                     << r.drop << " demote " << r.demote);
        run_retier(pair, high, low, r, rng);
      }
    }
    for (const Rates r : rates) {
      INFO("pair " << static_cast<int>(pair) << " drop " << r.drop << " demote " << r.demote);
      run_retier(pair, 50, 40, r, rng);
    }
  }
}

// ---- Victims of a step -----------------------------------------------------------------------

struct Victims {
  std::int32_t low;   // -1: none
  std::int32_t high;  // -1: none
  Tier high_to;
};

HeadPlan plan_of(const Victims& victims) {
  HeadPlan plan;
  plan.low_victim = victims.low;
  plan.low_victim_dropped = victims.low >= 0 ? 1 : 0;
  plan.high_victim = victims.high;
  plan.high_victim_to = victims.high >= 0 ? victims.high_to : Tier::kKeep;
  return plan;
}

// Two equal heads, one through move_victims, the other through retier of the same tokens.
void run_victims(Pair pair, const Victims& victims) {
  INFO("pair " << static_cast<int>(pair) << " low " << victims.low << " high " << victims.high
               << " to " << static_cast<int>(victims.high_to));
  const test::HeadSpec spec = head_spec(pair, 33, 32);
  const auto fast = make_head(spec, 4);
  const auto slow = make_head(spec, 4);
  REQUIRE(fast->bytes() == slow->bytes());
  const test::HeadModel before(fast->view());
  std::vector<Tier> wanted(static_cast<std::size_t>(spec.length), Tier::kKeep);
  const auto position = [&](std::uint32_t t, std::int32_t index) {
    return static_cast<std::size_t>(before.tier[t][static_cast<std::size_t>(index)].position);
  };
  if (victims.low >= 0) wanted[position(1, victims.low)] = Tier::kDropped;
  if (victims.high >= 0) wanted[position(0, victims.high)] = victims.high_to;
  test::HeadModel model = before;
  model.retier(wanted);

  CodecEvents events;
  const RetierCounts counts = move_victims(fast->view(), plan_of(victims), events);
  const RetierCounts same = retier(
      slow->view(),
      [&](float, std::int32_t p, Tier) { return wanted[static_cast<std::size_t>(p)]; },
      events);
  require_counts(counts, model);
  require_counts(same, model);
  fast->set_tokens(counts.tokens[0], counts.tokens[1], spec.length);
  slow->set_tokens(same.tokens[0], same.tokens[1], spec.length);
  REQUIRE(test::HeadModel(fast->view()) == model);
  REQUIRE(test::HeadModel(slow->view()) == model);
  REQUIRE(fast->bytes() == slow->bytes());
}

TEST_CASE("victims of a step move as if every token had been asked", "[pages][head_tokens]") {
  for (const Pair pair : kPairs) {
    for (const std::int32_t low : {-1, 0, 1, 15, 16, 30, 31}) {
      if (pair == Pair::kOneTier && low >= 0) continue;
      for (const std::int32_t high : {-1, 0, 15, 16, 31, 32}) {
        run_victims(pair, {low, high, Tier::kDropped});
        if (pair != Pair::kOneTier && high >= 0) run_victims(pair, {low, high, Tier::kLow});
      }
    }
  }
}

// A long life: plans follow each other, pages empty and fill again.
TEST_CASE("many plans in a row keep every record intact", "[pages][head_tokens]") {
  test::Rng rng(42);
  INFO(rng.describe());
  for (const Pair pair : kPairs) {
    test::HeadSpec spec = head_spec(pair, 200, 70);
    const auto head = make_head(spec, rng.bits());
    test::HeadModel model(head->view());
    for (int turn = 0; turn < 25 && !model.tier[0].empty(); ++turn) {
      const bool two = spec.tier_count > 1;
      const std::vector<Tier> wanted = decide(model, spec.length, {1, two ? 1u : 0u}, rng);
      model.retier(wanted);
      CodecEvents events;
      const RetierCounts counts = retier(
          head->view(),
          [&](float, std::int32_t p, Tier) { return wanted[static_cast<std::size_t>(p)]; },
          events);
      head->set_tokens(counts.tokens[0], counts.tokens[1], spec.length);
      REQUIRE(test::HeadModel(head->view()) == model);
    }
    REQUIRE(model.dropped > 100);
  }
}

}  // namespace
}  // namespace quire
