// A million random operations on the pages of a cache. Oracle: a vector of page ids per row and
// tier and a queue of free ids; every id is an entry of exactly one of them.
#include <deque>
#include <vector>

#include "quire/pages/compaction.hpp"
#include "src/cache.hpp"
#include "support/catch.hpp"
#include "support/gen.hpp"
#include "support/pages_cache.hpp"
#include "support/pages_check.hpp"

namespace quire {
namespace {

// The pool of a cache beside its model. No sequence is open: slots are only owners of rows here.
class PoolWalk {
 public:
  PoolWalk(const test::PoolSpec& spec, std::uint64_t seed)
      : rng(seed), box_(spec), cache_(box_.state()), rows_(cache_.max.rows(cache_.group)) {
    owned_.resize(rows_ * kMaxTiers);
    for (std::uint64_t i = 0; i < cache_.max.pages; ++i)
      free_.push_back(static_cast<std::int32_t>(i));
    credit_.resize(cache_.max.sequences);
    live_.resize(cache_.max.sequences);
  }

  // Long times of growth and of shrinking in turn, so that the pool is full and empty again.
  void operate() {
    const bool growing = operations_++ / 3000 % 2 == 0;
    const std::uint32_t draw = rng.below(64);
    if (draw == 0 && (!growing || rng.below(16) == 0)) {
      release_slot(rng.below(cache_.max.sequences));
    } else if (draw < 6) {
      promise();
    } else if (draw < 12) {
      take_batch();
    } else if (draw < (growing ? 56u : 20u)) {
      grow();
    } else {
      shrink();
    }
  }

  // The counts that every operation must leave right.
  bool counts_agree() const {
    const std::uint64_t live = cache_.max.pages - free_.size();
    return cache_.free_pages.free_count() == free_.size() &&
           cache_.free_pages.live_count() == live && cache_.counters.live_pages == live &&
           cache_.credit == promised_ && cache_.counters.promised == promised_ &&
           cache_.counters.shortages == refused &&
           cache_.counters.chunks == cache_.table.free_chunks.live_count() &&
           cache_.slots[touched_].live_pages == live_[touched_] && row_agrees(touched_row_);
  }

  bool all_agree() const {
    for (std::uint64_t row = 0; row < rows_; ++row) {
      if (!row_agrees(row)) return false;
    }
    for (std::size_t i = 0; i < free_.size(); ++i) {
      if (cache_.free_pages.peek(i) != free_[i]) return false;
    }
    return pool_problem().empty();
  }

  std::string pool_problem() const { return test::check_pool(cache_); }

  void release_all() {
    for (std::uint32_t slot = 0; slot < cache_.max.sequences; ++slot) release_slot(slot);
  }

  test::Rng rng;
  std::uint64_t refused = 0;
  std::uint64_t batches = 0;

 private:
  bool row_agrees(std::uint64_t row) const {
    const PageRow view = cache_.table.row(row);
    for (std::uint32_t tier = 0; tier < kMaxTiers; ++tier) {
      const std::vector<std::int32_t>& mine = owned_[row * kMaxTiers + tier];
      if (cache_.head_states[row].pages[tier] != mine.size()) return false;
      for (std::uint32_t i = 0; i < mine.size(); ++i) {
        if (view.page(tier, i).value != mine[i]) return false;
      }
    }
    return true;
  }

  std::uint64_t room(std::uint64_t row) const {
    return cache_.table.capacity() - owned_[row * kMaxTiers].size() -
           owned_[row * kMaxTiers + 1].size();
  }

  std::uint64_t available() const {
    return free_.size() > promised_ ? free_.size() - promised_ : 0;
  }

  void touch(std::uint64_t row) {
    touched_row_ = row;
    touched_ = row / cache_.group.heads();
  }

  // The reservation check against the model; true when it lets pass.
  bool reserve(std::uint64_t needed) {
    const Status status = cache_.reserve(needed);
    const bool fits = needed <= available();
    REQUIRE(status.ok() == fits);
    if (fits) return true;
    ++refused;
    if (status.code != StatusCode::kOutOfPages || status.needed != needed ||
        status.given != available())
      FAIL("a shortage with wrong numbers");
    return false;
  }

  void enter(std::uint64_t row, std::uint32_t tier, std::int32_t page) {
    touch(row);
    cache_.enter_page(static_cast<std::int32_t>(touched_), row, tier, PageId{page});
    owned_[row * kMaxTiers + tier].push_back(page);
    ++live_[touched_];
  }

  void grow() {
    const std::uint64_t row = rng.below(static_cast<std::uint32_t>(rows_));
    const std::uint32_t tier = rng.below(kMaxTiers);
    const std::uint64_t count = 1 + rng.below(rng.below(8) == 0 ? 40 : 3);
    if (count > room(row) || !reserve(count)) return;
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::int32_t page = cache_.free_pages.take();
      if (page != free_.front()) FAIL("ids out of order");
      free_.pop_front();
      enter(row, tier, page);
    }
  }

