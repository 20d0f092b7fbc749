// Later prompts and rounds that are refused or given up. Oracle: the status, field and numbers that
// quire.h names, a copy of all memory, and a cache that never began.
#include "support/prompt_turns.hpp"
#include "support/raw_calls.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kFirst = 20;  // tokens of the first round or prompt
constexpr std::uint32_t kLater = 12;

using LayerArgs = quire_prefill_layer_args;

// A later round of `kLater` tokens that has begun; scored by 16 queries.
struct Scene {
  explicit Scene(std::uint32_t first_flags, std::uint32_t later_flags)
      : cache(spec()), calls(cache, 31), slot(calls.open_with(0)) {
    round(kFirst, first_flags);
    calls.need(begin_prompt(cache.get(), slot, kLater, &calls.error, later_flags));
    calls.reset_outputs();
  }

  static RawSpec spec() {
    RawSpec spec;
    spec.policy.tail_queries = 16;
    return spec;
  }

  void round(std::uint32_t tokens, std::uint32_t flags) {
    calls.need(begin_prompt(cache.get(), slot, tokens, &calls.error, flags));
    finish(tokens);
  }

  void finish(std::uint32_t q_rows) {
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
      const LayerArgs args = calls.prompt(slot, layer, q_rows);
      calls.need(quire_prefill_layer(cache.get(), &args));
    }
    calls.need(quire_prefill_end(cache.get(), slot, &calls.error));
  }

  void refuse(const LayerArgs& args, const Refusal& want) {
    require_refused(cache, calls, want, [&] { return quire_prefill_layer(cache.get(), &args); });
  }

  void refuse_rows(std::uint32_t q_rows, std::int64_t needed) {
    INFO("query rows " << q_rows);
    refuse(calls.prompt(slot, 0, q_rows),
           {QUIRE_INVALID_ARGUMENT,
            "q_rows",
            "of the prompt",
            needed,
            static_cast<std::int64_t>(q_rows)});
  }

  RawCache cache;
  RawCalls calls;
  std::int32_t slot;
};

TEST_CASE("query rows are counted over all rounds of a prompt", "[lifecycle][prompts][errors]") {
  {
    Scene later(0, 0);  // a prompt of its own: 12 tokens, all queries
    for (const std::uint32_t rows : {0u, 11u, 13u, 16u}) later.refuse_rows(rows, 12);
    later.finish(12);
  }
  {
    Scene last(QUIRE_PREFILL_MORE, 0);  // the last round of a prompt of 32
    for (const std::uint32_t rows : {0u, 12u, 15u, 33u}) last.refuse_rows(rows, 16);
    last.finish(32);
  }
  Scene more(QUIRE_PREFILL_MORE, QUIRE_PREFILL_MORE);  // not read
  more.finish(0);
}

TEST_CASE("layers of a later round come in order and once", "[lifecycle][prompts][errors]") {
  Scene s(QUIRE_PREFILL_MORE, 0);
  s.refuse(s.calls.prompt(s.slot, 1, 16), {QUIRE_BAD_STATE, "layer", "in order", 0, 1});
  s.refuse(s.calls.prompt(s.slot, 2, 16), {QUIRE_INVALID_ARGUMENT, "layer", "below", 2, 2});
  require_refused(s.cache, s.calls, {QUIRE_BAD_STATE, "layer", "every layer", 2, 0}, [&] {
    return quire_prefill_end(s.cache.get(), s.slot, &s.calls.error);
  });
  const LayerArgs args = s.calls.prompt(s.slot, 0, 16);
  s.calls.need(quire_prefill_layer(s.cache.get(), &args));
  s.calls.reset_outputs();
  s.refuse(args, {QUIRE_BAD_STATE, "layer", "in order", 1, 0});
  LayerArgs nan = s.calls.prompt(s.slot, 1, 16);
  s.calls.k[3] = std::nanf("");
  s.refuse(nan, {QUIRE_BAD_VALUE, "k", "finite", 0, 3});
  s.calls.k[3] = 1.0f;
  s.calls.need(quire_prefill_layer(s.cache.get(), &nan));
  s.calls.need(quire_prefill_end(s.cache.get(), s.slot, &s.calls.error));
  s.calls.step({s.slot});
}

