// The recent ring of one (sequence, layer, KV head): sink tokens, then the last tokens, outside the
// page table. One block of memory, laid out like a page of `slots` tokens, plus the offset vectors
// of the head's transforms.
#pragma once

#include <cstdint>

#include "quire/codec/page_layout.hpp"
#include "quire/codec/transform.hpp"
#include "quire/core/config.hpp"
#include "quire/core/types.hpp"

namespace quire {

// A run of ring slots that lie together and hold consecutive positions.
struct RingRun {
  std::uint32_t first_slot = 0;
  std::uint32_t count = 0;
  std::int32_t first_position = 0;
};

// Sinks, a window in two pieces, drafts: in the sinks' slots and in two pieces.
inline constexpr std::uint32_t kMaxRingRuns = 6;

// Which positions are in the ring and where. `cycle` slots behind the sinks are used in turn; it is
// at least `window`, and the rest of it is room for drafts. Positions below `from` have left the
// window for good: after a truncation it fills up again from there.
struct RingShape {
  std::uint32_t sinks = 0;
  std::uint32_t window = 0;
  std::uint32_t cycle = 0;
  std::int32_t from = 0;

  QUIRE_HD std::uint32_t slot(std::int32_t position) const {
    const auto p = static_cast<std::uint32_t>(position);
    return p < sinks ? p : sinks + (p - sinks) % cycle;
  }

  // First position of the window when the sequence has `tokens` tokens.
  QUIRE_HD std::int32_t window_begin(std::int32_t tokens) const {
    const std::int32_t begin = tokens - static_cast<std::int32_t>(window);
    const std::int32_t least =
        from > static_cast<std::int32_t>(sinks) ? from : static_cast<std::int32_t>(sinks);
    return begin > least ? begin : least;
  }

  QUIRE_HD bool holds(std::int32_t position, std::int32_t tokens) const {
    if (position < 0 || position >= tokens) return false;
    return position < static_cast<std::int32_t>(sinks) || position >= window_begin(tokens);
  }

  // Tokens outside the ring: those that the policy may place.
  QUIRE_HD std::int32_t outside(std::int32_t tokens) const {
    const std::int32_t count = window_begin(tokens) - static_cast<std::int32_t>(sinks);
    return count > 0 ? count : 0;
  }

  // The runs that hold the ring of a sequence of `tokens` tokens, then those of `drafts` rows
  // behind it; at most kMaxRingRuns. Drafts have runs of their own, so that they change no sum over
  // tokens.
  QUIRE_HD std::uint32_t runs(std::int32_t tokens, std::uint32_t drafts, RingRun* out) const {
    std::uint32_t count = 0;
    const auto all = static_cast<std::uint32_t>(tokens);
    const std::uint32_t in_sinks = all < sinks ? all : sinks;
    if (in_sinks > 0) out[count++] = {0, in_sinks, 0};
    count = add_runs(window_begin(tokens), tokens, out, count);
    return add_runs(tokens, tokens + static_cast<std::int32_t>(drafts), out, count);
  }

 private:
  // Slots of positions [position, end) as runs behind out[0 .. count).
  QUIRE_HD std::uint32_t add_runs(std::int32_t position,
                                  std::int32_t end,
                                  RingRun* out,
                                  std::uint32_t count) const {
    while (position < end) {
      const std::uint32_t first = slot(position);
      const std::uint32_t room = (first < sinks ? sinks : sinks + cycle) - first;
      const auto left = static_cast<std::uint32_t>(end - position);
      const std::uint32_t length = left < room ? left : room;
      out[count++] = {first, length, position};
      position += static_cast<std::int32_t>(length);
    }
    return count;
  }
};

// Layout of a ring block: the tier layout of ring_format with `slots` tokens, then fp16 offsets.
struct RingLayout {
  TierLayout tokens;
  std::uint32_t k_offset = 0;  // byte offset of the fp16 vector [head_dim_k]
  std::uint32_t v_offset = 0;
  bool has_k_offset = false;
  bool has_v_offset = false;
  std::uint64_t offset_bytes = 0;  // of both vectors
  std::uint64_t bytes = 0;         // of the block, a multiple of 64
};

inline RingLayout ring_layout(const Format& format,
                              std::uint32_t dim_k,
                              std::uint32_t dim_v,
                              const TokenFields& fields,
                              std::uint32_t slots) {
  RingLayout ring;
  ring.tokens = tier_layout(format, dim_k, dim_v, fields, slots);
  ring.has_k_offset = (format.k.transform & kTransformOffset) != 0;
  ring.has_v_offset = (format.v.transform & kTransformOffset) != 0;
  std::uint64_t end = ring.tokens.bytes;
  const std::uint64_t k_bytes = ring.has_k_offset ? 2 * std::uint64_t{dim_k} : 0;
  const std::uint64_t v_bytes = ring.has_v_offset ? 2 * std::uint64_t{dim_v} : 0;
  ring.k_offset = detail::place(end, k_bytes, kMetaAlign);
  ring.v_offset = detail::place(end, v_bytes, kMetaAlign);
  ring.offset_bytes = k_bytes + v_bytes;
  ring.bytes = round_up(end, std::uint64_t{kMetaAlign});
  return ring;
}

QUIRE_HD inline std::uint16_t* k_offset_of(const RingLayout& ring, std::uint8_t* block) {
  return ring.has_k_offset ? reinterpret_cast<std::uint16_t*>(block + ring.k_offset) : nullptr;
}

QUIRE_HD inline std::uint16_t* v_offset_of(const RingLayout& ring, std::uint8_t* block) {
  return ring.has_v_offset ? reinterpret_cast<std::uint16_t*>(block + ring.v_offset) : nullptr;
}

}  // namespace quire
