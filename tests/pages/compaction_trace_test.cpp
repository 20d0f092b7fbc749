// A traced compaction. Oracle: numbers worked by hand for the allocator of DiffKV's code.
// Two pages differ, since a tier gets its first low page only when a token comes: in step 3
// head B's low tier takes none (page 11 stays free), so step 4 has one page less to return.
#include <algorithm>
#include <vector>

#include "quire/pages/compaction.hpp"
#include "quire/pages/page_table.hpp"
#include "support/catch.hpp"

namespace quire {
namespace {

using Ids = std::vector<std::int32_t>;

// A row as an engine keeps it: high from the left, low from the right, -1 where there is none.
struct FlatRow {
  explicit FlatRow(std::uint32_t width) : ids(width, -1) {}

  void set(std::uint32_t tier, const Ids& pages) {
    const auto capacity = static_cast<std::uint32_t>(ids.size());
    for (std::uint32_t i = 0; i < pages.size(); ++i) ids[row_slot(tier, i, capacity)] = pages[i];
  }

  Ids read(std::uint32_t tier, std::uint32_t count) const {
    const PageRow row = {nullptr, ids.data(), static_cast<std::uint32_t>(ids.size())};
    Ids out;
    for (std::uint32_t i = 0; i < count; ++i) out.push_back(row.page(tier, i).value);
    return out;
  }

  Ids ids;
};

// The same with directories and chunks, two rows.
struct ChunkedRows {
  ChunkedRows() {
    table.directories = directories;
    table.chunks = chunks.data();
    table.free_chunks = make_free_list(chunk_ids, 4);
    table.directory_length = 1;
  }

  void set(std::uint64_t row, std::uint32_t tier, const Ids& pages) {
    for (std::uint32_t i = 0; i < pages.size(); ++i)
      set_page(table, row, tier, i, PageId{pages[i]});
  }

  Ids read(std::uint64_t row, std::uint32_t tier, std::uint32_t count) const {
    Ids out;
    for (std::uint32_t i = 0; i < count; ++i) out.push_back(table.row(row).page(tier, i).value);
    return out;
  }

