// The row of pages of one (sequence, layer, KV head): high tier from the left, low from the right.
//
// A row is a directory of chunks, a chunk is 32 page ids. A flat row (an engine's own block table)
// is the same thing without a directory. Rows of equal heads may be one row: stride 0 over heads.
#pragma once

#include <cstdint>

#include "quire/core/config.hpp"
#include "quire/core/types.hpp"
#include "quire/pages/free_list.hpp"

namespace quire {

inline constexpr std::uint32_t kChunkPages = 32;
inline constexpr std::uint32_t kChunkBytes = kChunkPages * 4;

// Slot of page `index` of a tier in a row of `capacity` page slots.
QUIRE_HD constexpr std::uint32_t row_slot(std::uint32_t tier,
                                          std::uint32_t index,
                                          std::uint32_t capacity) {
  return tier == 0 ? index : capacity - 1 - index;
}

struct PageRow {
  const std::int32_t* directory = nullptr;  // [capacity / 32] chunk ids; nullptr: flat
  const std::int32_t* ids = nullptr;        // chunk pool, or the flat row
  std::uint32_t capacity = 0;

  QUIRE_HD PageId page(std::uint32_t tier, std::uint32_t index) const {
    const std::uint32_t slot = row_slot(tier, index, capacity);
    if (directory == nullptr) return {ids[slot]};
    const std::int64_t chunk = directory[slot / kChunkPages];
    return {ids[chunk * kChunkPages + slot % kChunkPages]};
  }
};

// Where pages lie: id * page_stride + head * head_stride, so that an engine's block of all heads
// can be a page. 64-bit products.
struct PageSpace {
  std::uint8_t* base = nullptr;
  std::int64_t page_stride = 0;
  std::int64_t head_stride = 0;

  QUIRE_HD std::uint8_t* address(PageId page, HeadId head) const {
    return base + std::int64_t{page.value} * page_stride + std::int64_t{head.value} * head_stride;
  }
};

// The chunks and directories of a cache, in caller memory.
struct PageTable {
  std::int32_t* directories = nullptr;  // [rows, directory_length]
  std::int32_t* chunks = nullptr;       // [chunk_count, 32]
  FreeList free_chunks;
  std::uint32_t directory_length = 0;

  QUIRE_HD std::uint32_t capacity() const { return directory_length * kChunkPages; }

  QUIRE_HD PageRow row(std::uint64_t index) const {
    return {directories + index * directory_length, chunks, capacity()};
  }
};

// Chunks of a row that holds so many pages of each tier (a chunk may serve both ends).
QUIRE_HD constexpr std::uint32_t row_chunks(std::uint32_t high_pages,
                                            std::uint32_t low_pages,
                                            std::uint32_t capacity) {
  const std::uint32_t high = ceil_div(high_pages, kChunkPages);
  const std::uint32_t low = ceil_div(low_pages, kChunkPages);
  const std::uint32_t all = capacity / kChunkPages;
  return high + low < all ? high + low : all;
}

// Chunks that can ever be in use: each holds at least one page, and all but two of a row are full.
QUIRE_HD constexpr std::uint64_t chunk_bound(std::uint64_t rows, std::uint64_t pages) {
  const std::uint64_t by_rows = 2 * rows + pages / kChunkPages;
  return by_rows < pages ? by_rows : pages;
}

// Enters a page; takes a chunk when the slot has none yet. chunk_bound() is why that cannot fail.
QUIRE_HD inline void set_page(
    PageTable& table, std::uint64_t row, std::uint32_t tier, std::uint32_t index, PageId page) {
  const std::uint32_t slot = row_slot(tier, index, table.capacity());
  std::int32_t& chunk = table.directories[row * table.directory_length + slot / kChunkPages];
  if (chunk < 0) chunk = table.free_chunks.take();
  table.chunks[std::int64_t{chunk} * kChunkPages + slot % kChunkPages] = page.value;
}

// Forgets the chunk of a slot when the last page in it went. `other_pages` is the other tier's
// count: its end of the row may share the chunk.
QUIRE_HD inline void drop_chunk_if_empty(PageTable& table,
                                         std::uint64_t row,
                                         std::uint32_t tier,
                                         std::uint32_t index,
                                         std::uint32_t other_pages) {
  if (index % kChunkPages != 0) return;  // pages below `index` are still in this chunk
  const std::uint32_t slot = row_slot(tier, index, table.capacity());
  const std::uint32_t position = slot / kChunkPages;
  if (other_pages > 0) {
    const std::uint32_t other_slot = row_slot(1 - tier, other_pages - 1, table.capacity());
    const std::uint32_t other_position = other_slot / kChunkPages;
    const bool shared = tier == 0 ? other_position <= position : other_position >= position;
    if (shared) return;
  }
  std::int32_t& chunk = table.directories[row * table.directory_length + position];
  if (chunk < 0) return;
  table.free_chunks.put(chunk);
  chunk = -1;
}

}  // namespace quire
