// Rows of any format to fp32 "values": codes (affine), levels (symmetric) or the numbers themselves
// (16 bit). Scale and zero stay out: attention applies them to whole tiles.
//
// Included once per instruction set by foreach_target.h; see Highway's documentation for the idiom.
#if defined(QUIRE_CPU_SIMD_UNPACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_CPU_SIMD_UNPACK_INL_H_
#undef QUIRE_CPU_SIMD_UNPACK_INL_H_
#else
#define QUIRE_CPU_SIMD_UNPACK_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "quire/codec/page_layout.hpp"
#include "quire/codec/symmetric.hpp"

HWY_BEFORE_NAMESPACE();
namespace quire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes: every head dim is a multiple of 16.
using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;
#if HWY_TARGET == HWY_SCALAR
using ByteTag = hn::Sisd<std::uint8_t>;
#else
using ByteTag = hn::Full128<std::uint8_t>;
#endif

inline void unpack_plane4(const std::uint8_t* row, std::uint32_t dim, std::uint8_t* codes) {
  std::uint32_t i = 0;
#if HWY_TARGET != HWY_SCALAR  // which has no shuffles; its loop below does all
  const ByteTag d8;
  const auto mask = hn::Set(d8, std::uint8_t{0x0f});
  for (; i + 32 <= dim; i += 32) {
    const auto bytes = hn::LoadU(d8, row + i / 2);
    const auto low = hn::And(bytes, mask);
    const auto high = hn::ShiftRight<4>(bytes);
    hn::StoreU(hn::InterleaveLower(d8, low, high), d8, codes + i);
    hn::StoreU(hn::InterleaveUpper(d8, low, high), d8, codes + i + 16);
  }
#endif
  for (; i < dim; ++i) codes[i] = static_cast<std::uint8_t>(BitPlane<4>::get(row, i));
}

inline void unpack_plane2(const std::uint8_t* row, std::uint32_t dim, std::uint8_t* codes) {
  std::uint32_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const ByteTag d8;
  const hn::Repartition<std::uint16_t, ByteTag> d16;
  const auto mask = hn::Set(d8, std::uint8_t{0x03});
  for (; i + 64 <= dim; i += 64) {
    const auto bytes = hn::LoadU(d8, row + i / 4);
    const auto a = hn::And(bytes, mask);
    const auto b = hn::And(hn::ShiftRight<2>(bytes), mask);
    const auto c = hn::And(hn::ShiftRight<4>(bytes), mask);
    const auto e = hn::ShiftRight<6>(bytes);
    const auto ab_low = hn::BitCast(d16, hn::InterleaveLower(d8, a, b));
    const auto ab_high = hn::BitCast(d16, hn::InterleaveUpper(d8, a, b));
    const auto ce_low = hn::BitCast(d16, hn::InterleaveLower(d8, c, e));
    const auto ce_high = hn::BitCast(d16, hn::InterleaveUpper(d8, c, e));
    hn::StoreU(hn::BitCast(d8, hn::InterleaveLower(d16, ab_low, ce_low)), d8, codes + i);
    hn::StoreU(hn::BitCast(d8, hn::InterleaveUpper(d16, ab_low, ce_low)), d8, codes + i + 16);
    hn::StoreU(hn::BitCast(d8, hn::InterleaveLower(d16, ab_high, ce_high)), d8, codes + i + 32);
    hn::StoreU(hn::BitCast(d8, hn::InterleaveUpper(d16, ab_high, ce_high)), d8, codes + i + 48);
  }
#endif
  for (; i < dim; ++i) codes[i] = static_cast<std::uint8_t>(BitPlane<2>::get(row, i));
}

