// Moving one token's record: within a tier, from tier to tier, from the ring into a tier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

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

// Where the records of a run of tokens lie, with no demand on alignment.
struct RecordRun {
  const TierLayout* layout;
  std::uint8_t* base;
  std::uint32_t first;
};

// Copies whole records, segment by segment, between blocks of one format and different sizes.
inline void copy_records(const RecordRun& from, const RecordRun& to, std::uint32_t count) {
  const TierLayout& a = *from.layout;
  const TierLayout& b = *to.layout;
  const auto copy = [&](std::uint64_t from_segment, std::uint64_t to_segment, std::size_t bytes) {
    if (bytes == 0) return;
    std::memcpy(to.base + to_segment + to.first * bytes,
                from.base + from_segment + from.first * bytes,
                count * bytes);
  };
  for (std::uint32_t p = 0; p < 2; ++p) {
    copy(a.k_plane[p], b.k_plane[p], plane_bytes(a.format.k, a.head_dim_k, p));
    copy(a.v_plane[p], b.v_plane[p], plane_bytes(a.format.v, a.head_dim_v, p));
  }
  for (std::uint32_t m = 0; m < meta_count(a.format.k, a.head_dim_k); ++m)
    copy(a.k_meta + std::uint64_t{m} * a.tokens * 2, b.k_meta + std::uint64_t{m} * b.tokens * 2, 2);
  for (std::uint32_t m = 0; m < meta_count(a.format.v, a.head_dim_v); ++m)
    copy(a.v_meta + std::uint64_t{m} * a.tokens * 2, b.v_meta + std::uint64_t{m} * b.tokens * 2, 2);
  if (a.fields.score) copy(a.score, b.score, 4);
  if (a.fields.position) copy(a.position, b.position, 4);
  if (a.fields.bias) copy(a.bias, b.bias, 2);
}

}  // namespace quire
