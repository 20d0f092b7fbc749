// Moving one token's record: within a tier, from tier to tier, from the ring into a tier.
#pragma once

#include <cstdint>

#include "quire/codec/demote.hpp"
#include "quire/codec/page_layout.hpp"
#include "quire/core/config.hpp"

namespace quire {

// A token's place in a page or ring block.
struct TokenPlace {
  const TierLayout* layout;
  std::uint8_t* base;
  std::uint32_t token;  // within the page

  QUIRE_HD VectorSlot k() const { return k_slot(*layout, base, token); }
  QUIRE_HD VectorSlot v() const { return v_slot(*layout, base, token); }
  QUIRE_HD float score() const {
    return layout->fields.score ? score_array(*layout, base)[token] : 0.0f;
  }
  QUIRE_HD std::int32_t position() const {
    return layout->fields.position ? position_array(*layout, base)[token] : -1;
  }
  QUIRE_HD void set_fields(float score_value, std::int32_t position_value) const {
    if (layout->fields.score) score_array(*layout, base)[token] = score_value;
    if (layout->fields.position) position_array(*layout, base)[token] = position_value;
  }
};

// Carries score, position and logit bias along; a demotion never resets a statistic.
QUIRE_HD inline void move_fields(const TokenPlace& from, const TokenPlace& to) {
  to.set_fields(from.score(), from.position());
  if (from.layout->fields.bias && to.layout->fields.bias) {
    reinterpret_cast<std::uint16_t*>(to.base + to.layout->bias)[to.token] =
        reinterpret_cast<const std::uint16_t*>(from.base + from.layout->bias)[from.token];
  }
}

// Re-encodes a record into another format, or copies it when both are coded alike.
QUIRE_HD inline void move_record(const TokenPlace& from,
                                 const TokenPlace& to,
                                 CodecEvents& events) {
  const TierLayout& a = *from.layout;
  const TierLayout& b = *to.layout;
  demote_vector(a.format.k, b.format.k, a.head_dim_k, as_const(from.k()), to.k(), events);
  demote_vector(a.format.v, b.format.v, a.head_dim_v, as_const(from.v()), to.v(), events);
  move_fields(from, to);
}

// Writes a token from transformed fp32 vectors.
QUIRE_HD inline void write_record(const TokenPlace& to,
                                  const float* k,
                                  const float* v,
                                  float score,
                                  std::int32_t position,
                                  CodecEvents& events) {
  const TierLayout& layout = *to.layout;
  encode_vector(layout.format.k, layout.head_dim_k, k, to.k(), events);
  encode_vector(layout.format.v, layout.head_dim_v, v, to.v(), events);
  to.set_fields(score, position);
  if (layout.fields.bias) reinterpret_cast<std::uint16_t*>(to.base + layout.bias)[to.token] = 0;
}

// One array of a block: `bytes` of each of its tokens, side by side.
struct RecordSegment {
  std::uint32_t offset = 0;
  std::uint32_t bytes = 0;
};

// Calls f for every segment of a block in the order in which they lie.
template <class VisitT>
inline void for_each_segment(const TierLayout& layout, VisitT&& f) {
  const auto visit = [&](std::uint64_t offset, std::uint32_t bytes) {
    if (bytes > 0) f(RecordSegment{static_cast<std::uint32_t>(offset), bytes});
  };
  for (std::uint32_t p = 0; p < 2; ++p)
    visit(layout.k_plane[p], plane_bytes(layout.format.k, layout.head_dim_k, p));
  for (std::uint32_t p = 0; p < 2; ++p)
    visit(layout.v_plane[p], plane_bytes(layout.format.v, layout.head_dim_v, p));
  for (std::uint32_t m = 0; m < meta_count(layout.format.k, layout.head_dim_k); ++m)
    visit(layout.k_meta + std::uint64_t{m} * layout.tokens * 2, 2);
  for (std::uint32_t m = 0; m < meta_count(layout.format.v, layout.head_dim_v); ++m)
    visit(layout.v_meta + std::uint64_t{m} * layout.tokens * 2, 2);
  if (layout.fields.score) visit(layout.score, 4);
  if (layout.fields.position) visit(layout.position, 4);
  if (layout.fields.bias) visit(layout.bias, 2);
}

}  // namespace quire