// Eight codes of a byte at once: the byte times 0x0101.. puts a copy into every lane, the mask
// picks bit j in lane j, and adding 0x7f carries any set bit into the lane's top bit.
inline void unpack_plane1(const std::uint8_t* row, std::uint32_t dim, std::uint8_t* codes) {
  for (std::uint32_t i = 0; i < dim; i += 8) {
    const std::uint64_t copies = row[i / 8] * 0x0101010101010101ull;
    const std::uint64_t picked = copies & 0x8040201008040201ull;
    const std::uint64_t ones = ((picked + 0x7f7f7f7f7f7f7f7full) >> 7) & 0x0101010101010101ull;
    std::memcpy(codes + i, &ones, 8);
  }
}

inline void unpack_plane(std::uint32_t bits,
                         const std::uint8_t* row,
                         std::uint32_t dim,
                         std::uint8_t* codes) {
  switch (bits) {
    case 4: unpack_plane4(row, dim, codes); break;
    case 2: unpack_plane2(row, dim, codes); break;
    case 1: unpack_plane1(row, dim, codes); break;
    default: std::memcpy(codes, row, dim);
  }
}

// Codes of one row in natural order.
inline void unpack_row(std::uint32_t bits,
                       const ConstCodeRow& row,
                       std::uint32_t dim,
                       std::uint8_t* codes) {
  unpack_plane(int_plane_bits(bits, 0), row.plane[0], dim, codes);
  const std::uint32_t high_bits = int_plane_bits(bits, 1);
  if (high_bits == 0) return;
  HWY_ALIGN std::uint8_t high[kMaxHeadDim];
  unpack_plane(high_bits, row.plane[1], dim, high);
  const ByteTag d8;
  for (std::uint32_t i = 0; i < dim; i += static_cast<std::uint32_t>(hn::Lanes(d8))) {
    const auto h = hn::LoadU(d8, high + i);
    const auto shifted = bits == 6 ? hn::ShiftLeft<4>(h) : hn::ShiftLeft<2>(h);
    hn::StoreU(hn::Or(hn::LoadU(d8, codes + i), shifted), d8, codes + i);
  }
}

// What one code means before scale and zero: offset + step * code, or table[code]. The table is
// kept as four tables of bytes: byte shuffles look up 16 codes at once on every instruction set.
struct ValueMap {
  float step = 1.0f;
  float offset = 0.0f;
  bool is_table = false;
  HWY_ALIGN std::uint8_t byte[4][16] = {};
};

inline ValueMap value_map(const VectorFormat& format) {
  ValueMap map;
  if (format.grid == Grid::kSymmetricUniform) {
    map.step = symmetric_step(format.bits);
    map.offset = symmetric_level(format.grid, format.bits, 0);
  } else if (format.grid == Grid::kSymmetricTable) {
    map.is_table = true;
    for (unsigned c = 0; c < (1u << format.bits); ++c) {
      const std::uint32_t bits = float_bits(symmetric_level(format.grid, format.bits, c));
      for (unsigned b = 0; b < 4; ++b) map.byte[b][c] = static_cast<std::uint8_t>(bits >> (8 * b));
    }
  }
  return map;
}

