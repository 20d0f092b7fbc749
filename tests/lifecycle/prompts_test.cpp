// Prompts on a past. Oracle: the slow model of support/prompt_model.hpp: probabilities of the
// scored queries in double over the keys as stored and as they come, query counts by listing
// queries, tiers and evictions by their texts. Budgets and pages by counting.
#include "support/attention_threads.hpp"
#include "support/prompt_turns.hpp"

namespace quire {
namespace {

using test::fork_shape;
using test::fork_spec;
using test::RigSpec;
using test::Rng;
using test::Stream;
using test::Turns;

constexpr std::uint32_t kRecipes[] = {QUIRE_RECIPE_KEEP_ALL,
                                      QUIRE_RECIPE_DIFFKV_UPSTREAM,
                                      QUIRE_RECIPE_DIFFKV_PAPER,
                                      QUIRE_RECIPE_SNAPKV,
                                      QUIRE_RECIPE_H2O,
                                      QUIRE_RECIPE_STREAMING_LLM,
                                      QUIRE_RECIPE_QUIRE_BUDGET,
                                      QUIRE_RECIPE_QUIRE_UNIFORM,
                                      QUIRE_RECIPE_FOREIGN};

constexpr std::uint32_t kText = 420;

RigSpec turns_spec(std::uint32_t recipe) {
  RigSpec spec = fork_spec(recipe, 1);
  if (recipe == QUIRE_RECIPE_STREAMING_LLM) spec.set_ring(4, 16);
  return spec;
}

TEST_CASE("every prompt of a conversation is scored, planned and stored as its text says",
          "[lifecycle][prompts]") {
  Rng rng(301);
  INFO(rng.describe());
  const Stream stream(fork_shape(kText), rng);
  for (const std::uint32_t recipe : kRecipes) {
    INFO("recipe " << recipe);
    Turns turns(turns_spec(recipe), stream);
    turns.prompt({90});
    turns.decode(30);
    turns.prompt({70});  // longer than the queries that score it
    turns.decode(5);
    turns.prompt({3});  // shorter than the window
    turns.prompt({1});
    turns.decode(40);
    turns.prompt({17});
    turns.prompt({100});
    turns.decode(20);
  }
}

TEST_CASE("a prompt may follow an answer without a prompt", "[lifecycle][prompts]") {
  Rng rng(302);
  INFO(rng.describe());
  const Stream stream(fork_shape(200), rng);
  for (const std::uint32_t recipe : kRecipes) {
    for (const std::uint32_t decoded : {1u, 17u, 60u}) {
      INFO("recipe " << recipe << " after " << decoded << " tokens");
      Turns turns(turns_spec(recipe), stream);
      turns.decode(decoded);
      turns.prompt({50});
      turns.decode(10);
    }
  }
}

TEST_CASE("a later prompt under all queries, maxima, smoothing, no window and no sinks",
          "[lifecycle][prompts]") {
  Rng rng(303);
  INFO(rng.describe());
  const Stream stream(fork_shape(260), rng);
  for (std::uint32_t which = 0; which < 16; ++which) {
    INFO("case " << which);
    RigSpec spec = turns_spec(which % 2 == 0 ? QUIRE_RECIPE_SNAPKV : QUIRE_RECIPE_DIFFKV_UPSTREAM);
    if (which % 2 == 0) spec.policy.pool = 1 + which / 2 % 2;
    spec.policy.statistic = 1 + which / 4;
    if ((which & 4) != 0) spec.policy.tail_queries = QUIRE_ALL;
    if ((which & 8) != 0) spec.set_ring(0, which % 3 == 0 ? 0 : 7);
    if ((which & 2) != 0 && which % 2 == 1) spec.group.ring_format = QUIRE_RING_K8V8;
    Turns turns(spec, stream);
    turns.prompt({60});
    turns.decode(25);
    turns.prompt({80});
    turns.decode(3);
    turns.prompt({20});
  }
}

TEST_CASE("masks of a later prompt go by true positions", "[lifecycle][prompts]") {
  Rng rng(304);
  INFO(rng.describe());
  const Stream stream(fork_shape(240), rng);
  const std::vector<float> slopes = rng.normals(4, 0.02f, 0.04f);
  for (const std::uint32_t recipe : {QUIRE_RECIPE_SNAPKV, QUIRE_RECIPE_DIFFKV_UPSTREAM}) {
    for (const std::int32_t window : {0, 20, 70}) {
      INFO("recipe " << recipe << " window " << window);
      Turns turns(turns_spec(recipe), stream);
      turns.prompt({100});
      turns.decode(20);
      turns.rule.sliding_window = window;
      turns.rule.alibi_slopes = window == 20 ? nullptr : slopes.data();
      turns.give_lse = window != 70;
      turns.prompt({90});
    }
  }
}

// A text so short that its rings exceed the target says nothing about a longer one.
TEST_CASE("the byte controller starts anew with every prompt", "[lifecycle][prompts]") {
  Rng rng(310);
  INFO(rng.describe());
  const Stream stream(fork_shape(320), rng);
  Turns turns(turns_spec(QUIRE_RECIPE_QUIRE_BUDGET), stream);
  REQUIRE(turns.try_round(40, 0, 0).ok());
  turns.decode(3);
  const float early = turns.rig.state().slots[0].factor;
  turns.prompts = {{0, 40}};
  turns.prompt({260});
  REQUIRE(turns.rig.state().slots[0].factor < early);
  REQUIRE(turns.rig.cache.info(0).high_tokens > 0);
}

// Stored in 16 bits in every place, tokens are what the text said.
TEST_CASE("what a later prompt stores is the text", "[lifecycle][prompts]") {
  Rng rng(305);
  INFO(rng.describe());
  const Stream stream(fork_shape(300), rng);
  for (const std::uint32_t recipe : {QUIRE_RECIPE_KEEP_ALL, QUIRE_RECIPE_H2O}) {
    RigSpec spec = turns_spec(recipe);
    spec.group.layout.tier[0].k = spec.group.layout.tier[0].v = {QUIRE_GRID_F16, 16, 0, 0};
    Turns turns(spec, stream);
    for (const std::uint32_t tokens : {40u, 80u, 5u, 60u}) {
      turns.prompt({tokens});
      turns.check_contents(test::kHalfEps);
      turns.decode(12);
      turns.check_contents(test::kHalfEps);
    }
  }
}

TEST_CASE("query rows beyond those that score change nothing", "[lifecycle][prompts]") {
  Rng rng(306);
  INFO(rng.describe());
  const Stream stream(fork_shape(220), rng);
  Turns plain(turns_spec(QUIRE_RECIPE_H2O), stream);
  Turns wide(turns_spec(QUIRE_RECIPE_H2O), stream);
  for (Turns* t : {&plain, &wide}) {
    t->prompt({90});
    t->decode(10);
    const auto first = static_cast<std::uint32_t>(t->length());
    REQUIRE(t->rig.cache.prefill_begin(t->slot, 70).ok());
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
      quire_prefill_layer_args a = t->args(layer, first, 70, t->length());
      if (t == &wide) {
        a.q_rows = 70;
        a.q = rows_of(stream.q(layer, first));
      }
      REQUIRE(t->rig.cache.prefill_layer(a).ok());
    }
    REQUIRE(t->rig.cache.prefill_end(t->slot).ok());
  }
  REQUIRE(plain.rig.records(plain.slot) == wide.rig.records(wide.slot));
}

TEST_CASE("a later prompt on threads is bit for bit the same", "[lifecycle][prompts]") {
  Rng rng(307);
  INFO(rng.describe());
  const Stream stream(fork_shape(220), rng);
  test::Workers workers(2, test::Order::kThreads);
  for (const std::uint32_t recipe : kRecipes) {
    RigSpec spec = turns_spec(recipe);
    spec.threads = 2;
    Turns one(spec, stream), two(spec, stream);
    for (Turns* t : {&one, &two}) {
      t->prompt({90});
      t->decode(10);
      const auto first = static_cast<std::uint32_t>(t->length());
      REQUIRE(t->rig.cache.prefill_begin(t->slot, 70).ok());
      for (std::uint32_t layer = 0; layer < 2; ++layer) {
        quire_prefill_layer_args a = t->args(layer, first, 70, t->length());
        const quire_parallel parallel = workers.c_parallel();
        if (t == &two) a.parallel = &parallel;
        REQUIRE(t->rig.cache.prefill_layer(a).ok());
      }
      REQUIRE(t->rig.cache.prefill_end(t->slot).ok());
    }
    REQUIRE(one.rig.records(one.slot) == two.rig.records(two.slot));
  }
}

TEST_CASE("a conversation swapped out between prompts goes on bit for bit",
          "[lifecycle][prompts]") {
  Rng rng(308);
  INFO(rng.describe());
  const Stream stream(fork_shape(300), rng);
  for (const std::uint32_t recipe : kRecipes) {
    INFO("recipe " << recipe);
    Turns stay(turns_spec(recipe), stream), move(turns_spec(recipe), stream);
    for (Turns* t : {&stay, &move}) {
      t->prompt({70});
      t->decode(15);
      t->prompt({40});
      REQUIRE(t->try_round(30, t->length(), QUIRE_PREFILL_MORE).ok());
    }
    const std::vector<std::uint8_t> frame = test::exported(move.rig, move.slot);
    REQUIRE(move.rig.cache.close(move.slot).ok());
    REQUIRE(move.rig.cache.import_frame(frame.data(), frame.size(), &move.slot).ok());
    for (Turns* t : {&stay, &move}) {
      REQUIRE(t->rig.begin(t->slot).status() == QUIRE_BAD_STATE);
      REQUIRE(t->try_round(25, t->length() - 30, 0).ok());
      t->decode(20);
      REQUIRE(t->try_round(25, t->length(), 0).ok());
      t->decode(5);
    }
    REQUIRE(stay.rig.records(stay.slot) == move.rig.records(move.slot));
  }
}

// The fork's parent reads what it read before; frozen tokens stay whatever the plan says.
TEST_CASE("a later prompt leaves shared pages alone", "[lifecycle][prompts]") {
  Rng rng(309);
  INFO(rng.describe());
  const Stream stream(fork_shape(330), rng);
  for (const std::uint32_t recipe : kRecipes) {
    if (recipe == QUIRE_RECIPE_QUIRE_UNIFORM) continue;
    INFO("recipe " << recipe);
    RigSpec spec = turns_spec(recipe);
    spec.sequences = 2;
    // Frozen tokens may exceed a budget: room for them, so that check_budget() can hold.
    if (spec.policy.budget_tokens != 0) spec.policy.budget_tokens = 150;
    if (spec.policy.byte_target > 0.0) spec.policy.byte_target = 1.4;
    Turns turns(spec, stream);
    turns.prompt({130});
    turns.decode(10);
    const std::int32_t parent = turns.slot;
    turns.slot = test::fork(turns.rig, parent);
    const auto kept = turns.rig.records(parent);
    const test::PageCopies pages = test::shared_pages(turns.rig);
    REQUIRE(pages.size() > 0);
    turns.prompts = {{0, 130}};
    turns.prompt({80});
    REQUIRE(test::unchanged(turns.rig, pages));
    REQUIRE(turns.rig.records(parent) == kept);
    REQUIRE(turns.rig.cache.close(parent).ok());
    turns.decode(5);
    turns.prompt({60});
  }
}

}  // namespace
}  // namespace quire