  void cut(std::uint64_t row, std::uint32_t tier, std::size_t keep) {
    std::vector<std::int32_t>& mine = owned_[row * kMaxTiers + tier];
    while (mine.size() > keep) {
      free_.push_back(mine.back());
      mine.pop_back();
      --live_[row / cache_.group.heads()];
    }
  }

  void shrink() {
    const std::uint64_t row = rng.below(static_cast<std::uint32_t>(rows_));
    const std::uint32_t tier = rng.below(kMaxTiers);
    const auto have = static_cast<std::uint32_t>(owned_[row * kMaxTiers + tier].size());
    const std::uint32_t keep = rng.below(4) == 0 ? rng.below(have + 1) : have - (have > 0 ? 1 : 0);
    touch(row);
    const std::uint32_t returned =
        cache_.shrink(static_cast<std::int32_t>(touched_), row, tier, keep);
    if (returned != have - keep) FAIL("shrink returned another number of pages");
    cut(row, tier, keep);
  }

  void release_slot(std::uint64_t slot) {
    cache_.release_all(static_cast<std::int32_t>(slot));
    const std::uint64_t first = slot * cache_.group.heads();
    for (std::uint64_t row = first; row < first + cache_.group.heads(); ++row) {
      for (std::uint32_t tier = 0; tier < kMaxTiers; ++tier) cut(row, tier, 0);
    }
    touch(first);
    if (live_[slot] != 0) FAIL("the model lost a page");
  }

  // A prompt's credit: promised, changed, or given back.
  void promise() {
    const std::uint32_t slot = rng.below(cache_.max.sequences);
    const std::uint64_t pages = rng.below(3) == 0 ? 0 : rng.below(60);
    if (pages > credit_[slot] && !reserve(pages - credit_[slot])) return;
    cache_.set_credit(cache_.slots[slot], pages);
    promised_ = promised_ - credit_[slot] + pages;
    credit_[slot] = pages;
  }

  // Many rows at once: counts, one prefix sum, ids by rank, as a step assigns them.
  void take_batch() {
    const std::uint64_t rows = rows_ * kMaxTiers;
    std::vector<std::uint32_t> counts(rows, 0);
    std::uint64_t total = 0;
    const std::uint32_t one_in = 1 + rng.below(48);
    for (std::uint64_t i = 0; i < rows; ++i) {
      if (rng.below(one_in) != 0 || room(i / kMaxTiers) < 4) continue;
      total += counts[i] = rng.below(3);
    }
    std::vector<std::uint32_t> offsets = counts;
    if (exclusive_scan(offsets.data(), rows) != total) FAIL("a wrong total");
    if (!reserve(total)) return;
    ++batches;
    for (std::uint64_t i = 0; i < rows; ++i) {
      for (std::uint32_t j = 0; j < counts[i]; ++j) {
        if (cache_.free_pages.peek(offsets[i] + j) != free_[offsets[i] + j])
          FAIL("an id of another rank");
        enter(i / kMaxTiers, i % kMaxTiers, free_[offsets[i] + j]);
      }
    }
    cache_.free_pages.head += total;
    free_.erase(free_.begin(), free_.begin() + static_cast<std::ptrdiff_t>(total));
  }

  test::PoolCache box_;
  CacheState& cache_;
  std::uint64_t rows_;
  std::vector<std::vector<std::int32_t>> owned_;  // [rows, tiers]
  std::deque<std::int32_t> free_;
  std::vector<std::uint64_t> credit_;  // [slots]
  std::vector<std::uint64_t> live_;    // [slots]
  std::uint64_t promised_ = 0;
  std::uint64_t operations_ = 0;
  std::uint64_t touched_ = 0;
  std::uint64_t touched_row_ = 0;
};

TEST_CASE("a million pool operations keep every page in exactly one place", "[pages][walk][slow]") {
  constexpr std::uint64_t kOperations = 250000;
  std::uint64_t seed = 51;
  for (const std::uint64_t pages : {7u, 90u, 400u, 1500u}) {
    test::PoolSpec spec(QUIRE_RECIPE_DIFFKV_PAPER, 2, 3);
    spec.sequences = 4;
    spec.max_tokens = 1000;
    spec.pages = pages;
    PoolWalk walk(spec, seed++);
    INFO(walk.rng.describe() << ", " << pages << " pages");
    for (std::uint64_t i = 0; i < kOperations; ++i) {
      walk.operate();
      if (!walk.counts_agree()) FAIL("counts after operation " << i);
      if (i % 500 == 0 && !walk.all_agree()) FAIL(walk.pool_problem() << " after operation " << i);
    }
    walk.release_all();
    REQUIRE(walk.all_agree());
    REQUIRE(walk.refused > kOperations / 200);
    REQUIRE(walk.batches > kOperations / 200);
  }
}

}  // namespace
}  // namespace quire
