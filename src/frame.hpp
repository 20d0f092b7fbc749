// A sequence as one block of bytes, independent of page size, pool and ring slots.
//
//   FrameHeader
//   per layer and KV head: FrameHead, offset vectors, ring records, high records, low records
//
// A cache of several layer groups makes as many of these, one behind the other.
//
// Records are in the order of quire_gather (ring, high, low), segment by segment as in a page of
// exactly that many tokens and no padding. Byte order is the machine's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/codec/page_layout.hpp"
#include "quire/quire.h"
#include "src/cache.hpp"
#include "src/checksum.hpp"

namespace quire {

inline constexpr char kFrameMagic[8] = {'q', 'u', 'i', 'r', 'e', 's', 'e', 'q'};
inline constexpr std::uint32_t kFrameVersion = 0;  // unstable, like layout_version

// What must be equal on both sides.
struct FrameIdentity {
  std::uint32_t layout_version;
  std::uint32_t layers;
  std::uint32_t kv_heads;
  std::uint32_t q_heads;
  std::uint32_t head_dim_k;
  std::uint32_t head_dim_v;
  std::uint32_t fields;  // bits: 1 score, 2 position, 4 bias
  std::uint32_t transform_seed;
  std::uint32_t tier_count;
  std::uint32_t group;  // of how many: index + 65536 * count
  quire_format tier[kMaxTiers];
  quire_format ring;
};
static_assert(sizeof(FrameIdentity) == 40 + 3 * 32, "no padding");

struct FrameHeader {
  char magic[8];
  std::uint64_t checksum;  // of all that follows it
  std::uint64_t bytes;     // of the whole frame
  std::uint32_t version;
  std::int32_t tokens;
  FrameIdentity identity;
  std::int32_t prompt_tokens;
  std::int32_t controlled_at;
  float factor;
  std::uint32_t marks;  // bits: 1 K offset given, 2 V offset given, 4 replanned
  std::int32_t prompt_end[8];
  std::int32_t prompt_begin[8];
  std::uint32_t prompt_end_count;
  std::int32_t ring_from;
  std::uint32_t unscored;
  std::int32_t unfinished;
  quire_policy policy;
};
static_assert(sizeof(FrameHeader) == 32 + sizeof(FrameIdentity) + 96 + sizeof(quire_policy),
              "no padding");

struct FrameHead {
  std::uint32_t tokens[kMaxTiers];
  float alpha_high;
  float alpha_low;
};
static_assert(sizeof(FrameHead) == 16, "no padding");

// The records of `tokens` tokens of a tier or ring, without padding.
inline TierLayout frame_layout(const TierLayout& like, std::uint32_t tokens) {
  return tier_layout(
      like.format, like.head_dim_k, like.head_dim_v, like.fields, tokens, SegmentAlign{1, 1});
}

// The checksum covers everything from here on.
inline constexpr std::uint64_t kFrameChecked = 16;
static_assert(kFrameChecked == offsetof(FrameHeader, bytes));

FrameIdentity identity_of(const quire_cache& cache, std::uint32_t group_index);

// Tokens in the ring of a sequence of `tokens` tokens.
std::uint32_t ring_tokens(const RingShape& shape, std::int32_t tokens);

// Bytes of one head in a frame.
std::uint64_t frame_head_bytes(const Group& group,
                               std::uint32_t in_ring,
                               const std::uint32_t* tokens);

enum class Direction { kOut, kIn };

// Copies what follows the FrameHead of one head; returns where the next head begins. `sum`, or
// nullptr, goes on to there.
std::uint8_t* move_head(const HeadView& view, std::uint8_t* at, Direction direction, Checksum* sum);

}  // namespace quire
