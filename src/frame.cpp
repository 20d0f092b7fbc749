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

// The place in a frame where a walk over a head has come to. A frame is written and read strictly
// from front to back: its checksum is taken on the way, of bytes that are still in the cache.
class FrameCursor {
 public:
  FrameCursor(std::uint8_t* at, Direction direction, Checksum* sum)
      : at_(at), direction_(direction), sum_(sum) {}

  std::uint8_t* at() const { return at_; }

  void move(void* stored, std::uint64_t bytes) {
    if (direction_ == Direction::kOut) {
      std::memcpy(at_, stored, bytes);
    } else {
      std::memcpy(stored, at_, bytes);
    }
    at_ += bytes;
    if (sum_ != nullptr) sum_->advance(at_);
  }

 private:
  std::uint8_t* at_;
  Direction direction_;
  Checksum* sum_;
};

void move_ring(const HeadView& view, FrameCursor& cursor) {
  RingRun runs[kMaxRingRuns];
  const std::uint32_t count = view.shape.runs(view.length, 0, runs);
  for_each_segment(view.ring->tokens, [&](const RecordSegment& s) {
    for (std::uint32_t r = 0; r < count; ++r)
      cursor.move(view.ring_block + s.offset + std::uint64_t{runs[r].first_slot} * s.bytes,
                  std::uint64_t{runs[r].count} * s.bytes);
  });
}

void move_tier(const HeadView& view, std::uint32_t tier, FrameCursor& cursor) {
  const TierLayout& layout = view.tiers[tier];
  const std::uint32_t full = view.tokens[tier] / layout.tokens;
  const std::uint32_t rest = view.tokens[tier] % layout.tokens;
  for_each_segment(layout, [&](const RecordSegment& s) {
    const std::uint64_t bytes = std::uint64_t{layout.tokens} * s.bytes;
    for (std::uint32_t p = 0; p < full; ++p)
      cursor.move(view.space.address(view.row.page(tier, p), view.head) + s.offset, bytes);
    if (rest == 0) return;
    cursor.move(view.space.address(view.row.page(tier, full), view.head) + s.offset,
                std::uint64_t{rest} * s.bytes);
  });
}

}  // namespace

FrameIdentity identity_of(const quire_cache& cache, std::uint32_t group_index) {
  const Group& g = cache.at(group_index).group;
  FrameIdentity id = {};
  id.group = group_index + 65536 * cache.group_count;
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
                        std::uint8_t* at,
                        Direction direction,
                        Checksum* sum) {
  const RingLayout& ring = *view.ring;
  FrameCursor cursor(at, direction, sum);
  if (ring.has_k_offset)
    cursor.move(k_offset_of(ring, view.ring_block), 2 * view.tiers[0].head_dim_k);
  if (ring.has_v_offset)
    cursor.move(v_offset_of(ring, view.ring_block), 2 * view.tiers[0].head_dim_v);
  move_ring(view, cursor);
  for (std::uint32_t t = 0; t < view.tier_count; ++t) move_tier(view, t, cursor);
  return cursor.at();
}

}  // namespace quire
