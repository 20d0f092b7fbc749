// Contract of Backend::append. Oracle: the tokens of the head as a map from position to record, the
// plan carried out on that map, records re-encoded by the scalar definition. Bits are compared.
#pragma once

#include <memory>
#include <vector>

#include "src/backend.hpp"
#include "support/attention_formats.hpp"
#include "support/attention_snapshot.hpp"
#include "support/attention_threads.hpp"
#include "support/catch.hpp"

namespace quire::contract {

// One head before and after a step.
class AppendCase {
 public:
  AppendCase(const test::HeadSpec& spec, test::Rng& rng) : head(spec, rng) {
    head.set_scores(0.0f);
    float score = 0.0f;
    head.each_token([&](const Segment& s, std::uint32_t t) {
      score_array(*s.layout, s.base)[s.first + t] = score += 0.125f;
    });
    expected = test::snapshot(head.view());
    k = rng.normals(spec.dim_k);
    v = rng.normals(spec.dim_v);
    state.tokens[0] = spec.tokens[0];
    state.tokens[1] = spec.tokens[1];
    unit.view = head.view();
    unit.state = &state;
    unit.plan.leaving_to = Tier::kHigh;
  }

  std::int32_t position(std::uint32_t tier, std::int32_t index) const {
    return place_of(head.view(), tier, static_cast<std::uint32_t>(index)).position();
  }

  // The plan, carried out on `expected`.
  void expect_plan() {
    const HeadPlan& plan = unit.plan;
    const RingShape shape = test::ring_shape(head.spec);
    const std::int32_t length = head.spec.length;
    if (plan.retier != 0) {
      expect_retier();
    } else {
      if (plan.low_victim_dropped != 0) drop(position(1, plan.low_victim));
      if (plan.high_victim_to == Tier::kLow) demote(position(0, plan.high_victim), 1);
      if (plan.high_victim_to == Tier::kDropped) drop(position(0, plan.high_victim));
    }
    const bool in_ring = shape.holds(length, length + 1);
    const std::int32_t leaving = in_ring ? shape.window_begin(length) : length;
    if (!in_ring) expected[length] = fresh(static_cast<std::uint32_t>(plan.leaving_to));
    if (in_ring && plan.leaving_to != Tier::kKeep) leave_ring(leaving, plan.leaving_to);
    if (in_ring) expected[length] = fresh(kRingTier);
  }

  void run(const Backend& backend) {
    std::uint64_t saturated = 0;
    AppendCall call;
    call.units = &unit;
    call.unit_count = 1;
    call.k = {k.data(), DType::kF32, head.spec.dim_k, head.spec.dim_k, head.spec.dim_k};
    call.v = {v.data(), DType::kF32, head.spec.dim_v, head.spec.dim_v, head.spec.dim_v};
    call.saturated = &saturated;
    backend.append(call);
    head.set_tokens(state.tokens[0], state.tokens[1], head.spec.length + 1);
  }

  void check() const {
    const test::Snapshot after = test::snapshot(head.view());
    std::uint32_t stored = 0;
    head.each_token([&](const Segment&, std::uint32_t) { ++stored; });
    REQUIRE(stored == after.size());  // no position twice
    REQUIRE(after.size() == expected.size());
    for (const auto& entry : expected) {
      INFO("position " << entry.first << " tier " << entry.second.tier);
      const auto found = after.find(entry.first);
      REQUIRE(found != after.end());
      REQUIRE(found->second.tier == entry.second.tier);
      REQUIRE(found->second.score == entry.second.score);
      const bool equal = found->second == entry.second;
      REQUIRE(equal);
    }
    REQUIRE(unit.demoted == demoted);
    REQUIRE(unit.dropped == dropped);
  }

  test::TestHead head;
  AppendUnit unit;
  HeadState state = {};
  test::Snapshot expected;
  std::vector<float> k;
  std::vector<float> v;
  std::uint32_t demoted = 0;  // expected
  std::uint32_t dropped = 0;

