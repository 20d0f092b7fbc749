// Strong ids: a raw integer is never a page, a slot, a layer, a head or a token position.
#pragma once

#include <cstdint>

#include "quire/core/config.hpp"

namespace quire {

template <class TagT, class RepT>
struct Id {
  RepT value = RepT{};

  QUIRE_HD friend constexpr bool operator==(Id a, Id b) { return a.value == b.value; }
  QUIRE_HD friend constexpr bool operator!=(Id a, Id b) { return a.value != b.value; }
  QUIRE_HD friend constexpr bool operator<(Id a, Id b) { return a.value < b.value; }
};

using PageId = Id<struct PageTag, std::int32_t>;
using ChunkId = Id<struct ChunkTag, std::int32_t>;
using SlotId = Id<struct SlotTag, std::int32_t>;
using LayerId = Id<struct LayerTag, std::uint32_t>;
using HeadId = Id<struct HeadTag, std::uint32_t>;
// True index of a token in its text, kept for ever. Below kMaxPosition so that it is exact in fp32.
using TokenPos = Id<struct TokenTag, std::int32_t>;

inline constexpr std::int32_t kMaxPosition = (1 << 24) - 1;

inline constexpr PageId kNoPage{-1};
inline constexpr ChunkId kNoChunk{-1};
inline constexpr SlotId kNoSlot{-1};

// Limits of the first version; every one is checked where a descriptor enters the library.
inline constexpr std::uint32_t kMinHeadDim = 16;
inline constexpr std::uint32_t kMaxHeadDim = 256;
inline constexpr std::uint32_t kHeadDimStep = 16;
inline constexpr std::uint32_t kMaxTiers = 2;
inline constexpr std::uint32_t kMaxQueryGroup = 64;
inline constexpr std::uint32_t kMaxDecodeRows = 16;
inline constexpr std::uint32_t kMaxSplits = 64;

template <class IntT>
QUIRE_HD constexpr IntT ceil_div(IntT count, IntT step) {
  return static_cast<IntT>((count + step - 1) / step);
}

template <class IntT>
QUIRE_HD constexpr IntT round_up(IntT count, IntT step) {
  return static_cast<IntT>(ceil_div(count, step) * step);
}

}  // namespace quire
