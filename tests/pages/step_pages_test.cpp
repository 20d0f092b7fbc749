// Pages of a step. Oracle: for sequences that keep everything, lengths alone tell every page; ids
// by the order of the free list; the bound of quire_headroom_pages against what steps really take.
#include <vector>

#include "support/catch.hpp"
#include "support/pages_accounting.hpp"
#include "support/pages_cache.hpp"
#include "support/pages_check.hpp"
#include "support/pages_contents.hpp"
#include "support/pages_memory.hpp"

namespace quire {
namespace {

using test::CostSheet;
using test::PoolCache;
using test::PoolSpec;

struct Headroom {
  std::uint64_t needed = 0;
  std::uint64_t available = 0;
};

Headroom headroom(const PoolCache& box, const std::vector<std::int32_t>& slots) {
  Headroom h;
  REQUIRE(quire_headroom_pages(box.cache.get(),
                               slots.data(),
                               static_cast<std::uint32_t>(slots.size()),
                               1,
                               &h.needed,
                               &h.available,
                               nullptr) == QUIRE_OK);
  return h;
}

TEST_CASE("a page is taken when its first token comes and not before", "[pages][step]") {
  for (const std::uint32_t window : {0u, 1u, 5u, 16u}) {
    PoolSpec spec(QUIRE_RECIPE_KEEP_ALL, 2, 3, 16);
    spec.set_ring(2, window);
    PoolCache box(spec);
    const CostSheet sheet(spec);
    const std::int32_t slot = box.open();
    std::uint64_t tokens = 0;
    for (std::uint64_t i = 0; i < 80; ++i, ++tokens) {
      const std::uint64_t ring = 2 + window;
      const std::uint64_t outside = tokens > ring ? tokens - ring : 0;
      INFO("window " << window << " tokens " << tokens);
      REQUIRE(box.cache.stats().live_pages == sheet.heads * sheet.pages(0, outside));
      REQUIRE(headroom(box, {slot}).needed >= sheet.heads * (tokens >= ring ? 1 : 0));
      REQUIRE(headroom(box, {slot}).needed <= sheet.heads);
      PoolCache::need(box.step({slot}, i));
    }
  }
}

TEST_CASE("ids of a step come in the order sequence, layer, head", "[pages][step]") {
  PoolSpec spec(QUIRE_RECIPE_KEEP_ALL, 3, 2, 16);
  spec.set_ring(0, 4);
  spec.sequences = 3;
  PoolCache box(spec);
  for (std::uint32_t i = 0; i < 3; ++i)
    PoolCache::need(box.prefill(box.open(), 4 + 16, i));  // every page is full
  const CacheState& cache = box.state();
  std::vector<std::int32_t> next;
  for (std::uint64_t i = 0; i < 18; ++i) next.push_back(cache.free_pages.peek(i));
  const std::vector<std::int32_t> batch = {2, -1, 0};
  PoolCache::need(box.begin({2, -1, 0}));
  std::size_t at = 0;
  for (const std::int32_t slot : batch) {
    if (slot < 0) continue;
    for (std::uint64_t h = 0; h < 6; ++h) {
      const std::uint64_t row = cache.row(slot, 0, 0) + h;
      REQUIRE(cache.head_states[row].pages[0] == 2);
      REQUIRE(cache.table.row(row).page(0, 1).value == next[at++]);
    }
  }
  REQUIRE(cache.free_pages.peek(0) == next[at]);
}

TEST_CASE("a batch gets all of its pages or none", "[pages][step]") {
  PoolSpec spec(QUIRE_RECIPE_KEEP_ALL, 2, 2, 16);
  spec.set_ring(1, 7);
  spec.sequences = 4;
  for (std::uint64_t spare = 0; spare <= 16; ++spare) {
    spec.pages = 16 + spare;
    PoolCache box(spec);
    for (std::uint64_t i = 0; i < 4; ++i)
      PoolCache::need(box.prefill(box.open(), 8 + 16, i));  // each will want 4 pages
    REQUIRE(box.cache.stats().live_pages == 16);
    for (std::uint64_t count = 4; count >= 1; --count) {
      std::vector<std::int32_t> batch;
      for (std::uint64_t i = 0; i < count; ++i) batch.push_back(static_cast<std::int32_t>(3 - i));
      INFO(spare << " spare pages, batch of " << count);
      REQUIRE(headroom(box, batch).needed == 4 * count);
      REQUIRE(headroom(box, batch).available == spare);
      const test::MemorySnapshot before(box);
      const Result result = box.begin(batch);
      REQUIRE(result.ok() == (4 * count <= spare));
      if (result.ok()) {
        REQUIRE(box.cache.stats().live_pages == 16 + 4 * count);
        PoolCache::need(box.cache.step_cancel());
        break;
      }
      REQUIRE(result.status() == QUIRE_OUT_OF_PAGES);
      REQUIRE(result.needed() == 4 * count);
      REQUIRE(result.given() == spare);
      REQUIRE(before.difference() == "");
    }
  }
}

TEST_CASE("headroom refuses what is not open and skips padding", "[pages][step]") {
  PoolSpec spec(QUIRE_RECIPE_KEEP_ALL);
  spec.set_ring(0, 0);
  spec.sequences = 3;
  PoolCache box(spec);
  const std::int32_t slot = box.open();
  REQUIRE(headroom(box, {}).needed == 0);
  REQUIRE(headroom(box, {-1, -1}).needed == 0);
  REQUIRE(headroom(box, {-1, slot}).needed == 4);
  std::uint64_t a = 77, b = 78;
  quire_cache* cache = box.cache.get();
  for (const std::int32_t wrong : {1, 2}) {
    const std::int32_t slots[2] = {slot, wrong};
    REQUIRE(quire_headroom_pages(cache, slots, 2, 1, &a, &b, nullptr) == QUIRE_BAD_STATE);
  }
  for (const std::int32_t wrong : {-2, 3}) {
    REQUIRE(quire_headroom_pages(cache, &wrong, 1, 1, &a, &b, nullptr) == QUIRE_INVALID_ARGUMENT);
  }
  REQUIRE(quire_headroom_pages(cache, nullptr, 1, 1, &a, &b, nullptr) == QUIRE_INVALID_ARGUMENT);
  REQUIRE(quire_headroom_pages(cache, &slot, 1, 1, nullptr, &b, nullptr) == QUIRE_INVALID_ARGUMENT);
  REQUIRE(quire_headroom_pages(cache, &slot, 1, 1, &a, nullptr, nullptr) == QUIRE_INVALID_ARGUMENT);
  PoolCache::need(box.begin({slot}));
  REQUIRE(quire_headroom_pages(cache, &slot, 1, 1, &a, &b, nullptr) == QUIRE_BAD_STATE);
  REQUIRE((a == 77 && b == 78));
}

// Every recipe over many steps; a cadence step may move all of the high tier at once.
TEST_CASE("headroom bounds every next step", "[pages][step]") {
  for (std::uint32_t recipe = QUIRE_RECIPE_KEEP_ALL; recipe <= QUIRE_RECIPE_FOREIGN; ++recipe) {
    for (const std::uint32_t prompt : {0u, 30u, 150u}) {
      PoolSpec spec(recipe, 2, 2, 64);
      spec.set_ring(recipe % 2, 8);
      spec.max_tokens = 300;
      if (spec.policy.kind == QUIRE_EVICT) spec.policy.budget_tokens = 60;
      spec.policy.byte_target *= 2.0;
      spec.policy.cadence = 7;
      PoolCache box(spec);
      const std::int32_t slot = box.open();
      if (prompt > 0) PoolCache::need(box.prefill(slot, prompt, prompt));
      for (std::uint64_t i = 0; i < 140; ++i) {
        INFO("recipe " << recipe << " prompt " << prompt << " step " << i);
        const Headroom bound = headroom(box, {slot});
        const std::uint64_t before = box.cache.stats().live_pages;
        PoolCache::need(box.begin({slot}));
        REQUIRE(box.cache.stats().live_pages - before <= bound.needed);
        box.run_layers(1, i);
        PoolCache::need(box.cache.step_end());
        REQUIRE(test::check_dense(box.state()) == "");
      }
      REQUIRE(test::check_pool(box.state()) == "");
    }
  }
}

// Probation ends for a whole prompt at once: the low tier fills in a single step.
TEST_CASE("headroom bounds a step that demotes a whole prompt", "[pages][step]") {
  PoolSpec spec(QUIRE_RECIPE_QUIRE_BUDGET, 2, 2, 64);
  spec.set_ring(1, 8);
  spec.max_tokens = 400;
  const auto per_page = [&](std::uint32_t t) { return CostSheet(spec).per_page[t]; };
  while (per_page(1) == per_page(0)) spec.group.layout.page_bytes += 64;
  spec.policy.byte_target = 0.4;
  spec.policy.alpha_low = 0.0f;
  spec.policy.tail_queries = 16;
  spec.policy.min_queries = 24;
  spec.policy.cadence = 4;
  PoolCache box(spec);
  const std::int32_t slot = box.open();
  PoolCache::need(box.prefill(slot, 300, 1));
  std::uint64_t most = 0;
  for (std::uint64_t i = 0; i < 30; ++i) {
    const Headroom bound = headroom(box, {slot});
    const std::uint64_t before = box.cache.stats().live_pages;
    PoolCache::need(box.begin({slot}));
    const std::uint64_t taken = box.cache.stats().live_pages - before;
    INFO("step " << i << " takes " << taken);
    REQUIRE(taken <= bound.needed);
    most = std::max(most, taken);
    box.run_layers(1, i);
    PoolCache::need(box.cache.step_end());
  }
  REQUIRE(most > 2 * spec.heads());  // else nothing was demoted at once
}

// ---- Replayed plans -------------------------------------------------------------------------

std::vector<quire_plan_move> random_moves(const PoolCache& box, std::int32_t slot, test::Rng& rng) {
  std::vector<quire_plan_move> moves;
  for (std::uint32_t layer = 0; layer < box.spec.group.layers; ++layer) {
    for (std::uint32_t head = 0; head < box.spec.group.kv_heads; ++head) {
      const test::HeadContents now = test::head_contents(box, slot, layer, head);
      std::vector<std::uint8_t> tier(box.spec.max_tokens, 255);
      for (std::size_t i = 0; i < now.positions.size(); ++i)
        tier[static_cast<std::size_t>(now.positions[i])] = now.tiers[i];
      for (std::uint32_t p = 0; p < tier.size(); ++p) {
        if (tier[p] == 255 || rng.below(4) == 0) continue;
        const std::uint8_t to = tier[p] == 0 && rng.below(3) != 0 ? 1 : 254;
        moves.push_back({layer, head, static_cast<std::int32_t>(p), to, {0, 0, 0}});
      }
    }
  }
  return moves;
}

// Tokens and pages by hand: moves counted per head, the leaving token enters the high tier.
TEST_CASE("a replayed plan takes the pages that its moves need, or none", "[pages][step]") {
  test::Rng rng(61);
  INFO(rng.describe());
  PoolSpec spec(QUIRE_RECIPE_DIFFKV_PAPER, 2, 2, 32);
  spec.set_ring(1, 8);
  const CostSheet sheet(spec);
  for (std::uint64_t pages = 32; pages < 60; ++pages) {
    INFO(pages << " pages");
    spec.pages = pages;
    spec.policy.alpha_high = spec.policy.alpha_low = 0.0f;
    PoolCache box(spec);
    const std::int32_t slot = box.open();
    PoolCache::need(box.prefill(slot, 9 + 100, 4));
    REQUIRE(box.cache.info(slot).high_tokens == 4 * 100);
    const std::vector<quire_plan_move> moves = random_moves(box, slot, rng);
    std::uint64_t needed = 0;
    std::uint64_t high = 0, low = 0;
    for (std::uint32_t h = 0; h < 4; ++h) {
      std::uint64_t mine[2] = {101, 0};
      for (const quire_plan_move& m : moves) {
        if (m.layer * 2 + m.head != h) continue;
        --mine[0];
        mine[1] += m.to == 1 ? 1 : 0;
      }
      needed += sheet.pages(1, mine[1]);  // none before; 101 high tokens need the 7 pages they have
      high += mine[0];
      low += mine[1];
    }
    quire_step_begin_args args = QUIRE_STEP_BEGIN_ARGS_INIT;
    args.slots = &slot;
    args.batch = 1;
    args.plan = moves.data();
    args.plan_count = moves.size();
    const test::MemorySnapshot before(box);
    const Result begun = box.cache.step_begin(args);
    const std::uint64_t available = pages - 4 * 7;
    REQUIRE(begun.ok() == (needed <= available));
    if (!begun.ok()) {
      REQUIRE(begun.needed() == needed);
      REQUIRE(begun.given() == available);
      REQUIRE(before.difference() == "");
      continue;
    }
    REQUIRE(box.cache.stats().live_pages == 28 + needed);
    box.run_layers(1, 9);
    PoolCache::need(box.cache.step_end());
    REQUIRE(box.cache.info(slot).high_tokens == high);
    REQUIRE(box.cache.info(slot).low_tokens == low);
    REQUIRE(test::check_dense(box.state()) == "");
    REQUIRE(test::check_pool(box.state()) == "");
  }
}

// The log of a step that replays is the plan itself and the token that left the ring.
TEST_CASE("a replayed step logs the moves it was given", "[pages][step]") {
  test::Rng rng(62);
  INFO(rng.describe());
  PoolSpec spec(QUIRE_RECIPE_FOREIGN, 2, 2, 32);
  spec.set_ring(1, 8);
  PoolCache box(spec);
  const std::int32_t slot = box.open();
  PoolCache::need(box.prefill(slot, 9 + 40, 4));
  std::vector<quire_plan_move> moves = random_moves(box, slot, rng);
  std::vector<quire_plan_move> log(moves.size() + 4);
  std::uint64_t count = 0;
  quire_step_begin_args args = QUIRE_STEP_BEGIN_ARGS_INIT;
  args.slots = &slot;
  args.batch = 1;
  args.plan = moves.data();
  args.plan_count = moves.size();
  args.plan_out = log.data();
  args.plan_capacity = log.size();
  args.plan_out_count = &count;
  PoolCache::need(box.cache.step_begin(args));
  REQUIRE(count == moves.size() + 4);  // position 41 leaves the ring of every head
  std::size_t at = 0;
  for (const quire_plan_move& logged : log) {
    if (logged.position == 41) {
      REQUIRE(logged.to == 0);
      continue;
    }
    REQUIRE(at < moves.size());
    REQUIRE(logged.layer == moves[at].layer);
    REQUIRE(logged.head == moves[at].head);
    REQUIRE(logged.position == moves[at].position);
    REQUIRE(logged.to == moves[at++].to);
  }
}

}  // namespace
}  // namespace quire
