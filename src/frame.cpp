#include "src/frame.hpp"

#include <algorithm>
#include <cstring>

#include "quire/pages/records.hpp"

namespace quire {
namespace {

quire_vector_format from_format(const VectorFormat& f) {
  return {static_cast<std::uint32_t>(f.grid), f.bits, f.group, f.transform};
}

quire_format from_format(const Format& f) { return {from_format(f.k), from_format(f.v)}; }

// Copies n bytes between a cache and a frame and returns where the frame goes on.
std::uint8_t* move_bytes(void* stored, std::uint8_t* at, std::uint64_t n, Direction direction) {
  if (stored == nullptr) return at;
  if (direction == Direction::kOut) {
    std::memcpy(at, stored, n);
  } else {
    std::memcpy(stored, at, n);
  }
  return at + n;
}

// Segments of a view come in the order ring, high, low, and so do the blocks of a frame.
std::uint8_t* move_records(const HeadView& view,
                           std::uint32_t in_ring,
                           std::uint8_t* at,
                           Direction direction) {
  TierLayout block[kMaxTiers + 1];
  std::uint8_t* base[kMaxTiers + 1];
  std::uint32_t done[kMaxTiers + 1] = {};
  block[kRingTier] = frame_layout(view.ring->tokens, in_ring);
  for (std::uint32_t t = 0; t < view.tier_count; ++t)
    block[t] = frame_layout(view.tiers[t], view.tokens[t]);
  base[kRingTier] = at;
  at += block[kRingTier].bytes;
  for (std::uint32_t t = 0; t < view.tier_count; ++t) {
    base[t] = at;
    at += block[t].bytes;
  }
  for (std::uint32_t i = 0; i < view.segment_count(); ++i) {
    const Segment s = view.segment(i);
    const RecordRun stored = {s.layout, s.base, s.first};
    const RecordRun framed = {&block[s.tier], base[s.tier], done[s.tier]};
    if (direction == Direction::kOut) {
      copy_records(stored, framed, s.count);
    } else {
      copy_records(framed, stored, s.count);
    }
    done[s.tier] += s.count;
  }
  return at;
}

}  // namespace

FrameIdentity identity_of(const Group& g) {
  FrameIdentity id = {};
  const TokenFields& fields = g.layout.tier[0].fields;
  id.layers = g.layers;
  id.kv_heads = g.kv_heads;
  id.q_heads = g.q_heads;
  id.head_dim_k = g.dim_k;
  id.head_dim_v = g.dim_v;
  id.fields = (fields.score ? 1u : 0u) | (fields.position ? 2u : 0u) | (fields.bias ? 4u : 0u);
  id.transform_seed = g.seed;
  id.tier_count = g.layout.tier_count;
  for (std::uint32_t t = 0; t < g.layout.tier_count; ++t)
    id.tier[t] = from_format(g.layout.tier[t].format);
  id.ring = from_format(g.ring.tokens.format);
  return id;
}

std::uint32_t ring_tokens(const RingShape& shape, std::int32_t tokens) {
  return static_cast<std::uint32_t>(tokens - shape.outside(tokens));
}

std::uint64_t frame_head_bytes(const Group& g, std::uint32_t in_ring, const std::uint32_t* tokens) {
  std::uint64_t bytes =
      sizeof(FrameHead) + g.ring.offset_bytes + std::uint64_t{in_ring} * g.ring.tokens.record_bytes;
  for (std::uint32_t t = 0; t < g.layout.tier_count; ++t)
    bytes += std::uint64_t{tokens[t]} * g.layout.tier[t].record_bytes;
  return bytes;
}

std::uint8_t* move_head(const HeadView& view,
                        std::uint32_t in_ring,
                        std::uint8_t* at,
                        Direction direction) {
  const RingLayout& ring = *view.ring;
  at = move_bytes(k_offset_of(ring, view.ring_block), at, 2 * view.tiers[0].head_dim_k, direction);
  at = move_bytes(v_offset_of(ring, view.ring_block), at, 2 * view.tiers[0].head_dim_v, direction);
  return move_records(view, in_ring, at, direction);
}

}  // namespace quire
