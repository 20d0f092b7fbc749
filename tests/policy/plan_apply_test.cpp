// Oracle: what a foreign plan says, token by token; a refused plan leaves every byte as it was.
#include <algorithm>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/policy_recipes.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kPrompt = 150;
constexpr std::uint32_t kWindow = 24;

StreamShape apply_shape() {
  StreamShape shape;
  shape.tokens = 300;
  return shape;
}

class Applied {
 public:
  explicit Applied(std::uint32_t recipe = QUIRE_RECIPE_FOREIGN, std::uint64_t pages = 4000)
      : rng(8201), stream(apply_shape(), rng), rig(spec_of(recipe, pages)), slot(rig.open()) {
    rig.prompt(slot, stream, kPrompt);
  }

  std::uint32_t tokens() const { return rig.cache.info(slot).tokens; }

  Result apply(const std::vector<std::uint8_t>& plan,
               std::uint32_t first_layer = 0,
               std::uint32_t layer_count = 2) {
    quire_plan_apply_args args = QUIRE_PLAN_APPLY_ARGS_INIT;
    args.slot = slot;
    args.first_layer = first_layer;
    args.layer_count = layer_count;
    args.tokens = tokens();
    args.tiers = plan.data();
    return rig.cache.plan_apply(args);
  }

  // [layer_count, kv_heads, tokens] of 255.
  std::vector<std::uint8_t> leave_all(std::uint32_t layer_count = 2) const {
    return std::vector<std::uint8_t>(std::size_t{layer_count} * 2 * tokens(), 255);
  }

  // Tiers of all heads by position, 254 where dropped.
  std::vector<std::uint32_t> tiers() const {
    std::vector<std::uint32_t> all;
    for (std::uint32_t h = 0; h < 4; ++h) {
      const std::size_t first = all.size();
      all.resize(first + tokens(), 254);
      for (const KeptToken& t : rig.kept(slot, h / 2, h % 2))
        all[first + static_cast<std::size_t>(t.position)] = t.tier;
    }
    return all;
  }

  void refuses(const std::vector<std::uint8_t>& plan, const std::string& field) {
    const std::vector<std::uint8_t> before = rig.records(slot);
    const quire_seq_info info = rig.cache.info(slot);
    const Result result = apply(plan);
    INFO("expected field " << field << ", got " << result.field() << ": " << result.text());
    REQUIRE(result.status() == QUIRE_INVALID_ARGUMENT);
    REQUIRE(result.field() == field);
    const bool unchanged = rig.records(slot) == before;
    REQUIRE(unchanged);
    REQUIRE(rig.cache.info(slot).live_pages == info.live_pages);
  }

  Rng rng;
  Stream stream;
  Rig rig;
  std::int32_t slot;

 private:
  static RigSpec spec_of(std::uint32_t recipe, std::uint64_t pages) {
    RigSpec spec(recipe, apply_shape());
    spec.set_ring(1, kWindow);
    spec.pages = pages;
    return spec;
  }
};

TEST_CASE("foreign plans demote, drop and leave what they say, again and again",
          "[policy][apply]") {
  Applied a;
  INFO(a.rng.describe());
  for (int round = 0; round < 12; ++round) {
    std::vector<std::uint32_t> want = a.tiers();
    std::vector<std::uint8_t> plan = a.leave_all();
    for (std::size_t i = 0; i < plan.size(); ++i) {
      if (want[i] == 255) continue;
      const std::uint32_t draw = a.rng.below(10);
      if (want[i] == 254) {  // ignored, whatever it says
        plan[i] = std::vector<std::uint8_t>{0, 1, 254, 255}[draw % 4];
        continue;
      }
      if (draw < 2) plan[i] = 254;
      if (draw >= 2 && draw < 5) plan[i] = 1;
      if (draw == 5 && want[i] == 0) plan[i] = 0;
      if (plan[i] != 255) want[i] = plan[i];
    }
    const Result result = a.apply(plan);
    INFO("round " << round << ": " << result.text());
    REQUIRE(result.ok());
    REQUIRE(a.tiers() == want);
    for (int step = 0; step < 10; ++step) a.rig.step(a.slot, a.stream, a.tokens());
  }
}

TEST_CASE("a plan may be of some layers only", "[policy][apply]") {
  Applied a;
  std::vector<std::uint32_t> want = a.tiers();
  std::vector<std::uint8_t> plan = a.leave_all(1);
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const std::size_t of_layer_1 = plan.size() + i;
    if (want[of_layer_1] != 255) want[of_layer_1] = plan[i] = i % 3 == 0 ? 254 : 1;
  }
  REQUIRE(a.apply(plan, 1, 1).ok());
  REQUIRE(a.tiers() == want);
  REQUIRE(a.apply(a.leave_all(1), 2, 1).status() == QUIRE_INVALID_ARGUMENT);
  REQUIRE(a.apply(a.leave_all(2), 1, 2).status() == QUIRE_INVALID_ARGUMENT);
}

