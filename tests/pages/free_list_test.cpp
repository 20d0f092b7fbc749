// Free pages. Oracle: a queue of ids, first in first out, and plain sums of counts.
#include "quire/pages/free_list.hpp"

#include <deque>
#include <vector>

#include "quire/pages/compaction.hpp"
#include "support/catch.hpp"
#include "support/gen.hpp"

namespace quire {
namespace {

// A list whose counters have run for a while: the next id to be taken is 0, then 1, ...
struct AgedList {
  AgedList(std::int32_t capacity, std::uint64_t start) : ids(static_cast<std::size_t>(capacity)) {
    const auto size = static_cast<std::uint64_t>(capacity);
    for (std::uint64_t i = 0; i < size; ++i) {
      ids[(start + i) % size] = static_cast<std::int32_t>(i);
      model.push_back(static_cast<std::int32_t>(i));
    }
    free = {ids.data(), size, start, start + size};
  }

  bool counts_agree() const {
    return free.free_count() == model.size() && free.live_count() == ids.size() - model.size() &&
           free.tail - free.head <= free.capacity;
  }

  std::vector<std::int32_t> ids;
  std::deque<std::int32_t> model;
  FreeList free;
};

bool same(const FreeList& a, const FreeList& b) {
  return a.ids == b.ids && a.capacity == b.capacity && a.head == b.head && a.tail == b.tail;
}

TEST_CASE("a new free list hands out its ids in order", "[pages][free_list]") {
  for (const std::uint64_t capacity : {1u, 2u, 31u, 100u}) {
    std::vector<std::int32_t> ids(capacity, -7);
    FreeList free = make_free_list(ids.data(), capacity);
    REQUIRE(free.free_count() == capacity);
    REQUIRE(free.live_count() == 0);
    for (std::uint64_t i = 0; i < capacity; ++i) {
      REQUIRE(free.peek(0) == static_cast<std::int32_t>(i));
      REQUIRE(free.peek(capacity - 1 - i) == static_cast<std::int32_t>(capacity - 1));
      REQUIRE(free.take() == static_cast<std::int32_t>(i));
      REQUIRE(free.free_count() == capacity - 1 - i);
      REQUIRE(free.live_count() == i + 1);
    }
  }
}

// With wrapped counters an empty list looks full.
TEST_CASE("an empty free list reports no pages and refuses with the state unchanged",
          "[pages][free_list]") {
  std::int32_t ids[4];
  FreeList free = make_free_list(ids, 4);
  std::int32_t row[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
  std::uint32_t count = 4;
  REQUIRE(take_pages(free, &count, 1, row, 8).ok());
  REQUIRE(free.free_count() == 0);
  REQUIRE(free.live_count() == 4);

  const FreeList before = free;
  const std::vector<std::int32_t> ids_before(ids, ids + 4);
  count = 1;
  const Status status = take_pages(free, &count, 1, row + 4, 8);
  REQUIRE(status.code == StatusCode::kOutOfPages);
  REQUIRE(status.needed == 1);
  REQUIRE(status.given == 0);
  REQUIRE(count == 1);
  REQUIRE(same(free, before));
  REQUIRE(std::vector<std::int32_t>(ids, ids + 4) == ids_before);
  REQUIRE(std::vector<std::int32_t>(row, row + 8) ==
          std::vector<std::int32_t>{0, 1, 2, 3, -1, -1, -1, -1});

  const std::int32_t back[4] = {2, 0, 3, 1};
  return_pages(free, back, 4);
  REQUIRE(free.free_count() == 4);
  REQUIRE(free.live_count() == 0);
  count = 4;
  REQUIRE(take_pages(free, &count, 1, row, 8).ok());
  REQUIRE(std::vector<std::int32_t>(row, row + 4) == std::vector<std::int32_t>{2, 0, 3, 1});
}

TEST_CASE("counters of 64 bits go on past 2^32 and 2^63", "[pages][free_list]") {
  test::Rng rng(11);
  INFO(rng.describe());
  for (const std::uint64_t start :
       {0ull, (1ull << 32) - 40, (1ull << 32) - 7, (1ull << 63) - 40, (1ull << 63) - 1}) {
    for (const std::int32_t capacity : {1, 5, 7, 64}) {
      AgedList list(capacity, start);
      std::vector<std::int32_t> live;
      for (int i = 0; i < 3000; ++i) {
        if (!live.empty() && (list.model.empty() || rng.below(2) == 0)) {
          const std::size_t at = rng.below(static_cast<std::uint32_t>(live.size()));
          list.free.put(live[at]);
          list.model.push_back(live[at]);
          live[at] = live.back();
          live.pop_back();
        } else {
          REQUIRE(list.free.peek(list.model.size() - 1) == list.model.back());
          const std::int32_t id = list.free.take();
          REQUIRE(id == list.model.front());
          list.model.pop_front();
          live.push_back(id);
        }
        REQUIRE(list.counts_agree());
      }
      REQUIRE(list.free.head > start + 1000);
    }
  }
}

TEST_CASE("a batch of counts becomes offsets and a total of 64 bits", "[pages][compaction]") {
  test::Rng rng(12);
  INFO(rng.describe());
  for (std::uint64_t n = 0; n < 70; ++n) {
    std::vector<std::uint32_t> counts(n);
    for (std::uint32_t& c : counts) c = rng.below(3) == 0 ? 0 : rng.below(1000);
    std::vector<std::uint32_t> offsets = counts;
    const std::uint64_t total = exclusive_scan(offsets.data(), n);
    std::uint64_t sum = 0;
    for (std::uint64_t i = 0; i < n; ++i) {
      REQUIRE(offsets[i] == sum);
      sum += counts[i];
    }
    REQUIRE(total == sum);
  }
  std::uint32_t huge[3] = {0xffffffffu, 0xffffffffu, 2};
  REQUIRE(exclusive_scan(huge, 3) == 2 * 0xffffffffull + 2);
}

TEST_CASE("pages promised to prompts are not free for others", "[pages][compaction]") {
  std::int32_t ids[10];
  FreeList free = make_free_list(ids, 10);
  for (std::uint64_t credit = 0; credit <= 12; ++credit) {
    const std::uint64_t available = credit < 10 ? 10 - credit : 0;
    for (std::uint64_t needed = 0; needed <= 12; ++needed) {
      const Status status = check_pages(free, credit, needed);
      REQUIRE(status.ok() == (needed <= available));
      if (status.ok()) continue;
      REQUIRE(status.code == StatusCode::kOutOfPages);
      REQUIRE(status.needed == needed);
      REQUIRE(status.given == available);
    }
  }
}

// Rows of a batch in a walk: takes of many rows against the queue, shortages in between.
TEST_CASE("taking for many rows is all or nothing and follows the order of the rows",
          "[pages][compaction]") {
  test::Rng rng(13);
  INFO(rng.describe());
  constexpr std::int32_t kCapacity = 90;
  constexpr std::int64_t kStride = 12;
  AgedList list(kCapacity, (1ull << 32) - 50);
  std::vector<std::int32_t> live;
  std::uint32_t refused = 0;
  for (int turn = 0; turn < 4000; ++turn) {
    const std::uint64_t rows = rng.below(9);
    std::vector<std::uint32_t> counts(rows);
    for (std::uint32_t& c : counts) c = rng.below(12);
    std::vector<std::int32_t> out(rows * kStride, -5);
    std::vector<std::int32_t> want(rows * kStride, -5);
    std::uint64_t total = 0;
    for (const std::uint32_t c : counts) total += c;
    const bool fits = total <= list.model.size();
    for (std::uint64_t i = 0; fits && i < rows; ++i) {
      for (std::uint32_t j = 0; j < counts[i]; ++j) {
        want[i * kStride + j] = list.model.front();
        live.push_back(list.model.front());
        list.model.pop_front();
      }
    }
    const std::vector<std::uint32_t> asked = counts;
    const FreeList before = list.free;
    const std::vector<std::int32_t> ids_before = list.ids;
    const Status status = take_pages(list.free, counts.data(), rows, out.data(), kStride);
    REQUIRE(status.ok() == fits);
    REQUIRE(counts == asked);
    REQUIRE(out == want);
    REQUIRE(list.ids == ids_before);
    REQUIRE(list.counts_agree());
    if (!fits) {
      ++refused;
      REQUIRE(status.needed == total);
      REQUIRE(status.given == before.free_count());
      REQUIRE(same(list.free, before));
    }
    const auto back = rng.below(static_cast<std::uint32_t>(live.size()) + 1);
    return_pages(list.free, live.data(), back);
    list.model.insert(list.model.end(), live.begin(), live.begin() + back);
    live.erase(live.begin(), live.begin() + back);
    REQUIRE(list.counts_agree());
  }
  REQUIRE(refused > 100);
  REQUIRE(refused < 3000);
}

TEST_CASE("counts beyond 2^32 in sum are refused and restored", "[pages][compaction]") {
  std::int32_t ids[4];
  FreeList free = make_free_list(ids, 4);
  const FreeList before = free;
  std::uint32_t counts[4] = {0xffffffffu, 0xfffffff0u, 0, 0xffffffffu};
  std::int32_t row = -1;
  const Status status = take_pages(free, counts, 4, &row, 0);
  REQUIRE(status.code == StatusCode::kOutOfPages);
  REQUIRE(status.needed == 0xffffffffull * 2 + 0xfffffff0ull);
  REQUIRE(counts[0] == 0xffffffffu);
  REQUIRE(counts[1] == 0xfffffff0u);
  REQUIRE(counts[2] == 0);
  REQUIRE(counts[3] == 0xffffffffu);
  REQUIRE(same(free, before));
  REQUIRE(row == -1);
}

}  // namespace
}  // namespace quire