 private:
  Format format_of(std::uint32_t tier) const {
    return tier == kRingTier ? head.spec.ring : head.spec.tier[tier];
  }

  void recode(std::int32_t at, std::uint32_t tier) {
    test::StoredToken& token = expected.at(at);
    const Format from = format_of(token.tier);
    token.k = test::demoted(from.k, format_of(tier).k, head.spec.dim_k, token.k);
    token.v = test::demoted(from.v, format_of(tier).v, head.spec.dim_v, token.v);
    token.tier = tier;
  }

  void demote(std::int32_t at, std::uint32_t tier) {
    recode(at, tier);
    ++demoted;
  }

  void drop(std::int32_t at) {
    REQUIRE(expected.erase(at) == 1);
    ++dropped;
  }

  void leave_ring(std::int32_t at, Tier to) {
    if (to == Tier::kDropped) {
      drop(at);
    } else {
      recode(at, static_cast<std::uint32_t>(to));
    }
  }

  test::StoredToken fresh(std::uint32_t tier) const {
    const HeadView view = head.view();
    test::StoredToken token;
    token.tier = tier;
    token.k = test::encoded(format_of(tier).k, view.k, head.spec.dim_k, k.data());
    token.v = test::encoded(format_of(tier).v, view.v, head.spec.dim_v, v.data());
    return token;
  }

  Tier wanted(std::int32_t at, const test::StoredToken& token) const {
    const auto now = static_cast<Tier>(token.tier);
    if (unit.replay == nullptr) return unit.rule.tier_of(token.score, at, now);
    for (std::uint32_t i = 0; i < unit.replay_count; ++i) {
      if (unit.replay[i].position == at) return unit.replay[i].to;
    }
    return now;
  }

