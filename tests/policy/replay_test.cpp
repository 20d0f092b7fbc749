// Oracle: a second cache that is told what the first one decided; all pages and rings must be the
// same bytes, page ids included.
#include <algorithm>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/policy_recipes.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kPrompt = 180;
constexpr std::uint32_t kSteps = 240;

StreamShape replay_shape() {
  StreamShape shape;
  shape.tokens = kPrompt + kSteps;
  return shape;
}

NamedSpec replay_recipe(std::size_t which) {
  NamedSpec named = small_recipes(replay_shape())[which];
  named.spec.pages = 160;
  return named;
}

TEST_CASE("a prompt's plan fed back gives the same bytes", "[policy][replay]") {
  const std::size_t which = GENERATE(range(std::size_t{0}, std::size_t{10}));
  const NamedSpec named = replay_recipe(which);
  Rng rng(8101);
  INFO(rng.describe() << " " << named.name);
  const Stream stream(replay_shape(), rng);
  Rig a(named.spec);
  Rig b(named.spec);
  const std::int32_t slot = a.open();
  REQUIRE(b.open() == slot);
  std::vector<std::uint8_t> plan, again;
  a.prompt(slot, stream, kPrompt, nullptr, &plan);
  b.prompt(slot, stream, kPrompt, plan.data(), &again);
  REQUIRE(plan == again);
  REQUIRE(first_difference(a, b) == -1);
}

TEST_CASE("a prompt's plan is what the cache holds", "[policy][replay]") {
  const std::size_t which = GENERATE(range(std::size_t{0}, std::size_t{7}));
  const NamedSpec named = replay_recipe(which);
  Rng rng(8102);
  INFO(rng.describe() << " " << named.name);
  const Stream stream(replay_shape(), rng);
  Rig rig(named.spec);
  const std::int32_t slot = rig.open();
  std::vector<std::uint8_t> plan;
  rig.prompt(slot, stream, kPrompt, nullptr, &plan);
  for (std::uint32_t h = 0; h < 4; ++h) {
    std::vector<std::uint8_t> held(kPrompt, 254);
    for (const KeptToken& t : rig.kept(slot, h / 2, h % 2))
      held[static_cast<std::size_t>(t.position)] = static_cast<std::uint8_t>(t.tier);
    REQUIRE(std::equal(held.begin(), held.end(), plan.begin() + std::ptrdiff_t{h} * kPrompt));
  }
}

TEST_CASE("step logs replayed give the same bytes, cadence steps included", "[policy][replay]") {
  const std::size_t which = GENERATE(range(std::size_t{0}, std::size_t{10}));
  const NamedSpec named = replay_recipe(which);
  Rng rng(8103);
  INFO(rng.describe() << " " << named.name);
  const Stream stream(replay_shape(), rng);
  Rig a(named.spec);
  Rig b(named.spec);
  const std::int32_t slot = a.open();
  REQUIRE(b.open() == slot);
  a.prompt(slot, stream, kPrompt);
  b.prompt(slot, stream, kPrompt);
  std::size_t largest = 0;
  for (std::uint32_t t = kPrompt; t < kPrompt + kSteps; ++t) {
    INFO("token " << t);
    MoveList log, repeated;
    a.step(slot, stream, t, &log);
    largest = std::max(largest, log.size());
    b.step(slot, stream, t, &repeated, &log);
    if (t % 20 == 0) REQUIRE(first_difference(a, b) == -1);
  }
  REQUIRE(first_difference(a, b) == -1);
  if (which >= 7) REQUIRE(largest > 8);  // a controller moved many tokens at once
  const quire_stats x = a.cache.stats();
  const quire_stats y = b.cache.stats();
  REQUIRE(x.tokens_dropped == y.tokens_dropped);
  REQUIRE(x.tokens_demoted == y.tokens_demoted);
}

// A run with tokens in both tiers, on which bad moves are tried.
class Replayed {
 public:
  Replayed()
      : rng_(8104), stream_(replay_shape(), rng_), rig(replay_recipe(3).spec), slot(rig.open()) {
    rig.prompt(slot, stream_, kPrompt);
  }

  // A stored position of a tier, of layer 1, head 1.
  std::int32_t stored(std::uint32_t tier) const {
    for (const KeptToken& t : rig.kept(slot, 1, 1))
      if (t.tier == tier) return t.position;
    return -1;
  }
  std::int32_t dropped() const {
    std::int32_t next = 0;
    for (const KeptToken& t : rig.kept(slot, 1, 1)) {
      if (t.position != next) return next;
      ++next;
    }
    return -1;
  }

  void refuses(const MoveList& moves, const std::string& field) {
    const std::vector<std::uint8_t> before = rig.records(slot);
    const Result begun = rig.begin(slot, nullptr, &moves);
    INFO("expected field " << field << ", got " << begun.field() << ": " << begun.text());
    REQUIRE(begun.status() == QUIRE_INVALID_ARGUMENT);
    REQUIRE(begun.field() == field);
    const bool unchanged = rig.records(slot) == before;
    REQUIRE(unchanged);
    REQUIRE(rig.cache.info(slot).state == QUIRE_SEQ_OPEN);
  }

