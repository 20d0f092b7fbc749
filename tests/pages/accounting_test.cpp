// Bytes that a cache reports. Oracle: the formulas of pages_accounting.hpp over the description and
// over what quire_query lists; worked numbers by hand for two layouts.
#include <algorithm>
#include <vector>

#include "support/catch.hpp"
#include "support/pages_accounting.hpp"
#include "support/pages_cache.hpp"
#include "support/pages_check.hpp"

namespace quire {
namespace {

using test::check_info;
using test::check_stats;
using test::CostSheet;
using test::PoolCache;
using test::PoolSpec;

// K8V4 + K4V2 of head dim 64 (design, section 5): 112 and 64 bytes a token, 64 and 112 tokens in a
// page of 7168 bytes. Ring of 1 + 64 slots in f16: 65 x 256 bytes, then 65 scores and positions.
TEST_CASE("a DiffKV cache costs what the design says", "[pages][accounting]") {
  PoolSpec spec(QUIRE_RECIPE_DIFFKV_PAPER, 2, 3, 64);
  spec.group.layout.page_bytes = 0;
  spec.set_ring(1, 64);
  spec.max_tokens = 1000;
  const CostSheet sheet(spec);
  REQUIRE(sheet.page_bytes == 7168);
  REQUIRE(sheet.per_page[0] == 64);
  REQUIRE(sheet.per_page[1] == 112);
  REQUIRE(sheet.record[0] == 112);
  REQUIRE(sheet.record[1] == 64);
  REQUIRE(sheet.ring_block == 65 * 256 + 320 + 320);  // 260 bytes of scores begin a multiple of 64
  REQUIRE(sheet.directory == 1);                      // 2 + 16 + 1 + 9 + 1 pages
  spec.max_tokens = 4096;
  REQUIRE(CostSheet(spec).directory == 4);  // 2 + 64 + 1 + 37 + 1 pages
}

TEST_CASE("sizes agree with the formulas for every recipe and ring", "[pages][accounting]") {
  for (std::uint32_t recipe = QUIRE_RECIPE_KEEP_ALL; recipe <= QUIRE_RECIPE_FOREIGN; ++recipe) {
    for (const std::uint32_t ring : {1u, 2u, 3u, 4u}) {
      for (const std::uint32_t window : {0u, 1u, 7u, 33u}) {
        PoolSpec spec(recipe, 3, 2, 32);
        spec.group.ring_format = ring;
        spec.set_ring(window % 3, window);
        spec.sequences = 2;
        INFO("recipe " << recipe << " ring format " << ring << " window " << window);
        quire_cache_sizes sizes = QUIRE_CACHE_SIZES_INIT;
        const quire_cache_desc desc = spec.desc();
        REQUIRE(quire_cache_sizes_get(&desc, &sizes) == QUIRE_OK);
        const CostSheet sheet(spec);
        REQUIRE(sizes.ring_block_bytes == sheet.ring_block);
        REQUIRE(sizes.page_bytes == sheet.page_bytes);
        REQUIRE(sizes.pages == spec.pages * sheet.page_bytes);
        REQUIRE(sizes.rings == 2 * sheet.heads * sheet.ring_block);
      }
    }
  }
}

// Tables in closed form: free pages, free chunks, chunks, directories, a cache line and a plan per
// head, each a multiple of 128 bytes. A pool of 2^31 - 1 pages needs 64 bits everywhere.
TEST_CASE("regions grow in closed form up to the largest pool", "[pages][accounting]") {
  const auto line = [](std::uint64_t bytes) { return (bytes + 127) / 128 * 128; };
  for (const std::uint64_t pages : {1ull, 2ull, 31ull, 1000ull, 1ull << 20, (1ull << 31) - 1}) {
    for (const std::uint32_t sequences : {1u, 3u, 256u}) {
      for (const std::uint32_t tokens : {1u, 5000u, 16777215u}) {
        INFO(pages << " pages, " << sequences << " sequences of " << tokens);
        PoolSpec spec(QUIRE_RECIPE_DIFFKV_PAPER, 4, 2, 64);
        spec.pages = pages;
        spec.sequences = sequences;
        spec.batch = sequences / 2;
        spec.max_tokens = tokens;
        spec.group.page_stride = static_cast<std::int64_t>(spec.group.layout.page_bytes) + 192;
        quire_cache_sizes sizes = QUIRE_CACHE_SIZES_INIT;
        const quire_cache_desc desc = spec.desc();
        REQUIRE(quire_cache_sizes_get(&desc, &sizes) == QUIRE_OK);
        const CostSheet sheet(spec);
        const std::uint64_t rows = sequences * sheet.heads;
        const std::uint64_t chunks = std::min(2 * rows + pages / 32, pages);
        const std::uint64_t batch = spec.batch == 0 ? sequences : spec.batch;
        REQUIRE(sizes.pages == (pages - 1) * (sheet.page_bytes + 192) + sheet.page_bytes);
        REQUIRE(sizes.rings == rows * sheet.ring_block);
        REQUIRE(sizes.tables == line(4 * pages) + line(4 * chunks) + line(128 * chunks) +
                                    line(4 * rows * sheet.directory) + line(64 * rows) +
                                    line(sizeof(HeadPlan) * batch * sheet.heads));
      }
    }
  }
}

// Two prompts, one decoded for a while, then closed: every number at every moment.
void run_life(PoolSpec spec) {
  spec.sequences = 3;
  PoolCache box(spec);
  const CostSheet sheet(spec);
  std::vector<std::int32_t> open;
  const auto check = [&] {
    REQUIRE(test::check_pool(box.state()) == "");
    REQUIRE(test::check_dense(box.state()) == "");
    for (const std::int32_t slot : open) REQUIRE(check_info(box, sheet, slot) == "");
    REQUIRE(check_stats(box, sheet, open) == "");
  };
  check();
  for (const std::uint32_t tokens : {90u, 7u}) {
    open.push_back(box.open());
    check();
    PoolCache::need(box.prefill(open.back(), tokens, tokens, [&](std::uint32_t) { check(); }));
    check();
  }
  open.push_back(box.open());  // without a prompt
  for (std::uint64_t i = 0; i < 60; ++i) {
    PoolCache::need(box.step(open, i));
    check();
  }
  while (!open.empty()) {
    PoolCache::need(box.cache.close(open.back()));
    open.pop_back();
    check();
  }
  REQUIRE(box.cache.stats().live_pages == 0);
  REQUIRE(box.cache.stats().table_bytes == 0);
}

TEST_CASE("reported bytes follow the formulas through a cache's life", "[pages][accounting]") {
  for (std::uint32_t recipe = QUIRE_RECIPE_KEEP_ALL; recipe <= QUIRE_RECIPE_FOREIGN; ++recipe) {
    INFO("recipe " << recipe);
    PoolSpec spec(recipe, 2, 3, 32);
    spec.set_ring(recipe % 3, 5 + recipe);
    if (spec.policy.kind == QUIRE_EVICT) spec.policy.budget_tokens = 40;
    spec.group.max_draft = recipe % 4;
    spec.group.page_stride = static_cast<std::int64_t>(spec.group.layout.page_bytes) + 64;
    spec.policy.byte_target *= 3.0;  // rings and pages are large beside vectors of 32 elements
    run_life(spec);
  }
}

}  // namespace
}  // namespace quire