TEST_CASE("a foreign plan for a past raises nothing and leaves the ring",
          "[lifecycle][prompts][errors]") {
  Scene s(0, 0);  // tokens 1 .. 27 are outside the ring at length 32, 1 .. 15 were before
  std::vector<std::uint8_t> plan(2 * 32, 0);
  std::fill_n(plan.begin(), 16, std::uint8_t{255});
  std::fill_n(plan.begin() + 32, 16, std::uint8_t{255});
  const auto refuse = [&](std::size_t at, std::uint8_t tier, const Refusal& want) {
    INFO("entry " << at << " is " << int{tier});
    std::vector<std::uint8_t> bad = plan;
    bad[at] = tier;
    LayerArgs args = s.calls.prompt(s.slot, 0, 12);
    args.plan = bad.data();
    s.refuse(args, want);
  };
  for (const std::uint8_t tier : std::vector<std::uint8_t>{2, 3, 253})
    refuse(40, tier, {QUIRE_INVALID_ARGUMENT, "plan", "254 dropped"});
  refuse(17, 255, {QUIRE_INVALID_ARGUMENT, "plan", "ring"});  // leaves the ring
  refuse(25, 255, {QUIRE_INVALID_ARGUMENT, "plan", "ring"});  // is new
  // A low token first, by a plan between the prompts.
  s.calls.need(quire_prefill_cancel(s.cache.get(), s.slot, &s.calls.error));
  std::vector<std::uint8_t> low(2 * 2 * kFirst, 255);
  low[5] = 1;
  low[6] = 254;
  quire_plan_apply_args apply = s.calls.plan(s.slot, 2, kFirst);
  apply.tiers = low.data();
  s.calls.need(quire_plan_apply(s.cache.get(), &apply));
  s.calls.need(begin_prompt(s.cache.get(), s.slot, kLater, &s.calls.error));
  s.calls.reset_outputs();
  refuse(5, 0, {QUIRE_INVALID_ARGUMENT, "plan", "only go down", -1, 5});
  plan[6] = 0;  // gone: not looked at
  plan[5] = 1;
  LayerArgs args = s.calls.prompt(s.slot, 0, 12);
  args.plan = plan.data();
  s.calls.need(quire_prefill_layer(s.cache.get(), &args));
  CHECK(s.calls.plan_out[5] == 1);
  CHECK(s.calls.plan_out[6] == 254);
  CHECK(s.calls.plan_out[0] == 255);
  CHECK(s.calls.plan_out[28] == 255);
}

TEST_CASE("a round with more to come takes no plan", "[lifecycle][prompts][errors]") {
  Scene s(0, QUIRE_PREFILL_MORE);
  const std::vector<std::uint8_t> plan(2 * 32, 0);
  LayerArgs args = s.calls.prompt(s.slot, 0, 0);
  args.plan = plan.data();
  s.refuse(args, {QUIRE_INVALID_ARGUMENT, "plan", "QUIRE_PREFILL_MORE"});
  s.finish(0);
}

TEST_CASE("a later round that is given up in time never was", "[lifecycle][prompts][errors]") {
  Rng rng(331);
  INFO(rng.describe());
  const Stream stream(fork_shape(200), rng);
  for (const std::uint32_t recipe : {QUIRE_RECIPE_KEEP_ALL,
                                     QUIRE_RECIPE_DIFFKV_PAPER,
                                     QUIRE_RECIPE_SNAPKV,
                                     QUIRE_RECIPE_QUIRE_BUDGET}) {
    INFO("recipe " << recipe);
    Turns clean(fork_spec(recipe, 1), stream), tried(fork_spec(recipe, 1), stream);
    for (Turns* t : {&clean, &tried}) {
      const auto give_up = [&](std::uint32_t flags) {
        if (t == &clean) return;
        const std::vector<std::uint8_t> records = t->rig.records(t->slot);
        REQUIRE(t->rig.cache.prefill_begin(t->slot, 30, flags).ok());
        if (recipe == QUIRE_RECIPE_KEEP_ALL) REQUIRE(t->rig.cache.stats().promised_pages > 0);
        REQUIRE(t->rig.cache.prefill_cancel(t->slot).ok());
        REQUIRE(t->rig.records(t->slot) == records);
        t->check_pages();
      };
      t->prompt({60});
      t->decode(20);
      give_up(0);
      give_up(QUIRE_PREFILL_MORE);
      REQUIRE(t->try_round(40, 80, QUIRE_PREFILL_MORE).ok());
      give_up(0);
      REQUIRE(t->try_round(10, 80, 0).ok());
      t->decode(20);
    }
    REQUIRE(clean.rig.records(0) == tried.rig.records(0));
  }
}