  void expect_retier() {
    const test::Snapshot before = expected;
    for (const auto& entry : before) {
      if (entry.second.tier == kRingTier) continue;
      const Tier to = wanted(entry.first, entry.second);
      if (to == Tier::kDropped) drop(entry.first);
      if (to == Tier::kLow && entry.second.tier == 0) demote(entry.first, 1);
    }
  }
};

inline test::HeadSpec append_spec(std::uint32_t index) {
  test::HeadSpec spec = test::walk_spec(index, 64, 96, 200);
  spec.has_ring = true;
  spec.sinks = index % 3;
  spec.window = 20 + index % 5;
  spec.draft = index % 4;
  spec.tokens[0] = 60 + index % 13;
  spec.tokens[1] = 64 + index % 7;
  spec.room[0] = spec.room[1] = 100;
  return spec;
}

inline void run_append(const Backend& backend, AppendCase& c) {
  c.expect_plan();
  c.run(backend);
  c.check();
}

// Every outcome of one step: where the leaving token goes, times what happens to the victims.
inline void append_carries_out_victims(const Backend& backend) {
  test::Rng rng(51);
  INFO(rng.describe());
  std::uint32_t index = 0;
  for (const Tier leaving : {Tier::kHigh, Tier::kLow, Tier::kDropped}) {
    for (const Tier high : {Tier::kKeep, Tier::kLow, Tier::kDropped}) {
      for (const bool low : {false, true}) {
        for (std::uint32_t turn = 0; turn < 6; ++turn, ++index) {
          AppendCase c(append_spec(index), rng);
          HeadPlan& plan = c.unit.plan;
          plan.leaving_to = leaving;
          plan.high_victim_to = high;
          const std::uint32_t last = c.head.spec.tokens[0] - 1;
          plan.high_victim =
              static_cast<std::int32_t>(turn == 0 ? 0 : (turn == 1 ? last : rng.below(last)));
          plan.low_victim_dropped = low ? 1 : 0;
          const std::uint32_t last_low = c.head.spec.tokens[1] - 1;
          plan.low_victim =
              static_cast<std::int32_t>(turn == 2 ? last_low : rng.below(last_low + 1));
          INFO("case " << index);
          run_append(backend, c);
        }
      }
    }
  }
}

// No window: the new token itself is the one that leaves. A ring that is not full: nothing leaves.
inline void append_without_leaving(const Backend& backend) {
  test::Rng rng(52);
  INFO(rng.describe());
  for (std::uint32_t index = 0; index < 20; ++index) {
    test::HeadSpec spec = append_spec(index);
    if (index % 2 == 0) {
      spec.window = 0;
      spec.draft = 0;
      spec.sinks = 2;
    } else {
      spec.length = 15;
      spec.window = 40;
      spec.tokens[0] = spec.tokens[1] = 0;
    }
    AppendCase c(spec, rng);
    c.unit.plan.leaving_to =
        index % 2 == 1 ? Tier::kKeep : (index % 4 == 0 ? Tier::kHigh : Tier::kLow);
    INFO("case " << index);
    run_append(backend, c);
  }
}

// A cadence step classifies every token; a replayed plan names the tokens.
inline void append_classifies_again(const Backend& backend) {
  test::Rng rng(53);
  INFO(rng.describe());
  for (std::uint32_t index = 0; index < 40; ++index) {
    AppendCase c(append_spec(index), rng);
    c.unit.plan.retier = 1;
    TierRule& rule = c.unit.rule;
    rule.significance = Significance::kMean;
    rule.tail_queries = 10;
    rule.ends.add(150);
    rule.length = c.head.spec.length;
    rule.min_queries = index % 2 == 0 ? 0 : 60;
    rule.thresholds = {0.15f, index % 4 < 2 ? 0.05f : 0.0f};
    std::vector<PlanMove> moves;
    if (index % 3 == 0) {
      for (const auto& entry : c.expected) {
        if (entry.second.tier == kRingTier || rng.below(3) == 0) continue;
        const Tier to = entry.second.tier == 1 || rng.below(2) == 0 ? Tier::kDropped : Tier::kLow;
        moves.push_back({0, 0, entry.first, to, {}});
      }
      c.unit.replay = moves.data();
      c.unit.replay_count = static_cast<std::uint32_t>(moves.size());
    }
    INFO("case " << index << " replayed " << moves.size());
    run_append(backend, c);
    if (index % 3 == 0) REQUIRE(c.dropped + c.demoted >= moves.size());
  }
}

// Several heads of several sequences on several workers: each takes its own row of k and v.
inline void append_takes_its_own_rows(const Backend& backend) {
  test::Rng rng(54);
  INFO(rng.describe());
  constexpr std::uint32_t kSequences = 3, kHeads = 2;
  std::vector<std::unique_ptr<AppendCase>> cases;
  std::vector<float> k, v;
  std::vector<AppendUnit> units;
  for (std::uint32_t u = 0; u < kSequences * kHeads; ++u) {
    cases.push_back(std::make_unique<AppendCase>(append_spec(7), rng));
    cases.back()->expect_plan();
    k.insert(k.end(), cases.back()->k.begin(), cases.back()->k.end());
    v.insert(v.end(), cases.back()->v.begin(), cases.back()->v.end());
    AppendUnit unit = cases.back()->unit;
    unit.sequence = u / kHeads;
    unit.kv_head = u % kHeads;
    units.push_back(unit);
  }
  test::Workers workers(4, test::Order::kThreads);
  std::vector<std::uint64_t> saturated(4, 0);
  AppendCall call;
  call.units = units.data();
  call.unit_count = static_cast<std::uint32_t>(units.size());
  call.k = {k.data(), DType::kF32, kHeads * 64, kHeads * 64, 64};
  call.v = {v.data(), DType::kF32, kHeads * 96, kHeads * 96, 96};
  call.saturated = saturated.data();
  call.parallel = workers.parallel();
  backend.append(call);
  for (const auto& c : cases) {
    c->head.set_tokens(c->state.tokens[0], c->state.tokens[1], c->head.spec.length + 1);
    c->check();
  }
}

}  // namespace quire::contract
