// Admission of prompts. Oracle: a pool of exactly quire_pages_for pages: the prompt begins, never
// holds or is promised more (looked at after every layer), and every page stays in one place; with
// one page less it is refused and no byte changes.
#include <functional>
#include <set>
#include <vector>

#include "support/catch.hpp"
#include "support/pages_accounting.hpp"
#include "support/pages_cache.hpp"
#include "support/pages_check.hpp"
#include "support/pages_memory.hpp"

namespace quire {
namespace {

using test::CostSheet;
using test::PoolCache;
using test::PoolSpec;

struct PolicyCase {
  const char* name;
  std::uint32_t recipe;
  void (*change)(PoolSpec& spec);
};

void nothing(PoolSpec&) {}

void budget_tokens(PoolSpec& s) { s.policy.budget_tokens = 45; }

template <int PercentT>
void byte_target(PoolSpec& s) {
  s.policy.budget_tokens = 0;
  s.policy.byte_target = PercentT / 100.0;
}

template <int TokensT>
void budget_bytes(PoolSpec& s) {
  s.policy.budget_tokens = 0;
  s.policy.byte_target = 0.0;
  s.policy.budget_bytes = TokensT * s.heads() * CostSheet(s).record[0];
}

constexpr PolicyCase kCases[] = {
    {"keep all", QUIRE_RECIPE_KEEP_ALL, nothing},
    {"paper", QUIRE_RECIPE_DIFFKV_PAPER, nothing},
    {"upstream", QUIRE_RECIPE_DIFFKV_UPSTREAM, nothing},
    {"upstream without drops",
     QUIRE_RECIPE_DIFFKV_UPSTREAM,
     [](PoolSpec& s) { s.policy.alpha_low = 0.0f; }},
    {"upstream without a low tier in use",
     QUIRE_RECIPE_DIFFKV_UPSTREAM,
     [](PoolSpec& s) { s.policy.alpha_low = s.policy.alpha_high; }},
    {"streaming", QUIRE_RECIPE_STREAMING_LLM, budget_tokens},
    {"heavy hitters", QUIRE_RECIPE_H2O, budget_tokens},
    {"heavy hitters by share", QUIRE_RECIPE_H2O, byte_target<140>},
    {"heavy hitters by bytes", QUIRE_RECIPE_H2O, budget_bytes<60>},
    {"prompt only", QUIRE_RECIPE_SNAPKV, budget_tokens},
    {"uniform", QUIRE_RECIPE_QUIRE_UNIFORM, nothing},
    {"own, small", QUIRE_RECIPE_QUIRE_BUDGET, byte_target<60>},
    {"own, middle", QUIRE_RECIPE_QUIRE_BUDGET, byte_target<90>},
    {"own, large", QUIRE_RECIPE_QUIRE_BUDGET, byte_target<150>},
    {"own by bytes", QUIRE_RECIPE_QUIRE_BUDGET, budget_bytes<60>},
    {"foreign", QUIRE_RECIPE_FOREIGN, nothing},
};

std::uint64_t pages_for(const PoolCache& box, std::uint32_t tokens) {
  std::uint64_t pages = 0;
  REQUIRE(quire_pages_for(box.cache.get(), &box.spec.policy, tokens, &pages, nullptr, nullptr) ==
          QUIRE_OK);
  return pages;
}

// A pool as large as the reservation (the size of the tables depends on the pool a little).
void fit_pool(PoolSpec& spec, std::uint32_t tokens) {
  for (int i = 0; i < 10; ++i) {
    const std::uint64_t pages = std::max<std::uint64_t>(1, pages_for(PoolCache(spec), tokens));
    if (pages == spec.pages) return;
    spec.pages = pages;
  }
}

// Tiers of a foreign plan: a mixture, or all of one kind.
std::vector<std::uint8_t> plan_of(const PoolSpec& spec, std::uint32_t tokens) {
  std::vector<std::uint8_t> plan(std::size_t{tokens} * spec.group.kv_heads);
  test::Rng rng(tokens);
  for (std::uint8_t& tier : plan) tier = static_cast<std::uint8_t>(rng.below(8) == 0 ? 1 : 0);
  return plan;
}

// One page is promised to somebody else.
void require_refused(PoolCache& box, std::int32_t slot, std::uint32_t tokens, std::uint64_t pages) {
  CacheState& cache = box.state();
  cache.set_credit(cache.slots[slot + 1], 1);
  const test::MemorySnapshot before(box);
  const Result result = box.cache.prefill_begin(slot, tokens);
  REQUIRE(result.status() == QUIRE_OUT_OF_PAGES);
  REQUIRE(result.needed() == pages);
  REQUIRE(result.given() == cache.max.pages - 1);
  REQUIRE(before.difference() == "");
  REQUIRE(box.cache.stats().shortages == 1);
  cache.set_credit(cache.slots[slot + 1], 0);
}

bool has_controller(const quire_policy& policy) {
  return policy.kind == QUIRE_THRESHOLD && (policy.byte_target > 0.0 || policy.budget_bytes > 0);
}

void run_prompt(PoolSpec spec, std::uint32_t tokens) {
  INFO("tokens " << tokens);
  spec.sequences = 2;
  fit_pool(spec, tokens);
  PoolCache box(spec);
  const std::uint64_t reserved = pages_for(box, tokens);
  INFO("reserved " << reserved << " of " << spec.pages);
  REQUIRE(reserved <= spec.pages);
  const std::int32_t slot = box.open();
  REQUIRE(box.open() == slot + 1);
  if (reserved == spec.pages) require_refused(box, slot, tokens, reserved);
  PoolCache::need(box.cache.prefill_begin(slot, tokens));
  REQUIRE(box.cache.stats().promised_pages == reserved);
  const std::vector<std::uint8_t> plan = plan_of(spec, tokens);
  const bool foreign = spec.policy.kind == QUIRE_FOREIGN;
  for (std::uint32_t layer = 0; layer < spec.group.layers; ++layer) {
    PoolCache::need(
        box.prefill_layer(slot, layer, tokens, tokens, foreign ? plan.data() : nullptr));
    const quire_stats stats = box.cache.stats();
    INFO("layer " << layer << " live " << stats.live_pages << " promised " << stats.promised_pages);
    REQUIRE(stats.live_pages <= reserved);
    REQUIRE(stats.promised_pages <= reserved - stats.live_pages);
    if (!has_controller(spec.policy)) {  // the surplus of a layer is free at once
      REQUIRE(stats.promised_pages * spec.group.layers ==
              reserved * (spec.group.layers - 1 - layer));
    }
    REQUIRE(test::check_pool(box.state()) == "");
  }
  PoolCache::need(box.cache.prefill_end(slot));
  REQUIRE(box.cache.stats().promised_pages == 0);
  REQUIRE(test::check_dense(box.state()) == "");
  const bool exact = spec.policy.kind == QUIRE_KEEP_ALL ||
                     (spec.policy.kind == QUIRE_EVICT && spec.policy.byte_target == 0.0);
  if (exact) REQUIRE(box.cache.stats().live_pages == reserved);
}

// Around the ring, around pages of both tiers, and the longest.
std::set<std::uint32_t> lengths_of(const PoolSpec& spec) {
  const auto count = [](std::uint32_t x) { return x == QUIRE_NONE ? 0u : x; };
  const std::uint32_t ring = count(spec.policy.sink_tokens) + count(spec.policy.recent_window);
  std::set<std::uint32_t> all = {1, 2, spec.max_tokens};
  const CostSheet sheet(spec);
  for (std::uint32_t t = 0; t < sheet.tier_count; ++t) {
    for (const std::uint32_t pages : {0u, 1u, 2u, 5u}) {
      for (const std::uint32_t more : {0u, 1u, 2u})
        all.insert(ring + pages * static_cast<std::uint32_t>(sheet.per_page[t]) + more);
    }
  }
  std::set<std::uint32_t> legal;  // the second of three neighbours is the border itself
  for (const std::uint32_t n : all) {
    if (n >= 2 && n <= spec.max_tokens + 1) legal.insert(n - 1);
  }
  return legal;
}

void run_case(const PolicyCase& c, std::uint32_t layers, std::uint32_t heads) {
  PoolSpec spec(c.recipe, layers, heads, 32);
  spec.max_tokens = 260;
  spec.set_ring(c.recipe % 3, 9);
  c.change(spec);
  INFO(c.name << ", " << layers << " layers of " << heads << " heads");
  for (const std::uint32_t tokens : lengths_of(spec)) run_prompt(spec, tokens);
}

TEST_CASE("an admitted prompt never takes more pages than were reserved", "[pages][admission]") {
  for (const PolicyCase& c : kCases) run_case(c, 6, 2);
}

TEST_CASE("an admitted prompt of one layer never takes more pages than were reserved",
          "[pages][admission]") {
  for (const std::uint32_t heads : {1u, 3u}) {
    for (const PolicyCase& c : kCases) run_case(c, 1, heads);
  }
}

TEST_CASE("a prompt without a ring never takes more pages than were reserved",
          "[pages][admission]") {
  for (const PolicyCase& c : kCases) {
    PoolSpec spec(c.recipe, 12, 1, 32);
    spec.max_tokens = 130;
    spec.set_ring(0, 0);
    c.change(spec);
    INFO(c.name);
    for (const std::uint32_t tokens : {1u, 16u, 17u, 31u, 32u, 40u, 65u, 128u})
      run_prompt(spec, tokens);
  }
}

// ---- Policies that may not give up what the target asks for ----------------------------------

void run_controlled(const char* name, const std::function<void(PoolSpec&)>& change) {
  INFO(name);
  for (const std::uint32_t layers : {1u, 2u, 9u}) {
    for (const int percent : {8, 20, 40, 60}) {
      PoolSpec spec(QUIRE_RECIPE_QUIRE_BUDGET, layers, 2, 32);
      spec.max_tokens = 250;
      spec.set_ring(1, 8);
      spec.policy.byte_target = percent / 100.0;
      change(spec);
      INFO(layers << " layers, target " << percent << " %");
      for (const std::uint32_t tokens : {60u, 130u, 250u}) run_prompt(spec, tokens);
    }
  }
}

TEST_CASE("a prompt that is cut to a byte target fits its reservation all the time",
          "[pages][admission]") {
  run_controlled("short probation", [](PoolSpec& s) { s.policy.min_queries = 20; });
  run_controlled("no probation", [](PoolSpec& s) { s.policy.min_queries = 0; });
  run_controlled("few drops", [](PoolSpec& s) {
    s.policy.alpha_low = 0.001f;
    s.policy.min_queries = 0;
  });
}

TEST_CASE("a prompt on probation as a whole fits its reservation", "[pages][admission]") {
  run_controlled("fewer scoring queries than a token must have been seen by", [](PoolSpec& s) {
    s.policy.tail_queries = 16;
    s.policy.min_queries = 96;
  });
  run_controlled("as many", [](PoolSpec& s) {
    s.policy.tail_queries = 32;
    s.policy.min_queries = 32;
  });
}

TEST_CASE("a prompt that nothing is dropped from fits its reservation", "[pages][admission]") {
  run_controlled("no drops", [](PoolSpec& s) {
    s.policy.alpha_low = 0.0f;
    s.policy.min_queries = 20;
  });
}

TEST_CASE("a prompt that nothing leaves the high tier of fits its reservation",
          "[pages][admission]") {
  run_controlled("all stays high", [](PoolSpec& s) {
    while (CostSheet(s).per_page[1] == CostSheet(s).per_page[0]) s.group.layout.page_bytes += 64;
    s.policy.alpha_low = s.policy.alpha_high = 0.0f;
  });
}

TEST_CASE("a record budget in pages with padding fits its reservation", "[pages][admission]") {
  for (const std::uint32_t layers : {2u, 8u}) {
    PoolSpec spec(QUIRE_RECIPE_QUIRE_BUDGET, layers, 2, 32);
    spec.max_tokens = 250;
    spec.set_ring(0, 1);
    spec.group.layout.page_bytes *= 2;  // 16 tokens of the high tier fit, 32 almost
    while (CostSheet(spec).per_page[0] > 16) spec.group.layout.page_bytes -= 64;
    spec.policy.min_queries = 0;
    budget_bytes<150>(spec);
    INFO(layers << " layers, pages of " << spec.group.layout.page_bytes);
    for (const std::uint32_t tokens : {100u, 150u, 200u, 250u}) run_prompt(spec, tokens);
  }
}

// Thresholds of single heads, which quire_pages_for is not told.
TEST_CASE("a prompt with thresholds of its own for some heads takes only free pages",
          "[pages][admission]") {
  for (const bool drops : {true, false}) {
    PoolSpec spec(QUIRE_RECIPE_QUIRE_BUDGET, 9, 2, 32);
    spec.max_tokens = 250;
    spec.set_ring(1, 8);
    spec.policy.byte_target = 0.2;
    spec.policy.min_queries = 10;
    fit_pool(spec, 250);
    PoolCache box(spec);
    quire_threshold heads[2] = {{QUIRE_ALL, 0, 0.0f, 0.0f}, {QUIRE_ALL, 1, 1.0f, 0.0f}};
    if (drops) heads[1].alpha_low = 0.1f;
    quire_seq_open_args open = QUIRE_SEQ_OPEN_ARGS_INIT;
    open.policy = &spec.policy;
    open.thresholds = heads;
    open.threshold_count = 2;
    std::int32_t slot = -1;
    PoolCache::need(box.cache.open(open, &slot));
    const Result begun = box.cache.prefill_begin(slot, 250);
    if (begun.status() == QUIRE_OUT_OF_PAGES) continue;  // told at begin: fine
    PoolCache::need(begun);
    for (std::uint32_t layer = 0; layer < spec.group.layers; ++layer) {
      PoolCache::need(box.prefill_layer(slot, layer, 250, 3));
      INFO("layer " << layer << (drops ? " with drops" : " without drops"));
      REQUIRE(test::check_pool(box.state()) == "");
      REQUIRE(box.cache.stats().promised_pages <= spec.pages - box.cache.stats().live_pages);
    }
  }
}

// A plan that comes with the prompt may want more than the policy reserved: it is refused, or it
// was reserved for; it never takes what is not there.
TEST_CASE("a plan given with a prompt never takes more pages than were reserved",
          "[pages][admission]") {
  for (const PolicyCase& c : kCases) {
    for (const std::uint8_t tier : {std::uint8_t{0}, std::uint8_t{1}}) {
      PoolSpec spec(c.recipe, 2, 2, 32);
      if (tier >= spec.group.layout.tier_count) continue;
      spec.max_tokens = 260;
      spec.set_ring(c.recipe % 3, 9);
      c.change(spec);
      fit_pool(spec, 200);
      PoolCache box(spec);
      INFO(c.name << ", all in tier " << int{tier});
      const std::uint64_t reserved = pages_for(box, 200);
      const std::int32_t slot = box.open();
      PoolCache::need(box.cache.prefill_begin(slot, 200));
      std::vector<std::uint8_t> plan(400, tier);
      plan[150] = plan[350] = 254;
      for (std::uint32_t layer = 0; layer < 2; ++layer) {
        const test::MemorySnapshot before(box);
        const Result result = box.prefill_layer(slot, layer, 200, 1, plan.data());
        const quire_stats stats = box.cache.stats();
        INFO("layer " << layer << ": " << result.text() << ", live " << stats.live_pages);
        REQUIRE(stats.live_pages <= reserved);
        REQUIRE(stats.promised_pages <= reserved - stats.live_pages);
        REQUIRE(test::check_pool(box.state()) == "");
        if (result.ok()) continue;
        REQUIRE(before.difference() == "");
        PoolCache::need(box.prefill_layer(slot, layer, 200, 1));  // the policy's plan fits
      }
      PoolCache::need(box.cache.prefill_end(slot));
    }
  }
}

}  // namespace
}  // namespace quire
