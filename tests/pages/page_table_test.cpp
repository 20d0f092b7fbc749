// Rows of pages. Oracle: per row and tier a vector of page ids; a chunk is needed exactly when one
// of its 32 slots is used by one of the two vectors.
#include "quire/pages/page_table.hpp"

#include <set>
#include <vector>

#include "support/catch.hpp"
#include "support/gen.hpp"

namespace quire {
namespace {

// A table beside its model. Pages are only numbers here; every entered one is new.
class TableWalk {
 public:
  TableWalk(std::uint64_t rows, std::uint32_t directory_length, std::uint64_t pages)
      : pages_(pages),
        chunk_count_(chunk_bound(rows, pages)),
        directories_(rows * directory_length, -1),
        chunks_(chunk_count_ * kChunkPages, -1),
        chunk_ids_(chunk_count_),
        model_(rows * 2) {
    table_.directories = directories_.data();
    table_.chunks = chunks_.data();
    table_.free_chunks = make_free_list(chunk_ids_.data(), chunk_count_);
    table_.directory_length = directory_length;
  }

  std::uint64_t rows() const { return model_.size() / 2; }
  std::uint64_t live() const { return live_; }
  std::uint32_t count(std::uint64_t row, std::uint32_t tier) const {
    return static_cast<std::uint32_t>(model_[2 * row + tier].size());
  }
  std::uint64_t chunks_in_use() const { return chunk_count_ - table_.free_chunks.free_count(); }

  bool can_grow(std::uint64_t row) const {
    return live_ < pages_ && count(row, 0) + count(row, 1) < table_.capacity();
  }

  // False when a chunk is wanted and there is none: chunk_bound() would be too small.
  bool grow(std::uint64_t row, std::uint32_t tier) {
    const std::uint64_t before = needed_chunks(row);
    std::vector<std::int32_t>& mine = model_[2 * row + tier];
    mine.push_back(next_page_++);
    const bool wants_chunk = needed_chunks(row) > before;
    if (wants_chunk && table_.free_chunks.free_count() == 0) return false;
    ++live_;
    set_page(table_, row, tier, static_cast<std::uint32_t>(mine.size()) - 1, PageId{mine.back()});
    return true;
  }

  void shrink(std::uint64_t row, std::uint32_t tier) {
    std::vector<std::int32_t>& mine = model_[2 * row + tier];
    mine.pop_back();
    --live_;
    drop_chunk_if_empty(
        table_, row, tier, static_cast<std::uint32_t>(mine.size()), count(row, 1 - tier));
  }

  // What the model says about one row.
  std::set<std::uint32_t> chunks_of(std::uint64_t row) const {
    std::set<std::uint32_t> out;
    for (std::uint32_t i = 0; i < count(row, 0); ++i) out.insert(i / kChunkPages);
    for (std::uint32_t i = 0; i < count(row, 1); ++i)
      out.insert((table_.capacity() - 1 - i) / kChunkPages);
    return out;
  }
  std::uint64_t needed_chunks(std::uint64_t row) const { return chunks_of(row).size(); }

  void check_row(std::uint64_t row) const {
    INFO("row " << row << ": " << count(row, 0) << " high, " << count(row, 1) << " low");
    const PageRow view = table_.row(row);
    REQUIRE(view.capacity == table_.capacity());
    for (std::uint32_t tier = 0; tier < 2; ++tier) {
      const std::vector<std::int32_t>& mine = model_[2 * row + tier];
      bool equal = true;
      for (std::uint32_t i = 0; i < mine.size(); ++i)
        equal = equal && view.page(tier, i).value == mine[i];
      REQUIRE(equal);
    }
    const std::set<std::uint32_t> wanted = chunks_of(row);
    for (std::uint32_t c = 0; c < table_.directory_length; ++c) {
      const bool has = table_.directories[row * table_.directory_length + c] >= 0;
      REQUIRE(has == (wanted.count(c) == 1));
    }
    REQUIRE(row_chunks(count(row, 0), count(row, 1), table_.capacity()) == wanted.size());
  }