  std::int32_t directories[2] = {-1, -1};
  std::int32_t chunk_ids[4] = {};
  Ids chunks = Ids(4 * kChunkPages, -1);
  PageTable table;
};

Ids listed(const FreeList& free, std::uint64_t first, std::uint64_t last) {
  return Ids(free.ids + first, free.ids + last + 1);
}

TEST_CASE("two heads are compacted as traced by hand", "[pages][compaction]") {
  constexpr std::uint32_t kHighTokens = 32, kLowTokens = 60;
  std::int32_t ids[16];
  FreeList free = make_free_list(ids, 16);

  // 1. Prompt of 100 tokens: ceil(100 / 32) + 1 = 5 pages each.
  std::int32_t pages[2][8];
  std::uint32_t counts[4] = {ceil_div(100u, kHighTokens) + 1, ceil_div(100u, kHighTokens) + 1};
  REQUIRE(take_pages(free, counts, 2, pages[0], 8).ok());
  REQUIRE(Ids(pages[0], pages[0] + 5) == Ids{0, 1, 2, 3, 4});
  REQUIRE(Ids(pages[1], pages[1] + 5) == Ids{5, 6, 7, 8, 9});
  REQUIRE(free.head == 10);
  REQUIRE(free.free_count() == 6);

  // 2. A keeps 40 high and 50 low, B 64 high: 2 + 1 and 2 + 0 pages stay.
  REQUIRE(ceil_div(40u, kHighTokens) + ceil_div(50u, kLowTokens) == 3);
  REQUIRE(ceil_div(64u, kHighTokens) == 2);
  return_pages(free, pages[0] + 3, 2);
  return_pages(free, pages[1] + 2, 3);
  REQUIRE(listed(free, 0, 4) == Ids{3, 4, 7, 8, 9});
  REQUIRE(free.tail % 16 == 5);  // upstream names the last entry: 4
  REQUIRE(free.free_count() == 11);
  FlatRow a(8), b(8);
  a.set(0, {pages[0][0], pages[0][1]});
  a.set(1, {pages[0][2]});
  b.set(0, {pages[1][0], pages[1][1]});
  REQUIRE(a.ids == Ids{0, 1, -1, -1, -1, -1, -1, 2});
  REQUIRE(b.ids == Ids{5, 6, -1, -1, -1, -1, -1, -1});

  // 3. A step: only B's high tier is full, (head, tier) = [A high, A low, B high, B low].
  std::uint32_t step[4] = {0, 0, 1, 0};
  std::uint32_t offsets[4] = {0, 0, 1, 0};
  std::int32_t taken[4] = {-1, -1, -1, -1};
  REQUIRE(exclusive_scan(offsets, 4) == 1);
  REQUIRE(Ids{0, 0, 0, 1} == Ids(offsets, offsets + 4));
  REQUIRE(take_pages(free, step, 4, taken, 1).ok());
  REQUIRE(Ids(taken, taken + 4) == Ids{-1, -1, 10, -1});
  b.set(0, {5, 6, taken[2]});
  REQUIRE(free.head == 11);
  REQUIRE(free.free_count() == 10);

  // 4. Both finish.
  return_pages(free, a.read(0, 2).data(), 2);
  return_pages(free, a.read(1, 1).data(), 1);
  return_pages(free, b.read(0, 3).data(), 3);
  REQUIRE(listed(free, 5, 10) == Ids{0, 1, 2, 5, 6, 10});
  REQUIRE(free.free_count() == 16);
  Ids all(ids, ids + 16);
  std::sort(all.begin(), all.end());
  for (std::int32_t i = 0; i < 16; ++i) REQUIRE(all[static_cast<std::size_t>(i)] == i);
}

// Upstream returns before it mirrors; here a low page is entered at the right end at once.
TEST_CASE("a prompt's surplus goes back and the rest is read from both ends",
          "[pages][compaction]") {
  std::int32_t ids[12];
  FreeList free = make_free_list(ids, 12);
  std::uint32_t count = ceil_div(320u, 32u) + 1;
  std::int32_t pages[12];
  REQUIRE(take_pages(free, &count, 1, pages, 12).ok());
  REQUIRE(Ids(pages, pages + 11) == Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  const std::uint32_t high = ceil_div(70u, 32u), low = ceil_div(240u, 60u);
  REQUIRE(high == 3);
  REQUIRE(low == 4);
  return_pages(free, pages + high + low, count - high - low);
  REQUIRE(free.free_count() == 5);
  REQUIRE(free.take() == 11);
  for (const std::int32_t id : {7, 8, 9, 10}) REQUIRE(free.take() == id);

  FlatRow flat(12);
  flat.set(0, {0, 1, 2});
  flat.set(1, {3, 4, 5, 6});
  REQUIRE(flat.ids == Ids{0, 1, 2, -1, -1, -1, -1, -1, 6, 5, 4, 3});
  REQUIRE(flat.read(0, 3) == Ids{0, 1, 2});
  REQUIRE(flat.read(1, 4) == Ids{3, 4, 5, 6});
}

TEST_CASE("a row that is nearly full keeps both tiers apart", "[pages][table]") {
  FlatRow flat(8);
  flat.set(0, {0});
  flat.set(1, {1, 2, 3, 4, 5, 6});
  REQUIRE(flat.ids == Ids{0, -1, 6, 5, 4, 3, 2, 1});
  REQUIRE(flat.read(1, 6) == Ids{1, 2, 3, 4, 5, 6});
  flat.set(1, {1, 2, 3, 4, 5, 6, 7});  // the last slot there is
  REQUIRE(flat.ids == Ids{0, 7, 6, 5, 4, 3, 2, 1});
  REQUIRE(flat.read(0, 1) == Ids{0});
}

TEST_CASE("rows with chunks read the same pictures as flat rows", "[pages][table]") {
  ChunkedRows rows;
  rows.set(0, 0, {0, 1, 2});
  rows.set(0, 1, {3, 4, 5, 6});
  rows.set(1, 0, {0});
  rows.set(1, 1, {1, 2, 3, 4, 5, 6});
  REQUIRE(rows.read(0, 0, 3) == Ids{0, 1, 2});
  REQUIRE(rows.read(0, 1, 4) == Ids{3, 4, 5, 6});
  REQUIRE(rows.read(1, 0, 1) == Ids{0});
  REQUIRE(rows.read(1, 1, 6) == Ids{1, 2, 3, 4, 5, 6});
  // One chunk of 32 serves both ends of a row: low from slot 31 down.
  REQUIRE(rows.table.free_chunks.free_count() == 2);
  REQUIRE(Ids(rows.chunks.begin() + 28, rows.chunks.begin() + 32) == Ids{6, 5, 4, 3});
  REQUIRE(Ids(rows.chunks.begin(), rows.chunks.begin() + 4) == Ids{0, 1, 2, -1});
}

}  // namespace
}  // namespace quire