inline void table_to_values(const ValueMap& map,
                            const std::uint8_t* codes,
                            std::uint32_t dim,
                            float* values) {
#if HWY_TARGET == HWY_SCALAR
  for (std::uint32_t i = 0; i < dim; ++i) {
    std::uint32_t bits = 0;
    for (unsigned b = 0; b < 4; ++b) bits |= std::uint32_t{map.byte[b][codes[i]]} << (8 * b);
    values[i] = bits_float(bits);
  }
#else
  const ByteTag d8;
  const hn::Repartition<std::uint16_t, ByteTag> d16;
  auto* out = reinterpret_cast<std::uint8_t*>(values);
  for (std::uint32_t i = 0; i < dim; i += 16) {
    const auto index = hn::LoadU(d8, codes + i);
    const auto b0 = hn::TableLookupBytes(hn::Load(d8, map.byte[0]), index);
    const auto b1 = hn::TableLookupBytes(hn::Load(d8, map.byte[1]), index);
    const auto b2 = hn::TableLookupBytes(hn::Load(d8, map.byte[2]), index);
    const auto b3 = hn::TableLookupBytes(hn::Load(d8, map.byte[3]), index);
    const auto low01 = hn::BitCast(d16, hn::InterleaveLower(d8, b0, b1));
    const auto high01 = hn::BitCast(d16, hn::InterleaveUpper(d8, b0, b1));
    const auto low23 = hn::BitCast(d16, hn::InterleaveLower(d8, b2, b3));
    const auto high23 = hn::BitCast(d16, hn::InterleaveUpper(d8, b2, b3));
    hn::StoreU(hn::BitCast(d8, hn::InterleaveLower(d16, low01, low23)), d8, out + 4 * i);
    hn::StoreU(hn::BitCast(d8, hn::InterleaveUpper(d16, low01, low23)), d8, out + 4 * i + 16);
    hn::StoreU(hn::BitCast(d8, hn::InterleaveLower(d16, high01, high23)), d8, out + 4 * i + 32);
    hn::StoreU(hn::BitCast(d8, hn::InterleaveUpper(d16, high01, high23)), d8, out + 4 * i + 48);
  }
#endif
}

inline void codes_to_values(const ValueMap& map,
                            const std::uint8_t* codes,
                            std::uint32_t dim,
                            float* values) {
  if (map.is_table) {
    table_to_values(map, codes, dim, values);
    return;
  }
  const FloatTag df;
  const hn::RebindToSigned<FloatTag> di;
  const hn::Rebind<std::uint8_t, FloatTag> d8;
  const auto step = hn::Set(df, map.step);
  const auto offset = hn::Set(df, map.offset);
  for (std::uint32_t i = 0; i < dim; i += static_cast<std::uint32_t>(hn::Lanes(df))) {
    const auto index = hn::PromoteTo(di, hn::LoadU(d8, codes + i));
    hn::StoreU(hn::MulAdd(hn::ConvertTo(df, index), step, offset), df, values + i);
  }
}

inline void float_row_to_values(Grid grid,
                                const std::uint8_t* row,
                                std::uint32_t dim,
                                float* values) {
  const FloatTag df;
  const auto lanes = static_cast<std::uint32_t>(hn::Lanes(df));
  if (grid == Grid::kF16) {
    const hn::Rebind<hwy::float16_t, FloatTag> dh;
    const auto* words = reinterpret_cast<const hwy::float16_t*>(row);
    for (std::uint32_t i = 0; i < dim; i += lanes) {
      hn::StoreU(hn::PromoteTo(df, hn::LoadU(dh, words + i)), df, values + i);
    }
    return;
  }
  const hn::Rebind<hwy::bfloat16_t, FloatTag> db;
  const auto* words = reinterpret_cast<const hwy::bfloat16_t*>(row);
  for (std::uint32_t i = 0; i < dim; i += lanes) {
    hn::StoreU(hn::PromoteTo(df, hn::LoadU(db, words + i)), df, values + i);
  }
}

// Values of `count` tokens that start at `slot`, row after row: values[count][dim].
inline void unpack_tile(const VectorFormat& format,
                        std::uint32_t dim,
                        const VectorSlot& slot,
                        std::uint32_t count,
                        float* values) {
  const std::uint32_t row0 = plane_bytes(format, dim, 0);
  const std::uint32_t row1 = plane_bytes(format, dim, 1);
  const ValueMap map = value_map(format);
  HWY_ALIGN std::uint8_t codes[kMaxHeadDim];
  for (std::uint32_t t = 0; t < count; ++t) {
    const ConstCodeRow row = {{slot.row.plane[0] + t * row0, slot.row.plane[1] + t * row1}};
    if (format.is_float()) {
      float_row_to_values(format.grid, row.plane[0], dim, values + t * dim);
    } else {
      unpack_row(format.bits, row, dim, codes);
      codes_to_values(map, codes, dim, values + t * dim);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace quire
HWY_AFTER_NAMESPACE();

#endif