 private:
  Rng rng_;
  Stream stream_;

 public:
  Rig rig;
  std::int32_t slot;
};

quire_plan_move move_of(std::uint32_t layer,
                        std::uint32_t head,
                        std::int32_t position,
                        std::uint8_t to) {
  return {layer, head, position, to, {0, 0, 0}};
}

TEST_CASE("a replay refuses moves that cannot be", "[policy][replay]") {
  Replayed r;
  const std::int32_t high = r.stored(0);
  const std::int32_t low = r.stored(1);
  const std::int32_t ring = static_cast<std::int32_t>(kPrompt) - 3;
  const std::int32_t leaving = static_cast<std::int32_t>(kPrompt) - 24;
  REQUIRE(high >= 0);
  REQUIRE(low >= 0);
  REQUIRE(r.dropped() >= 0);
  r.refuses({move_of(2, 0, high, 254)}, "plan.layer");
  r.refuses({move_of(1, 2, high, 254)}, "plan.head");
  r.refuses({move_of(1, 1, high, 0)}, "plan.to");  // where it is
  r.refuses({move_of(1, 1, low, 0)}, "plan.to");   // promotion
  r.refuses({move_of(1, 1, low, 1)}, "plan.to");
  for (const std::uint8_t tier : std::vector<std::uint8_t>{2, 3, 253, 255}) {
    r.refuses({move_of(1, 1, high, tier)}, "plan.to");
    r.refuses({move_of(1, 1, leaving, tier)}, "plan.to");
  }
  r.refuses({move_of(1, 1, ring, 254)}, "plan.position");
  r.refuses({move_of(1, 1, r.dropped(), 254)}, "plan.position");
  r.refuses({move_of(1, 1, static_cast<std::int32_t>(kPrompt), 254)}, "plan.position");
  r.refuses({move_of(1, 1, -1, 254)}, "plan.position");
  r.refuses({move_of(1, 1, high, 254), move_of(1, 1, high, 254)}, "plan");  // twice
  r.refuses({move_of(1, 1, high, 254), move_of(0, 1, high, 254)}, "plan");  // not sorted
  r.refuses({move_of(1, 1, low, 254), move_of(1, 0, 5, 254)}, "plan");
}

TEST_CASE("a replay refuses a position that is none while no token leaves the ring",
          "[policy][replay]") {
  Rig rig(replay_recipe(3).spec);
  Rng rng(8105);
  const Stream stream(replay_shape(), rng);
  const std::int32_t slot = rig.open();
  for (std::uint32_t t = 0; t < 5; ++t) rig.step(slot, stream, t);
  for (const std::uint8_t to : std::vector<std::uint8_t>{0, 1, 254}) {
    const MoveList moves = {move_of(0, 0, -1, to)};
    const Result begun = rig.begin(slot, nullptr, &moves);
    INFO("to " << static_cast<int>(to));
    CHECK(begun.status() == QUIRE_INVALID_ARGUMENT);
    if (begun.ok()) REQUIRE(rig.cache.step_cancel().ok());
  }
}

TEST_CASE("a log that is too small reports how many moves there are", "[policy][replay]") {
  Replayed r;
  MoveList whole;
  REQUIRE(r.rig.begin(r.slot, &whole).ok());
  REQUIRE(r.rig.cache.step_cancel().ok());
  REQUIRE(whole.size() >= 4);
  for (std::uint64_t capacity = 0; capacity <= whole.size(); ++capacity) {
    const quire_plan_move guard = move_of(77, 77, 77, 77);
    MoveList log(whole.size() + 1, guard);
    std::uint64_t made = 0;
    quire_step_begin_args args = QUIRE_STEP_BEGIN_ARGS_INIT;
    args.slots = &r.slot;
    args.batch = 1;
    args.plan_out = log.data();
    args.plan_capacity = capacity;
    args.plan_out_count = &made;
    REQUIRE(r.rig.cache.step_begin(args).ok());
    REQUIRE(r.rig.cache.step_cancel().ok());
    INFO("capacity " << capacity);
    REQUIRE(made == whole.size());
    for (std::uint64_t i = capacity; i < log.size(); ++i) REQUIRE(log[i].layer == 77);
  }
  std::uint64_t made = 0;
  quire_step_begin_args count_only = QUIRE_STEP_BEGIN_ARGS_INIT;
  count_only.slots = &r.slot;
  count_only.batch = 1;
  count_only.plan_out_count = &made;
  REQUIRE(r.rig.cache.step_begin(count_only).ok());
  REQUIRE(made == whole.size());
}

}  // namespace
}  // namespace quire::test
