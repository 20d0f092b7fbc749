// What a policy hands on to the pages: a tier per token, as data.
#pragma once

#include <cstdint>

#include "quire/core/config.hpp"

namespace quire {

// Values are part of the C ABI (plans can be logged and replayed).
enum class Tier : std::uint8_t { kHigh = 0, kLow = 1, kDropped = 254, kKeep = 255 };

// One token changes its tier: the unit of a plan log. `position` is the token's true index; the
// token that leaves the ring in a step is in the list with the tier it enters.
struct PlanMove {
  std::uint32_t layer;
  std::uint32_t head;
  std::int32_t position;
  Tier to;
  std::uint8_t pad[3];
};
static_assert(sizeof(PlanMove) == 16, "part of the C ABI");

// What happens to one head in one step, decided at step_begin and carried out by append.
// Indices count tokens of the tier before the step; -1 is none.
struct HeadPlan {
  Tier leaving_to = Tier::kKeep;      // of the token that leaves the ring; kKeep: no token leaves
  Tier high_victim_to = Tier::kKeep;  // kLow or kDropped; kKeep: no victim
  std::uint8_t low_victim_dropped = 0;
  std::uint8_t retier = 0;  // classify every token again (a cadence step)
  std::int32_t high_victim = -1;
  std::int32_t low_victim = -1;
  std::int32_t high_after = 0;  // tokens of each tier after the step
  std::int32_t low_after = 0;
};

// What a step costs in bytes, as far as a policy has to know: the numbers of a page layout without
// the layout (policy includes core only).
struct ByteCost {
  std::uint64_t page_bytes = 0;
  std::uint32_t tokens_per_page[2] = {1, 1};
  std::uint32_t record_bytes[2] = {0, 0};
  std::uint32_t chunk_bytes = 0;  // of a piece of page table
  std::uint32_t chunk_pages = 1;
  std::uint32_t row_chunks = 0xffffffffu;  // in a full row: both ends share the last one
  std::uint64_t fixed_bytes = 0;           // per head: ring, offsets, directory, state

  QUIRE_HD std::uint64_t pages(std::uint32_t tier, std::uint64_t tokens) const {
    return (tokens + tokens_per_page[tier] - 1) / tokens_per_page[tier];
  }

  QUIRE_HD std::uint64_t chunks(std::uint64_t high_pages, std::uint64_t low_pages) const {
    const std::uint64_t both =
        (high_pages + chunk_pages - 1) / chunk_pages + (low_pages + chunk_pages - 1) / chunk_pages;
    return both < row_chunks ? both : row_chunks;
  }

  // Physical bytes of a head that holds so many tokens in each tier.
  QUIRE_HD std::uint64_t head_bytes(std::uint64_t high_tokens, std::uint64_t low_tokens) const {
    const std::uint64_t high = pages(0, high_tokens);
    const std::uint64_t low = pages(1, low_tokens);
    return (high + low) * page_bytes + chunks(high, low) * chunk_bytes + fixed_bytes;
  }

  QUIRE_HD std::uint64_t head_record_bytes(std::uint64_t high_tokens,
                                           std::uint64_t low_tokens) const {
    return high_tokens * record_bytes[0] + low_tokens * record_bytes[1];
  }
};

}  // namespace quire
