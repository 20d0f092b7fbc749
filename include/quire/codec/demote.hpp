// From one format to a cheaper one without the original: what a token goes through when it leaves
// the ring or a tier.
#pragma once

#include <cstdint>

#include "quire/codec/vector_codec.hpp"

namespace quire {

// True when codes are divided instead of decoded: both affine, equal groups, integer quotient.
QUIRE_HD constexpr bool demotes_in_integers(const VectorFormat& from, const VectorFormat& to) {
  return from.grid == Grid::kAffine && to.grid == Grid::kAffine && from.group == to.group &&
         affine_demotes_in_integers(from.bits, to.bits);
}

QUIRE_HD inline void demote_integers(const VectorFormat& from,
                                     const VectorFormat& to,
                                     std::uint32_t dim,
                                     const CodedVector& in,
                                     CodedVector& out) {
  const unsigned ratio = affine_demotion_ratio(from.bits, to.bits);
  for (std::uint32_t i = 0; i < dim; ++i) {
    out.codes[i] = static_cast<std::uint8_t>((in.codes[i] + ratio / 2) / ratio);
  }
  for (std::uint32_t g = 0; g < group_count(from, dim); ++g) {
    const AffineMeta meta = affine_demote_meta({in.meta[2 * g], in.meta[2 * g + 1]}, ratio);
    out.meta[2 * g] = meta.scale;
    out.meta[2 * g + 1] = meta.zero;
  }
}

QUIRE_HD inline void copy_vector(const VectorFormat& format,
                                 std::uint32_t dim,
                                 const ConstVectorSlot& from,
                                 const VectorSlot& to) {
  for (std::uint32_t p = 0; p < 2; ++p) {
    const std::uint32_t bytes = plane_bytes(format, dim, p);
    for (std::uint32_t i = 0; i < bytes; ++i) to.row.plane[p][i] = from.row.plane[p][i];
  }
  for (std::uint32_t m = 0; m < meta_count(format, dim); ++m) {
    to.meta[m * to.meta_stride] = from.meta[m * from.meta_stride];
  }
}

// Equal coding copies bytes; affine pairs with an integer quotient divide codes; the rest decodes
// and encodes. Both sides share one transform, so it is neither undone nor repeated.
QUIRE_HD inline void demote_vector(const VectorFormat& from_format,
                                   const VectorFormat& to_format,
                                   std::uint32_t dim,
                                   const ConstVectorSlot& from,
                                   const VectorSlot& to,
                                   CodecEvents& events) {
  if (from_format.same_coding(to_format)) {
    copy_vector(from_format, dim, from, to);
    return;
  }
  if (demotes_in_integers(from_format, to_format)) {
    CodedVector in;
    CodedVector out;
    load_coded(from_format, dim, from, in);
    demote_integers(from_format, to_format, dim, in, out);
    store_coded(to_format, dim, out, to);
    return;
  }
  float x[kMaxHeadDim];
  decode_vector(from_format, dim, from, x);
  encode_vector(to_format, dim, x, to, events);
}

}  // namespace quire
