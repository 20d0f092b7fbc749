// Oracle: the budget itself. Tokens, records and physical bytes are counted after the prompt and
// after every step; what has to stay is looked for; how much is left unspent is bounded.
#include <algorithm>
#include <vector>

#include "src/control.hpp"
#include "support/catch.hpp"
#include "support/policy_recipes.hpp"

namespace quire::test {
namespace {

StreamShape budget_shape(std::uint32_t tokens) {
  StreamShape shape;
  shape.tokens = tokens;
  return shape;
}

// Sinks and window are there at every length, and nothing is there twice.
void check_protected(const Rig& rig, std::int32_t slot, std::uint32_t length) {
  for (std::uint32_t layer = 0; layer < rig.spec.group.layers; ++layer) {
    for (std::uint32_t head = 0; head < rig.spec.group.kv_heads; ++head) {
      const std::vector<KeptToken> kept = rig.kept(slot, layer, head);
      std::vector<int> times(length, 0);
      for (const KeptToken& t : kept) ++times.at(static_cast<std::size_t>(t.position));
      const std::uint32_t window = std::min(rig.spec.window(), length);
      for (std::uint32_t p = 0; p < length; ++p) {
        const bool guarded = p < rig.spec.sinks() || p >= length - window;
        INFO("length " << length << " position " << p);
        REQUIRE((guarded ? times[p] == 1 : times[p] <= 1));
      }
    }
  }
}

std::uint64_t record_bytes(const Rig& rig, std::int32_t slot) {
  const quire_seq_info info = rig.cache.info(slot);
  return info.record_bytes + info.ring_tokens * rig.state().group.ring.tokens.record_bytes;
}

TEST_CASE("every recipe keeps sinks and window at every step", "[policy][budget]") {
  for (const NamedSpec& named : small_recipes(budget_shape(300))) {
    Rng rng(7901);
    INFO(rng.describe() << " " << named.name);
    const Stream stream(budget_shape(300), rng);
    Rig rig(named.spec);
    const std::int32_t slot = rig.open();
    rig.prompt(slot, stream, 180);
    check_protected(rig, slot, 180);
    for (std::uint32_t t = 180; t < 300; ++t) {
      rig.step(slot, stream, t);
      check_protected(rig, slot, t + 1);
    }
  }
}

TEST_CASE("a token budget holds exactly after prompt and steps", "[policy][budget]") {
  const std::uint32_t recipe =
      GENERATE(QUIRE_RECIPE_STREAMING_LLM, QUIRE_RECIPE_H2O, QUIRE_RECIPE_SNAPKV);
  const std::uint32_t budget = GENERATE(25u, 26u, 90u, 200u, 1000u);
  const std::uint32_t prompt = GENERATE(0u, 20u, 150u);
  Rng rng(7902);
  INFO(rng.describe() << " recipe " << recipe << " budget " << budget << " prompt " << prompt);
  const Stream stream(budget_shape(prompt + 120), rng);
  RigSpec spec(recipe, stream.shape);
  spec.set_ring(1, 24);
  spec.policy.budget_tokens = budget;
  Rig rig(spec);
  const std::int32_t slot = rig.open();
  if (prompt > 0) rig.prompt(slot, stream, prompt);
  for (std::uint32_t t = prompt; t < stream.shape.tokens; ++t) {
    rig.step(slot, stream, t);
    for (std::uint32_t head = 0; head < 2; ++head)
      REQUIRE(rig.kept(slot, 1, head).size() == std::min(budget, t + 1));
  }
}

TEST_CASE("a growing recipe keeps all of the answer", "[policy][budget]") {
  const std::uint32_t recipe =
      GENERATE(QUIRE_RECIPE_STREAMING_LLM, QUIRE_RECIPE_H2O, QUIRE_RECIPE_SNAPKV);
  Rng rng(7903);
  INFO(rng.describe() << " recipe " << recipe);
  const Stream stream(budget_shape(260), rng);
  RigSpec spec(recipe, stream.shape);
  spec.set_ring(2, 24);
  spec.policy.flags |= QUIRE_POLICY_GROWS;
  spec.policy.budget_tokens = 70;
  Rig rig(spec);
  const std::int32_t slot = rig.open();
  rig.prompt(slot, stream, 160);
  std::vector<KeptToken> prompt = rig.kept(slot, 0, 1);
  REQUIRE(prompt.size() == 70);
  for (std::uint32_t t = 160; t < 260; ++t) rig.step(slot, stream, t);
  const std::vector<KeptToken> kept = rig.kept(slot, 0, 1);
  REQUIRE(kept.size() == 170);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const std::int32_t want = i < 70 ? prompt[i].position : 160 + static_cast<std::int32_t>(i) - 70;
    REQUIRE(kept[i].position == want);
  }
}

// Records, ring included, within the budget, and with something to spend close to it.
TEST_CASE("a record budget is never exceeded", "[policy][budget]") {
  const std::uint32_t recipe = GENERATE(QUIRE_RECIPE_STREAMING_LLM,
                                        QUIRE_RECIPE_H2O,
                                        QUIRE_RECIPE_SNAPKV,
                                        QUIRE_RECIPE_QUIRE_BUDGET,
                                        QUIRE_RECIPE_DIFFKV_UPSTREAM);
  Rng rng(7904);
  INFO(rng.describe() << " recipe " << recipe);
  const Stream stream(budget_shape(360), rng);
  RigSpec spec(recipe, stream.shape);
  spec.set_ring(1, 16);
  spec.policy.budget_tokens = 0;
  spec.policy.byte_target = 0.0;
  spec.policy.min_queries = std::min(spec.policy.min_queries, 40u);
  const Rig probe(spec);
  const std::uint64_t record = probe.state().group.layout.tier[0].record_bytes;
  const std::uint64_t ring = probe.state().group.ring.tokens.record_bytes;
  spec.policy.budget_bytes = 4 * (17 * ring + 110 * record) + 1;
  Rig rig(spec);
  const std::int32_t slot = rig.open();
  rig.prompt(slot, stream, 240);
  REQUIRE(record_bytes(rig, slot) <= spec.policy.budget_bytes);
  for (std::uint32_t t = 240; t < 360; ++t) {
    rig.step(slot, stream, t);
    const std::uint64_t bytes = record_bytes(rig, slot);
    INFO("length " << t + 1 << " bytes " << bytes << " of " << spec.policy.budget_bytes);
    REQUIRE(bytes <= spec.policy.budget_bytes);
    // A controller keeps room for a token per head and step until its next run.
    const std::uint64_t growth = spec.policy.kind == QUIRE_EVICT ? 1 : spec.policy.cadence + 1;
    REQUIRE(bytes + 4 * growth * record >= spec.policy.budget_bytes);
  }
}

// Physical bytes after every call: never above the target, their mean at most 2 percent below. A
// single step may be further below, by the pages that all heads can take until the next run of the
// controller.
class TargetCheck {
 public:
  TargetCheck(const Rig& rig, std::int32_t slot) : rig_(rig), slot_(slot) {
    const Group& group = rig.state().group;
    const std::uint64_t grown =
        ceil_div(rig.state().slots[slot].policy.cadence, group.layout.tier[0].tokens);
    const bool controlled = rig.spec.policy.kind == QUIRE_THRESHOLD;
    ahead_ =
        controlled ? static_cast<double>(group.heads() * grown * group.layout.page_bytes) : 0.0;
  }

