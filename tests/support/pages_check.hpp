// Where all pages and chunks of a cache are, found by a walk over its rows: each in exactly one
// place (a shared page in as many rows as it has holders), and every counter equal to what the walk
// counts.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "src/cache.hpp"

namespace quire::test {

struct PoolCount {
  std::uint64_t live = 0;
  std::uint64_t chunks = 0;
  std::uint64_t tokens[kMaxTiers] = {};
};

// Empty when all is well, else what is wrong.
class PoolCheck {
 public:
  explicit PoolCheck(const CacheState& cache) : cache_(cache) {}

  std::string run() {
    check_free(cache_.free_pages, cache_.max.pages, "page");
    check_free(cache_.table.free_chunks, cache_.max.chunks, "chunk");
    if (!problem_.empty()) return problem_;
    pages_.assign(cache_.max.pages, 0);
    chunks_.assign(cache_.max.chunks, 0);
    PoolCount all;
    std::uint64_t credit = 0, open = 0;
    for (std::uint32_t slot = 0; slot < cache_.max.sequences; ++slot) {
      const Slot& s = cache_.slots[slot];
      const PoolCount count = count_slot(static_cast<std::int32_t>(slot));
      want(count.live == s.live_pages, "live pages of a sequence");
      want(count.chunks == s.chunks, "chunks of a sequence");
      all.chunks += count.chunks;
      credit += s.credit;
      for (std::uint32_t t = 0; t < kMaxTiers; ++t)
        want(count.tokens[t] == s.tier_tokens[t], "tokens in tiers of a sequence");
      open += s.state != SeqState::kClosed ? 1 : 0;
    }
    for (const int rows : pages_) all.live += rows > 0 ? 1 : 0;
    check_holders();
    const Counters& c = cache_.counters;
    want(all.live == c.live_pages, "live pages");
    want(all.live == cache_.free_pages.live_count(), "free and live pages");
    want(all.chunks == c.chunks, "chunks in use");
    want(all.chunks == cache_.table.free_chunks.live_count(), "free and used chunks");
    want(credit == cache_.credit && credit == c.promised, "promised pages");
    want(open == c.sequences, "open sequences");
    for (std::uint32_t t = 0; t < kMaxTiers; ++t)
      want(tokens_[t] == c.tier_tokens[t], "tokens in tiers");
    for (int& rows : pages_) rows = rows > 0 ? 1 : 0;
    mark_free(cache_.free_pages, pages_);
    mark_free(cache_.table.free_chunks, chunks_);
    for (const int seen : pages_) want(seen == 1, "a page that is not in exactly one place");
    for (const int seen : chunks_) want(seen == 1, "a chunk that is not in exactly one place");
    return problem_;
  }

 private:
  void want(bool condition, const char* what) {
    if (!condition && problem_.empty()) problem_ = what;
  }

  void check_free(const FreeList& free, std::uint64_t capacity, const char* what) {
    const bool sane =
        free.capacity == capacity && free.tail >= free.head && free.tail - free.head <= capacity;
    if (!sane) problem_ = std::string("the free list of ") + what + "s gave more than it had";
  }

  void mark(std::vector<int>& seen, std::int32_t id, const char* what) {
    const bool known = id >= 0 && static_cast<std::size_t>(id) < seen.size();
    want(known, what);
    if (known) ++seen[static_cast<std::size_t>(id)];
  }

  void mark_free(const FreeList& free, std::vector<int>& seen) {
    for (std::uint64_t i = 0; i < free.free_count(); ++i)
      mark(seen, free.peek(i), "an id in a free list");
  }

  std::uint32_t tokens_of_page(const HeadState& head, std::uint32_t tier, std::uint32_t i) const {
    const std::uint32_t per_page = cache_.group.layout.tier[tier].tokens;
    const std::uint32_t before = i * per_page;
    return head.tokens[tier] > before ? std::min(head.tokens[tier] - before, per_page) : 0;
  }

  void see_page(std::int32_t id, std::uint32_t tier, std::uint32_t tokens) {
    mark(pages_, id, "an id in a row");
    if (problem_.empty() && pages_[static_cast<std::size_t>(id)] == 1) tokens_[tier] += tokens;
  }

  void check_holders() {
    std::uint64_t shared = 0;
    for (std::size_t i = 0; i < pages_.size(); ++i) {
      const int rows = pages_[i];
      shared += rows > 1 ? 1 : 0;
      if (cache_.page_holders == nullptr) {
        want(rows <= 1, "a page in two rows of a cache without sharing");
      } else if (rows > 0) {
        want(cache_.page_holders[i] == static_cast<std::uint32_t>(rows), "holders of a page");
      }
    }
    want(shared == cache_.counters.shared_pages, "shared pages");
  }

  PoolCount count_slot(std::int32_t slot) {
    PoolCount count;
    const std::uint64_t first = cache_.row(slot, 0, 0);
    for (std::uint64_t row = first; row < first + cache_.group.heads(); ++row) {
      const HeadState& head = cache_.head_states[row];
      std::vector<bool> used(cache_.table.directory_length, false);
      for (std::uint32_t tier = 0; tier < kMaxTiers; ++tier) {
        for (std::uint32_t i = 0; i < head.pages[tier]; ++i) {
          const std::uint32_t capacity = cache_.table.capacity();
          const std::uint32_t at = tier == 0 ? i : capacity - 1 - i;
          used.at(at / kChunkPages) = true;
          const std::int32_t chunk = directory(row, at / kChunkPages);
          want(chunk >= 0, "a page without a chunk");
          if (chunk < 0) continue;
          see_page(cache_.table.chunks[std::int64_t{chunk} * kChunkPages + at % kChunkPages],
                   tier,
                   tokens_of_page(head, tier, i));
        }
        count.live += head.pages[tier];
        count.tokens[tier] += head.tokens[tier];
      }
      for (std::uint32_t c = 0; c < cache_.table.directory_length; ++c) {
        want(used[c] == (directory(row, c) >= 0), "a chunk kept or missing");
        if (directory(row, c) < 0) continue;
        mark(chunks_, directory(row, c), "a chunk id");
        ++count.chunks;
      }
    }
    return count;
  }

  std::int32_t directory(std::uint64_t row, std::uint32_t chunk) const {
    return cache_.table.directories[row * cache_.table.directory_length + chunk];
  }

  const CacheState& cache_;
  std::vector<int> pages_;                // rows that hold a page
  std::uint64_t tokens_[kMaxTiers] = {};  // of each page once
  std::vector<int> chunks_;
  std::string problem_;
};

inline std::string check_pool(const CacheState& cache) { return PoolCheck(cache).run(); }

// Between steps a head has the pages that its tokens need, and no more.
inline std::string check_dense(const CacheState& cache) {
  const std::uint64_t rows = cache.max.rows(cache.group);
  for (std::uint64_t row = 0; row < rows; ++row) {
    const HeadState& head = cache.head_states[row];
    for (std::uint32_t t = 0; t < cache.group.layout.tier_count; ++t) {
      const std::uint32_t per_page = cache.group.layout.tier[t].tokens;
      if (head.pages[t] != (head.tokens[t] + per_page - 1) / per_page)
        return "pages of a head that its tokens do not need";
    }
  }
  return "";
}

}  // namespace quire::test