TEST_CASE("a foreign plan refuses what it may not do", "[policy][apply]") {
  Applied a;
  std::vector<std::uint8_t> demote = a.leave_all();
  demote[3 * kPrompt + 7] = 1;
  REQUIRE(a.apply(demote).ok());
  for (std::uint32_t h = 0; h < 4; ++h) {
    const std::size_t row = std::size_t{h} * kPrompt;
    for (const std::size_t ring :
         {std::size_t{0}, std::size_t{kPrompt - kWindow}, std::size_t{kPrompt - 1}}) {
      for (const std::uint8_t tier : std::vector<std::uint8_t>{0, 1, 254}) {
        std::vector<std::uint8_t> plan = a.leave_all();
        plan[row + 3] = 254;  // a good entry before the bad one
        plan[row + ring] = tier;
        a.refuses(plan, "tiers");
      }
    }
    for (const std::uint8_t tier : std::vector<std::uint8_t>{2, 3, 128, 253}) {
      std::vector<std::uint8_t> plan = a.leave_all();
      plan[row + 3] = 254;
      plan[row + 20] = tier;
      a.refuses(plan, "tiers");
    }
  }
  std::vector<std::uint8_t> promote = a.leave_all();
  promote[3] = 254;
  promote[3 * kPrompt + 7] = 0;
  a.refuses(promote, "tiers");
}

TEST_CASE("a stale plan is refused", "[policy][apply]") {
  Applied a;
  std::vector<std::uint8_t> plan = a.leave_all();
  plan[3] = 254;
  a.rig.step(a.slot, a.stream, kPrompt);
  const std::vector<std::uint8_t> before = a.rig.records(a.slot);
  for (const std::uint32_t tokens : {0u, kPrompt, kPrompt + 2}) {
    quire_plan_apply_args args = QUIRE_PLAN_APPLY_ARGS_INIT;
    args.slot = a.slot;
    args.layer_count = 2;
    args.tokens = tokens;
    args.tiers = plan.data();
    const Result result = a.rig.cache.plan_apply(args);
    REQUIRE(result.status() == QUIRE_INVALID_ARGUMENT);
    REQUIRE(std::string(result.field()) == "tokens");
    REQUIRE(result.needed() == kPrompt + 1);
  }
  const bool unchanged = a.rig.records(a.slot) == before;
  REQUIRE(unchanged);
}

TEST_CASE("a plan that finds no page for its low tier changes nothing", "[policy][apply]") {
  Applied roomy;
  const std::uint64_t used = roomy.rig.cache.info(roomy.slot).live_pages;
  Applied full(QUIRE_RECIPE_KEEP_ALL, used);      // one tier would do, but the layout has two
  Applied tight(QUIRE_RECIPE_FOREIGN, used + 4);  // what the prompt reserved
  while (tight.rig.cache.info(tight.slot).live_pages < used + 4)  // until no page is free
    tight.rig.step(tight.slot, tight.stream, tight.tokens());
  std::vector<std::uint8_t> plan = tight.leave_all();
  for (std::uint32_t h = 0; h < 4; ++h) plan[std::size_t{h} * tight.tokens() + 9] = 1;
  const std::vector<std::uint8_t> before = tight.rig.records(tight.slot);
  const Result result = tight.apply(plan);
  REQUIRE(result.status() == QUIRE_OUT_OF_PAGES);
  REQUIRE(result.needed() == 4);
  REQUIRE(result.given() == 0);
  const bool unchanged = tight.rig.records(tight.slot) == before;
  REQUIRE(unchanged);
}

TEST_CASE("the step behind a foreign plan plans from what is left", "[policy][apply]") {
  Applied a(QUIRE_RECIPE_DIFFKV_UPSTREAM);
  INFO(a.rng.describe());
  for (int i = 0; i < 60; ++i) {
    a.rig.step(a.slot, a.stream, a.tokens());  // leaves the least significant tokens tracked
    std::vector<std::uint8_t> plan = a.leave_all();
    const std::vector<std::uint32_t> held = a.tiers();
    for (std::size_t t = 0; t < plan.size(); ++t)
      if (held[t] < 2 && a.rng.below(100) == 0) plan[t] = 254;
    REQUIRE(a.apply(plan).ok());
    MoveList tracked, scanned;
    REQUIRE(a.rig.begin(a.slot, &tracked).ok());
    REQUIRE(a.rig.cache.step_cancel().ok());
    for (std::uint32_t h = 0; h < 4; ++h)
      a.rig.state().head_state(a.slot, h / 2, h % 2).lowest_length = -1;
    REQUIRE(a.rig.begin(a.slot, &scanned).ok());
    REQUIRE(a.rig.cache.step_cancel().ok());
    REQUIRE(tracked.size() == scanned.size());
    for (std::size_t m = 0; m < tracked.size(); ++m) {
      REQUIRE(tracked[m].position == scanned[m].position);
      REQUIRE(tracked[m].to == scanned[m].to);
    }
  }
}

}  // namespace
}  // namespace quire::test