TEST_CASE("a later round that is given up half-way breaks the sequence, not the pool",
          "[lifecycle][prompts][errors]") {
  Rng rng(332);
  INFO(rng.describe());
  const Stream stream(fork_shape(200), rng);
  for (std::uint32_t recipe = QUIRE_RECIPE_KEEP_ALL; recipe <= QUIRE_RECIPE_FOREIGN; ++recipe) {
    for (const std::uint32_t done : {1u, 2u}) {
      INFO("recipe " << recipe << " after " << done << " layers");
      Turns turns(fork_spec(recipe, 1), stream);
      turns.prompt({60});
      REQUIRE(turns.rig.cache.prefill_begin(turns.slot, 50).ok());
      for (std::uint32_t layer = 0; layer < done; ++layer)
        REQUIRE(turns.rig.cache.prefill_layer(turns.args(layer, 60, 50, 60)).ok());
      REQUIRE(turns.rig.cache.prefill_cancel(turns.slot).ok());
      REQUIRE(turns.rig.cache.info(turns.slot).state == QUIRE_SEQ_BROKEN);
      REQUIRE(turns.rig.cache.stats().promised_pages == 0);
      REQUIRE(check_pool(turns.rig.state()) == "");
      REQUIRE(turns.rig.cache.prefill_begin(turns.slot, 5).status() == QUIRE_BAD_STATE);
      REQUIRE(turns.rig.cache.close(turns.slot).ok());
      REQUIRE(turns.rig.cache.stats().live_pages == 0);
      REQUIRE(turns.rig.cache.stats().record_bytes == 0);
    }
  }
}

// keep_all: the reservation is what is taken, no page more.
TEST_CASE("a later prompt is refused for want of one page with both numbers",
          "[lifecycle][prompts][errors]") {
  Rng rng(333);
  INFO(rng.describe());
  const Stream stream(fork_shape(300), rng);
  RigSpec roomy = fork_spec(QUIRE_RECIPE_KEEP_ALL, 1);
  for (const std::uint32_t flags : {0u, std::uint32_t{QUIRE_PREFILL_MORE}}) {
    Turns probe(roomy, stream);
    probe.prompt({70});
    const std::uint64_t before = probe.rig.cache.stats().live_pages;
    REQUIRE(probe.rig.cache.prefill_begin(probe.slot, 130, flags).ok());
    const std::uint64_t promised = probe.rig.cache.stats().promised_pages;
    REQUIRE(probe.rig.cache.prefill_cancel(probe.slot).ok());
    REQUIRE(probe.try_round(130, 70, flags).ok());
    REQUIRE(probe.rig.cache.stats().live_pages == before + promised);
    for (const std::uint64_t missing : {1u, 0u}) {
      RigSpec tight = roomy;
      tight.pages = before + promised - missing;
      Turns turns(tight, stream);
      turns.prompt({70});
      const std::vector<std::uint8_t> records = turns.rig.records(turns.slot);
      const Result begun = turns.rig.cache.prefill_begin(turns.slot, 130, flags);
      REQUIRE(begun.status() == (missing == 1 ? QUIRE_OUT_OF_PAGES : QUIRE_OK));
      if (missing == 0) continue;
      REQUIRE(begun.needed() == promised);
      REQUIRE(begun.given() == promised - 1);
      REQUIRE(turns.rig.records(turns.slot) == records);
      turns.check_pages();
    }
  }
}

TEST_CASE("the plan of a later prompt fed back leads to the same pages", "[lifecycle][prompts]") {
  Rng rng(334);
  INFO(rng.describe());
  const Stream stream(fork_shape(220), rng);
  for (std::uint32_t recipe = QUIRE_RECIPE_KEEP_ALL; recipe <= QUIRE_RECIPE_QUIRE_BUDGET;
       ++recipe) {
    INFO("recipe " << recipe);
    Turns planned(fork_spec(recipe, 1), stream), replayed(fork_spec(recipe, 1), stream);
    std::vector<std::uint8_t> plans[2];
    for (Turns* t : {&planned, &replayed}) {
      t->prompt({90});
      t->decode(20);
      REQUIRE(t->rig.cache.prefill_begin(t->slot, 70).ok());
      for (std::uint32_t layer = 0; layer < 2; ++layer) {
        LayerArgs args = t->args(layer, 110, 70, 110);
        plans[layer].resize(2 * 180);
        if (t == &planned) args.plan_out = plans[layer].data();
        if (t == &replayed) args.plan = plans[layer].data();
        const Result stored = t->rig.cache.prefill_layer(args);
        INFO(stored.text());
        REQUIRE(stored.ok());
      }
      REQUIRE(t->rig.cache.prefill_end(t->slot).ok());
    }
    REQUIRE(planned.rig.records(0) == replayed.rig.records(0));
    planned.check_pages();
  }
}

}  // namespace
}  // namespace quire::test
