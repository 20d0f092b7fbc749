// Oracle: the parameters that the papers, DiffKV's code and the measured settings A and B state.
#include <cstring>

#include "quire/policy/recipes.hpp"
#include "quire/quire.h"
#include "support/catch.hpp"

namespace quire::test {
namespace {

struct Taken {
  quire_policy policy = QUIRE_POLICY_INIT;
  quire_group_desc group = QUIRE_GROUP_DESC_INIT;
};

Taken take(std::uint32_t recipe) {
  Taken taken;
  REQUIRE(quire_recipe_get(recipe, &taken.policy, &taken.group, nullptr) == QUIRE_OK);
  REQUIRE(taken.group.sink_tokens == taken.policy.sink_tokens);
  REQUIRE(taken.group.recent_window == taken.policy.recent_window);
  return taken;
}

bool is(const quire_vector_format& f,
        std::uint32_t grid,
        std::uint32_t bits,
        std::uint32_t transform) {
  return f.grid == grid && f.bits == bits && f.group == 0 && f.transform == transform;
}

void has_k8v4_over_k4v2(const Taken& t) {
  REQUIRE(t.group.layout.tier_count == 2);
  REQUIRE(is(t.group.layout.tier[0].k, QUIRE_GRID_AFFINE, 8, 0));
  REQUIRE(is(t.group.layout.tier[0].v, QUIRE_GRID_AFFINE, 4, 0));
  REQUIRE(is(t.group.layout.tier[1].k, QUIRE_GRID_AFFINE, 4, 0));
  REQUIRE(is(t.group.layout.tier[1].v, QUIRE_GRID_AFFINE, 2, 0));
}

TEST_CASE("both DiffKV recipes have its formats, window and no sink", "[policy][recipe]") {
  for (const std::uint32_t id : {QUIRE_RECIPE_DIFFKV_PAPER, QUIRE_RECIPE_DIFFKV_UPSTREAM}) {
    const Taken t = take(id);
    has_k8v4_over_k4v2(t);
    REQUIRE(t.policy.kind == QUIRE_THRESHOLD);
    REQUIRE(t.policy.statistic == QUIRE_STATISTIC_MAX_SUM);
    REQUIRE(t.policy.significance == QUIRE_MEAN);
    REQUIRE(t.policy.sink_tokens == QUIRE_NONE);
    REQUIRE(t.policy.recent_window == 64);
    REQUIRE(t.policy.alpha_high == 1.0f);
    REQUIRE(t.policy.alpha_low == 0.02f);
    REQUIRE(t.policy.min_queries == 0);
  }
  const Taken paper = take(QUIRE_RECIPE_DIFFKV_PAPER);
  REQUIRE(paper.policy.tail_queries == QUIRE_ALL);
  REQUIRE(paper.policy.step_rule == QUIRE_STEP_PAPER);
  REQUIRE(paper.policy.flags == QUIRE_POLICY_POSITION_THRESHOLDS);
  const Taken upstream = take(QUIRE_RECIPE_DIFFKV_UPSTREAM);
  REQUIRE(upstream.policy.tail_queries == 64);
  REQUIRE(upstream.policy.step_rule == QUIRE_STEP_UPSTREAM);
  REQUIRE(upstream.policy.flags == 0);
}

TEST_CASE("the evicting recipes have their papers' parameters", "[policy][recipe]") {
  const Taken streaming = take(QUIRE_RECIPE_STREAMING_LLM);
  REQUIRE(streaming.policy.significance == QUIRE_POSITION);
  REQUIRE(streaming.policy.statistic == QUIRE_STATISTIC_NONE);
  REQUIRE(streaming.policy.sink_tokens == 4);
  const Taken h2o = take(QUIRE_RECIPE_H2O);
  REQUIRE(h2o.policy.significance == QUIRE_SUM);
  REQUIRE(h2o.policy.statistic == QUIRE_STATISTIC_MEAN_SUM);
  REQUIRE(h2o.policy.tail_queries == QUIRE_ALL);
  const Taken snap = take(QUIRE_RECIPE_SNAPKV);
  REQUIRE(snap.policy.statistic == QUIRE_STATISTIC_MEAN_SUM);
  REQUIRE(snap.policy.tail_queries == 64);
  REQUIRE(snap.policy.recent_window == 64);
  REQUIRE(snap.policy.pool == 1);
  REQUIRE(snap.policy.pool_width == 5);
  for (const Taken* t : {&streaming, &h2o, &snap}) {
    REQUIRE(t->policy.kind == QUIRE_EVICT);
    REQUIRE(t->policy.step_rule == QUIRE_STEP_EVICT);
    REQUIRE(t->policy.flags == 0);
    REQUIRE(t->policy.budget_tokens > 0);
    REQUIRE(t->group.layout.tier_count == 1);
  }
}

TEST_CASE("the own recipes are settings A and B", "[policy][recipe]") {
  constexpr std::uint32_t kRotated = QUIRE_TRANSFORM_HADAMARD;
  constexpr std::uint32_t kCentred = QUIRE_TRANSFORM_HADAMARD | QUIRE_TRANSFORM_OFFSET;
  const Taken budget = take(QUIRE_RECIPE_QUIRE_BUDGET);
  REQUIRE(budget.group.layout.tier_count == 2);
  REQUIRE(is(budget.group.layout.tier[0].k, QUIRE_GRID_SYMMETRIC_UNIFORM, 6, kCentred));
  REQUIRE(is(budget.group.layout.tier[0].v, QUIRE_GRID_SYMMETRIC_TABLE, 4, kRotated));
  REQUIRE(is(budget.group.layout.tier[1].k, QUIRE_GRID_SYMMETRIC_TABLE, 4, kCentred));
  REQUIRE(is(budget.group.layout.tier[1].v, QUIRE_GRID_SYMMETRIC_TABLE, 2, kRotated));
  REQUIRE(budget.policy.statistic == QUIRE_STATISTIC_MEAN_SQUARE);
  REQUIRE(budget.policy.significance == QUIRE_ROOT_MEAN);
  REQUIRE(budget.policy.step_rule == QUIRE_STEP_CLASSIFY);
  REQUIRE(budget.policy.tail_queries == 256);
  REQUIRE(budget.policy.min_queries == 96);
  REQUIRE(budget.policy.cadence == 16);
  REQUIRE(budget.policy.alpha_low == 0.1f * budget.policy.alpha_high);
  REQUIRE(budget.policy.byte_target > 0.0);
  const Taken uniform = take(QUIRE_RECIPE_QUIRE_UNIFORM);
  REQUIRE(uniform.group.layout.tier_count == 1);
  REQUIRE(is(uniform.group.layout.tier[0].k, QUIRE_GRID_SYMMETRIC_TABLE, 4, kCentred));
  REQUIRE(is(uniform.group.layout.tier[0].v, QUIRE_GRID_SYMMETRIC_TABLE, 3, kRotated));
  REQUIRE(uniform.group.layout.flags == (QUIRE_LAYOUT_NO_SCORE | QUIRE_LAYOUT_NO_POSITION));
  REQUIRE(uniform.policy.kind == QUIRE_KEEP_ALL);
  for (const Taken* t : {&budget, &uniform}) {
    REQUIRE(t->policy.sink_tokens == 1);
    REQUIRE(t->policy.recent_window == 48);
    REQUIRE(t->group.ring_format == QUIRE_RING_K8V8);
  }
}

TEST_CASE("the plain recipes keep everything and ask for no scores", "[policy][recipe]") {
  const Taken keep = take(QUIRE_RECIPE_KEEP_ALL);
  REQUIRE(keep.policy.kind == QUIRE_KEEP_ALL);
  REQUIRE(keep.policy.statistic == QUIRE_STATISTIC_NONE);
  const Taken foreign = take(QUIRE_RECIPE_FOREIGN);
  REQUIRE(foreign.policy.kind == QUIRE_FOREIGN);
  has_k8v4_over_k4v2(foreign);
}

TEST_CASE("an unknown recipe is refused and writes nothing", "[policy][recipe]") {
  for (const std::uint32_t id : {0u, 10u, 0xffffffffu}) {
    quire_policy policy = QUIRE_POLICY_INIT;
    std::memset(&policy, 0x5a, sizeof(policy));
    const quire_policy before = policy;
    quire_group_desc group = QUIRE_GROUP_DESC_INIT;
    REQUIRE(quire_recipe_get(id, &policy, &group, nullptr) == QUIRE_INVALID_ARGUMENT);
    REQUIRE(std::memcmp(&policy, &before, sizeof(policy)) == 0);
    REQUIRE(group.layout.tier_count == 1);
  }
}

}  // namespace
}  // namespace quire::test
