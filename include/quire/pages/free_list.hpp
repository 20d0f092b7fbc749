// Free pages as a ring of ids between two 64-bit counters that only grow, so that full and empty
// never look alike.
#pragma once

#include <cstdint>

#include "quire/core/config.hpp"
#include "quire/core/status.hpp"
#include "quire/core/types.hpp"

namespace quire {

// ids: caller's memory, [capacity]. head: taken so far. tail: capacity + returned so far.
struct FreeList {
  std::int32_t* ids = nullptr;
  std::uint64_t capacity = 0;
  std::uint64_t head = 0;
  std::uint64_t tail = 0;

  QUIRE_HD std::uint64_t free_count() const { return tail - head; }
  QUIRE_HD std::uint64_t live_count() const { return capacity - free_count(); }

  // The i-th id that the next reservation hands out.
  QUIRE_HD std::int32_t peek(std::uint64_t i) const { return ids[(head + i) % capacity]; }

  QUIRE_HD std::int32_t take() {
    QUIRE_ASSERT(free_count() > 0);
    const std::int32_t id = ids[head % capacity];
    ++head;
    return id;
  }

  QUIRE_HD void put(std::int32_t id) {
    QUIRE_ASSERT(free_count() < capacity);
    ids[tail % capacity] = id;
    ++tail;
  }
};

inline FreeList make_free_list(std::int32_t* ids, std::uint64_t capacity) {
  for (std::uint64_t i = 0; i < capacity; ++i) ids[i] = static_cast<std::int32_t>(i);
  return {ids, capacity, 0, capacity};
}

}  // namespace quire