  // Every row, and each chunk in one directory or in the free list.
  void check_all() const {
    std::vector<int> seen(chunk_count_, 0);
    std::uint64_t needed = 0;
    for (std::uint64_t row = 0; row < rows(); ++row) {
      check_row(row);
      needed += needed_chunks(row);
    }
    for (const std::int32_t id : directories_) {
      if (id >= 0) ++seen.at(static_cast<std::size_t>(id));
    }
    for (std::uint64_t i = 0; i < table_.free_chunks.free_count(); ++i)
      ++seen.at(static_cast<std::size_t>(table_.free_chunks.peek(i)));
    for (const int s : seen) REQUIRE(s == 1);
    REQUIRE(chunks_in_use() == needed);
  }

 private:
  std::uint64_t pages_;
  std::uint64_t chunk_count_;
  std::uint64_t live_ = 0;
  std::int32_t next_page_ = 1;
  std::vector<std::int32_t> directories_;
  std::vector<std::int32_t> chunks_;
  std::vector<std::int32_t> chunk_ids_;
  std::vector<std::vector<std::int32_t>> model_;  // [rows, tiers]
  PageTable table_;
};

struct WalkShape {
  std::uint64_t rows;
  std::uint32_t directory_length;
  std::uint64_t pages;
};

constexpr WalkShape kShapes[] = {{1, 1, 32},
                                 {1, 2, 64},
                                 {1, 4, 100},
                                 {3, 1, 5},
                                 {5, 2, 70},
                                 {7, 3, 400},
                                 {16, 2, 300},
                                 {40, 5, 90}};

TEST_CASE("a chunk is taken with its first page and returned with its last", "[pages][table]") {
  TableWalk walk(2, 2, 128);
  REQUIRE(walk.chunks_in_use() == 0);
  for (std::uint32_t i = 0; i < 33; ++i) REQUIRE(walk.grow(0, 0));
  REQUIRE(walk.chunks_in_use() == 2);  // slots 0 to 31, and slot 32
  REQUIRE(walk.grow(0, 1));            // slot 63: the chunk that slot 32 lies in
  REQUIRE(walk.chunks_in_use() == 2);
  walk.shrink(0, 0);  // slot 32 goes, the low page still needs its chunk
  REQUIRE(walk.chunks_in_use() == 2);
  walk.check_all();
  for (std::uint32_t i = 0; i < 31; ++i) REQUIRE(walk.grow(0, 1));
  REQUIRE(walk.chunks_in_use() == 2);
  walk.check_all();  // 32 and 32: the row is full
  REQUIRE_FALSE(walk.can_grow(0));
  for (std::uint32_t i = 0; i < 32; ++i) {
    walk.shrink(0, 1);
    REQUIRE(walk.chunks_in_use() == (i < 31 ? 2 : 1));
  }
  for (std::uint32_t i = 0; i < 32; ++i) walk.shrink(0, 0);
  REQUIRE(walk.chunks_in_use() == 0);
  walk.check_all();
}

TEST_CASE("a chunk that both ends share goes with the last page of either", "[pages][table]") {
  for (std::uint32_t high = 1; high < 32; ++high) {
    for (const bool high_first : {true, false}) {
      TableWalk walk(1, 1, 32);
      for (std::uint32_t i = 0; i < high; ++i) REQUIRE(walk.grow(0, 0));
      for (std::uint32_t i = high; i < 32; ++i) REQUIRE(walk.grow(0, 1));
      REQUIRE(walk.chunks_in_use() == 1);
      walk.check_all();
      const std::uint32_t first = high_first ? 0 : 1;
      while (walk.count(0, first) > 0) walk.shrink(0, first);
      REQUIRE(walk.chunks_in_use() == 1);
      walk.check_all();
      while (walk.count(0, 1 - first) > 0) walk.shrink(0, 1 - first);
      REQUIRE(walk.chunks_in_use() == 0);
      walk.check_all();
    }
  }
}

TEST_CASE("the smallest chunk pool is enough in a walk over many rows", "[pages][table]") {
  test::Rng rng(31);
  INFO(rng.describe());
  for (const WalkShape& shape : kShapes) {
    INFO(shape.rows << " rows of " << shape.directory_length << " chunks, " << shape.pages
                    << " pages");
    TableWalk walk(shape.rows, shape.directory_length, shape.pages);
    std::uint64_t most = 0;
    for (int turn = 0; turn < 300; ++turn) {
      const std::uint64_t row = rng.below(static_cast<std::uint32_t>(shape.rows));
      const std::uint32_t tier = rng.below(2);
      const bool grows = rng.below(5) < 3;
      const std::uint32_t steps = 1 + rng.below(40);
      for (std::uint32_t i = 0; i < steps; ++i) {
        if (grows && walk.can_grow(row)) {
          if (!walk.grow(row, tier)) FAIL("no chunk is left");
        }
        if (!grows && walk.count(row, tier) > 0) walk.shrink(row, tier);
      }
      walk.check_row(row);
      most = most > walk.live() ? most : walk.live();
      if (turn % 25 == 0) walk.check_all();
    }
    const std::uint64_t room = shape.rows * shape.directory_length * kChunkPages;
    REQUIRE(most == (room < shape.pages ? room : shape.pages));
    walk.check_all();
    for (std::uint64_t row = 0; row < shape.rows; ++row) {
      for (std::uint32_t tier = 0; tier < 2; ++tier) {
        while (walk.count(row, tier) > 0) walk.shrink(row, tier);
      }
    }
    REQUIRE(walk.chunks_in_use() == 0);
    walk.check_all();
  }
}

// The state that wants most chunks: two part-filled ones in every row.
TEST_CASE("one page at both ends of every row fits the chunk bound", "[pages][table]") {
  TableWalk walk(20, 4, 500);
  for (std::uint64_t row = 0; row < 20; ++row) {
    REQUIRE(walk.grow(row, 0));
    REQUIRE(walk.grow(row, 1));
  }
  for (std::uint64_t row = 0; walk.live() < 500; row = (row + 1) % 20) {
    for (std::uint32_t i = 0; i < 32 && walk.can_grow(row); ++i) {
      if (!walk.grow(row, row % 2)) FAIL("no chunk is left");
    }
  }
  walk.check_all();
  REQUIRE(walk.chunks_in_use() == 40 + (500 - 40) / kChunkPages);
  REQUIRE(walk.chunks_in_use() <= chunk_bound(20, 500));
}

TEST_CASE("the chunk bound is the pages themselves where they are few", "[pages][table]") {
  REQUIRE(chunk_bound(100, 1) == 1);
  REQUIRE(chunk_bound(1, 2) == 2);
  REQUIRE(chunk_bound(1, 64) == 4);
  REQUIRE(chunk_bound(10, 20) == 20);
  REQUIRE(chunk_bound(1ull << 26, (1ull << 31) - 1) == (1ull << 27) + (1ull << 26) - 1);
}

TEST_CASE("a page's address is a 64-bit product and heads may share a page", "[pages][table]") {
  auto* base = reinterpret_cast<std::uint8_t*>(std::uintptr_t{1} << 20);
  const auto offset = [&](const PageSpace& space, std::int32_t page, std::uint32_t head) {
    return space.address(PageId{page}, HeadId{head}) - base;
  };
  const PageSpace own = {base, 7168, 0};
  REQUIRE(offset(own, 0, 0) == 0);
  REQUIRE(offset(own, 3, 9) == 3 * 7168);  // head stride 0: a page belongs to one head, or to all
  REQUIRE(offset(own, 0x7fffffff, 0) == 0x7fffffffll * 7168);
  const PageSpace shared = {base, 1 << 20, 4096};
  REQUIRE(offset(shared, 5, 0) == 5ll << 20);
  REQUIRE(offset(shared, 5, 7) == (5ll << 20) + 7 * 4096);
  REQUIRE(offset(shared, 0x7fffffff, 1023) == (0x7fffffffll << 20) + 1023 * 4096);
}

// A table stride of 0 over heads: each head reads the same row, and finds its part of each page.
TEST_CASE("heads that share a row read its pages at their own offset", "[pages][table]") {
  const std::vector<std::int32_t> ids = {4, 2, -1, 7, 6};
  const PageRow row = {nullptr, ids.data(), 5};
  std::vector<std::uint8_t> pool(8 * 256);
  const PageSpace space = {pool.data(), 256, 64};
  for (std::uint32_t head = 0; head < 4; ++head) {
    REQUIRE(space.address(row.page(0, 1), HeadId{head}) == pool.data() + 2 * 256 + 64 * head);
    REQUIRE(space.address(row.page(1, 0), HeadId{head}) == pool.data() + 6 * 256 + 64 * head);
    REQUIRE(space.address(row.page(1, 1), HeadId{head}) == pool.data() + 7 * 256 + 64 * head);
  }
}

}  // namespace
}  // namespace quire