  void see(std::uint32_t length) {
    const quire_seq_info info = rig_.cache.info(slot_);
    const double bytes = static_cast<double>(info.total_bytes);
    const double target = rig_.spec.policy.byte_target * static_cast<double>(info.fp16_bytes);
    INFO("length " << length << " bytes " << bytes << " target " << target);
    REQUIRE(info.tokens == length);
    REQUIRE(bytes <= target);
    REQUIRE(bytes + ahead_ >= (1.0 - kSpare) * target);
    met_ += bytes / target;
    ++seen_;
  }
  void close() const { REQUIRE(met_ / seen_ >= 1.0 - kSpare); }

 private:
  static constexpr double kSpare = 0.02;
  const Rig& rig_;
  std::int32_t slot_;
  double ahead_ = 0.0;
  double met_ = 0.0;
  int seen_ = 0;
};

struct TargetCase {
  std::uint32_t recipe;
  double target;
};

// A prompt above 1,024 tokens, from where on the target is promised within 2 percent.
void follow_target(const TargetCase& c, std::uint64_t seed) {
  constexpr std::uint32_t kPrompt = 1100;
  constexpr std::uint32_t kSteps = 70;
  StreamShape shape = budget_shape(kPrompt + kSteps);
  shape.dim = 64;
  shape.layers = 4;
  shape.kv_heads = 3;
  Rng rng(seed);
  INFO(rng.describe() << " recipe " << c.recipe << " target " << c.target);
  const Stream stream(shape, rng);
  RigSpec spec(c.recipe, shape);
  spec.max_tokens = 2048;
  spec.group.layout.page_bytes = 2048;
  if (spec.policy.kind == QUIRE_EVICT) spec.group.layout.page_bytes = 4480;  // 16 tokens in 16 bit
  spec.group.ring_format = QUIRE_RING_K8V8;
  spec.policy.tail_queries = std::min(spec.policy.tail_queries, 128u);
  spec.policy.budget_tokens = 0;
  spec.policy.byte_target = c.target;
  Rig rig(spec);
  const std::int32_t slot = rig.open();
  rig.prompt(slot, stream, kPrompt);
  TargetCheck check(rig, slot);
  check.see(kPrompt);
  for (std::uint32_t t = kPrompt; t < kPrompt + kSteps; ++t) {
    rig.step(slot, stream, t);
    check.see(t + 1);
  }
  check.close();
}

TEST_CASE("quire_budget meets a byte target from below, within 2 percent, at every step",
          "[policy][budget]") {
  const std::uint64_t seed = GENERATE(7905u, 7906u);
  follow_target(GENERATE(TargetCase{QUIRE_RECIPE_QUIRE_BUDGET, 0.22},
                         TargetCase{QUIRE_RECIPE_QUIRE_BUDGET, 0.25},
                         TargetCase{QUIRE_RECIPE_QUIRE_BUDGET, 0.29}),
                seed);
}

TEST_CASE("DiffKV meets a byte target from below, within 2 percent, at every step",
          "[policy][budget]") {
  follow_target(GENERATE(TargetCase{QUIRE_RECIPE_DIFFKV_UPSTREAM, 0.25},
                         TargetCase{QUIRE_RECIPE_DIFFKV_UPSTREAM, 0.29},
                         TargetCase{QUIRE_RECIPE_DIFFKV_PAPER, 0.3}),
                7905);
}

// Whatever is left of the target: a token that leaves the ring between two runs of the controller
// may go to either tier, and a page of that tier must have been set aside.
TEST_CASE("a byte target is never exceeded, whatever the cadence", "[policy][budget]") {
  const std::uint32_t recipe =
      GENERATE(QUIRE_RECIPE_QUIRE_BUDGET, QUIRE_RECIPE_DIFFKV_UPSTREAM, QUIRE_RECIPE_DIFFKV_PAPER);
  const std::uint32_t cadence = GENERATE(1u, 3u, 8u, 16u, 33u);
  Rng rng(7907);
  INFO(rng.describe() << " recipe " << recipe << " cadence " << cadence);
  const Stream stream(budget_shape(360), rng);
  std::size_t checked = 0;
  for (int i = 0; i < 10; ++i) {
    RigSpec spec(recipe, stream.shape);
    spec.set_ring(1, 24);
    spec.group.ring_format = QUIRE_RING_K8V8;
    spec.policy.byte_target = 0.26 + 0.025 * i;
    spec.policy.cadence = cadence;
    spec.policy.min_queries = i % 2 == 0 ? 0 : std::min(spec.policy.min_queries, 40u);
    Rig rig(spec);
    const std::int32_t slot = rig.open();
    rig.prompt(slot, stream, 280);
    for (std::uint32_t t = 280; t < 360; ++t) {
      rig.step(slot, stream, t);
      // Nothing to check where dropping everything would not do.
      if (rig.state().slots[slot].factor >= kDropAll) break;
      ++checked;
      const quire_seq_info info = rig.cache.info(slot);
      INFO("target " << spec.policy.byte_target << " length " << t + 1);
      REQUIRE(static_cast<double>(info.total_bytes) <=
              spec.policy.byte_target * static_cast<double>(info.fp16_bytes));
    }
  }
  REQUIRE(checked > 200);
}

TEST_CASE("an evicting recipe meets a byte target from below, within 2 percent, at every step",
          "[policy][budget]") {
  follow_target(GENERATE(TargetCase{QUIRE_RECIPE_H2O, 0.25},
                         TargetCase{QUIRE_RECIPE_STREAMING_LLM, 0.25},
                         TargetCase{QUIRE_RECIPE_SNAPKV, 0.25}),
                7905);
}

TEST_CASE("a target below what must stay keeps just that and goes on", "[policy][budget]") {
  const std::uint32_t recipe =
      GENERATE(QUIRE_RECIPE_QUIRE_BUDGET, QUIRE_RECIPE_DIFFKV_UPSTREAM, QUIRE_RECIPE_H2O);
  const std::uint32_t prompt = GENERATE(0u, 150u);
  Rng rng(7906);
  INFO(rng.describe() << " recipe " << recipe << " prompt " << prompt);
  const Stream stream(budget_shape(260), rng);
  RigSpec spec(recipe, stream.shape);
  spec.set_ring(1, 24);
  spec.policy.budget_tokens = 0;
  spec.policy.byte_target = 0.01;  // the ring alone is larger
  spec.policy.min_queries = std::min(spec.policy.min_queries, 50u);
  Rig rig(spec);
  const std::int32_t slot = rig.open();
  if (prompt > 0) rig.prompt(slot, stream, prompt);
  for (std::uint32_t t = prompt; t < 260; ++t) rig.step(slot, stream, t);
  check_protected(rig, slot, 260);
  for (std::uint32_t head = 0; head < 2; ++head) {
    for (const KeptToken& t : rig.kept(slot, 0, head)) {
      if (t.tier == 255) continue;
      // Only probation and the wait for the controller's next run keep a token.
      REQUIRE(recipe != QUIRE_RECIPE_H2O);
      const std::uint32_t guarded = std::max(spec.policy.min_queries, spec.window());
      REQUIRE(260 - t.position <= static_cast<std::int32_t>(guarded + spec.policy.cadence));
    }
  }
}

}  // namespace
}  // namespace quire::test
