// What a head stores, by position instead of by place: records can be compared bit by bit before
// and after tokens moved.
#pragma once

#include <map>
#include <vector>

#include "quire/pages/head_tokens.hpp"

namespace quire::test {

struct StoredVector {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint16_t> meta;

  bool operator==(const StoredVector& other) const {
    return codes == other.codes && meta == other.meta;
  }
  bool operator!=(const StoredVector& other) const { return !(*this == other); }
};

struct StoredToken {
  std::uint32_t tier = 0;  // kRingTier for the ring
  StoredVector k;
  StoredVector v;
  float score = 0.0f;

  bool operator==(const StoredToken& other) const {
    return tier == other.tier && k == other.k && v == other.v && score == other.score;
  }
};

inline StoredVector stored_vector(const VectorFormat& format,
                                  std::uint32_t dim,
                                  const VectorSlot& slot) {
  StoredVector out;
  for (std::uint32_t p = 0; p < 2; ++p) {
    const std::uint8_t* row = slot.row.plane[p];
    out.codes.insert(out.codes.end(), row, row + plane_bytes(format, dim, p));
  }
  for (std::uint32_t m = 0; m < meta_count(format, dim); ++m)
    out.meta.push_back(slot.meta[m * slot.meta_stride]);
  return out;
}

// The stored vector in another format of the same transform.
inline StoredVector demoted(const VectorFormat& from,
                            const VectorFormat& to,
                            std::uint32_t dim,
                            StoredVector vector) {
  std::vector<std::uint8_t> codes(code_bytes(to, dim));
  std::vector<std::uint16_t> meta(meta_count(to, dim));
  const ConstVectorSlot in = {
      {{vector.codes.data(), vector.codes.data() + plane_bytes(from, dim, 0)}},
      vector.meta.data(),
      1};
  const VectorSlot out = {{{codes.data(), codes.data() + plane_bytes(to, dim, 0)}}, meta.data(), 1};
  CodecEvents events;
  demote_vector(from, to, dim, in, out, events);
  return {codes, meta};
}

// The stored form of an engine's vector.
inline StoredVector encoded(const VectorFormat& format,
                            const HeadTransform& transform,
                            std::uint32_t dim,
                            const float* vector) {
  float x[kMaxHeadDim];
  for (std::uint32_t d = 0; d < dim; ++d) x[d] = vector[d];
  transform_stored(transform, dim, x);
  std::vector<std::uint8_t> codes(code_bytes(format, dim));
  std::vector<std::uint16_t> meta(meta_count(format, dim));
  const VectorSlot out = {
      {{codes.data(), codes.data() + plane_bytes(format, dim, 0)}}, meta.data(), 1};
  CodecEvents events;
  encode_vector(format, dim, x, out, events);
  return {codes, meta};
}

using Snapshot = std::map<std::int32_t, StoredToken>;

// A position that occurs twice would be lost: callers compare the size with the token count.
inline Snapshot snapshot(const HeadView& view) {
  Snapshot all;
  for (std::uint32_t i = 0; i < view.segment_count(); ++i) {
    const Segment s = view.segment(i);
    const TierLayout& layout = *s.layout;
    for (std::uint32_t t = 0; t < s.count; ++t) {
      const std::uint32_t at = s.first + t;
      StoredToken token;
      token.tier = s.tier;
      token.k = stored_vector(layout.format.k, layout.head_dim_k, k_slot(layout, s.base, at));
      token.v = stored_vector(layout.format.v, layout.head_dim_v, v_slot(layout, s.base, at));
      if (layout.fields.score) token.score = score_array(layout, s.base)[at];
      all[s.position(t)] = token;
    }
  }
  return all;
}

}  // namespace quire::test
