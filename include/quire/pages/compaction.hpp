// Giving out and taking back pages for all heads of all layers of a batch at once: counts, one
// prefix sum, ids by rank. All or nothing; ids come in the order (sequence, layer, head, tier).
#pragma once

#include <cstdint>

#include "quire/core/config.hpp"
#include "quire/core/status.hpp"
#include "quire/pages/free_list.hpp"

namespace quire {

// Turns counts into exclusive offsets in place; returns the total.
QUIRE_HD inline std::uint64_t exclusive_scan(std::uint32_t* counts, std::uint64_t n) {
  std::uint64_t total = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    const std::uint32_t count = counts[i];
    counts[i] = static_cast<std::uint32_t>(total);
    total += count;
  }
  return total;
}

// Refuses when `needed` pages are not free beside those promised to open prompts.
inline Status check_pages(const FreeList& free, std::uint64_t credit, std::uint64_t needed) {
  const std::uint64_t available = free.free_count() > credit ? free.free_count() - credit : 0;
  if (needed <= available) return ok_status();
  return fail(StatusCode::kOutOfPages,
              "pages",
              "pages that are free and not promised to open prompts",
              needed,
              available);
}

// The plain form for callers with their own tables: counts[i] pages for row i are written to
// rows[i][0 .. counts[i]) (row_stride apart), and the free list moves on by the total. On shortage
// nothing changes but `counts`, which is restored.
inline Status take_pages(FreeList& free,
                         std::uint32_t* counts,
                         std::uint64_t n,
                         std::int32_t* rows,
                         std::int64_t row_stride) {
  const std::uint64_t total = exclusive_scan(counts, n);
  const Status status = check_pages(free, 0, total);
  for (std::uint64_t i = 0; i < n; ++i) {  // offsets back to counts, last row from the total
    const std::uint64_t offset = counts[i];
    const std::uint64_t next = i + 1 < n ? counts[i + 1] : total;
    counts[i] = static_cast<std::uint32_t>(next - offset);
    if (!status.ok()) continue;
    for (std::uint64_t j = 0; j < next - offset; ++j) {
      rows[static_cast<std::int64_t>(i) * row_stride + static_cast<std::int64_t>(j)] =
          free.peek(offset + j);
    }
  }
  if (status.ok()) free.head += total;
  return status;
}

// Returns ids[0 .. n) in order.
inline void return_pages(FreeList& free, const std::int32_t* ids, std::uint64_t n) {
  for (std::uint64_t i = 0; i < n; ++i) free.put(ids[i]);
}

}  // namespace quire
