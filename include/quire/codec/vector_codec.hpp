// One vector of any format to codes and metadata, and back: the scalar definition that every fast
// path is compared with, bit by bit.
#pragma once

#include <cstdint>

#include "quire/codec/affine.hpp"
#include "quire/codec/events.hpp"
#include "quire/codec/format.hpp"
#include "quire/codec/symmetric.hpp"
#include "quire/core/config.hpp"
#include "quire/core/dtype.hpp"
#include "quire/core/types.hpp"

namespace quire {

// Codes and metadata of one vector before they are packed into rows.
struct CodedVector {
  std::uint8_t codes[kMaxHeadDim];
  std::uint16_t meta[kMaxMetaCount];
};

// x is transformed already and finite. Integer grids only; 16-bit grids have no codes.
QUIRE_HD inline void encode_integers(const VectorFormat& format,
                                     std::uint32_t dim,
                                     const float* x,
                                     CodedVector& out,
                                     CodecEvents& events) {
  const std::uint32_t size = group_size(format, dim);
  for (std::uint32_t g = 0; g < dim / size; ++g) {
    const float* group = x + g * size;
    std::uint8_t* codes = out.codes + g * size;
    if (format.grid == Grid::kAffine) {
      const AffineMeta meta = affine_encode(group, size, format.bits, codes, events);
      out.meta[2 * g] = meta.scale;
      out.meta[2 * g + 1] = meta.zero;
    } else {
      out.meta[g] = symmetric_encode(group, size, format.grid, format.bits, codes, events);
    }
  }
}

QUIRE_HD inline void decode_integers(const VectorFormat& format,
                                     std::uint32_t dim,
                                     const CodedVector& in,
                                     float* x) {
  const std::uint32_t size = group_size(format, dim);
  for (std::uint32_t i = 0; i < dim; ++i) {
    const std::uint32_t g = i / size;
    if (format.grid == Grid::kAffine) {
      x[i] = affine_value(
          in.codes[i], half_to_float(in.meta[2 * g]), half_to_float(in.meta[2 * g + 1]));
    } else {
      x[i] = half_to_float(in.meta[g]) * symmetric_level(format.grid, format.bits, in.codes[i]);
    }
  }
}

// Where one vector's codes and metadata lie. Metadata number m is at meta[m * meta_stride]: a page
// keeps each number of all its tokens together (page_layout.hpp).
struct VectorSlot {
  CodeRow row;
  std::uint16_t* meta;
  std::int64_t meta_stride;
};

struct ConstVectorSlot {
  ConstCodeRow row;
  const std::uint16_t* meta;
  std::int64_t meta_stride;
};

QUIRE_HD inline ConstVectorSlot as_const(const VectorSlot& slot) {
  return {{{slot.row.plane[0], slot.row.plane[1]}}, slot.meta, slot.meta_stride};
}

QUIRE_HD inline void store_coded(const VectorFormat& format,
                                 std::uint32_t dim,
                                 const CodedVector& coded,
                                 const VectorSlot& slot) {
  pack_codes(format.bits, coded.codes, dim, slot.row);
  for (std::uint32_t m = 0; m < meta_count(format, dim); ++m) {
    slot.meta[m * slot.meta_stride] = coded.meta[m];
  }
}

QUIRE_HD inline void load_coded(const VectorFormat& format,
                                std::uint32_t dim,
                                const ConstVectorSlot& slot,
                                CodedVector& coded) {
  unpack_codes(format.bits, slot.row, dim, coded.codes);
  for (std::uint32_t m = 0; m < meta_count(format, dim); ++m) {
    coded.meta[m] = slot.meta[m * slot.meta_stride];
  }
}

QUIRE_HD inline void encode_float_row(const VectorFormat& format,
                                      std::uint32_t dim,
                                      const float* x,
                                      std::uint8_t* row,
                                      CodecEvents& events) {
  auto* words = reinterpret_cast<std::uint16_t*>(row);
  for (std::uint32_t i = 0; i < dim; ++i) {
    words[i] = format.grid == Grid::kF16 ? float_to_half(saturate_to_half_range(x[i], events))
                                         : float_to_bfloat(x[i]);
  }
}

QUIRE_HD inline void encode_vector(const VectorFormat& format,
                                   std::uint32_t dim,
                                   const float* x,
                                   const VectorSlot& slot,
                                   CodecEvents& events) {
  if (format.is_float()) {
    encode_float_row(format, dim, x, slot.row.plane[0], events);
    return;
  }
  CodedVector coded;
  encode_integers(format, dim, x, coded, events);
  store_coded(format, dim, coded, slot);
}

QUIRE_HD inline void decode_vector(const VectorFormat& format,
                                   std::uint32_t dim,
                                   const ConstVectorSlot& slot,
                                   float* x) {
  if (format.is_float()) {
    const auto* words = reinterpret_cast<const std::uint16_t*>(slot.row.plane[0]);
    for (std::uint32_t i = 0; i < dim; ++i) {
      x[i] = format.grid == Grid::kF16 ? half_to_float(words[i]) : bfloat_to_float(words[i]);
    }
    return;
  }
  CodedVector coded;
  load_coded(format, dim, slot, coded);
  decode_integers(format, dim, coded, x);
}

}  // namespace quire
