// The list of integer widths: dispatch, tests and benches are made from it.
#pragma once

#include <cstdint>

#include "quire/codec/int2.hpp"
#include "quire/codec/int3.hpp"
#include "quire/codec/int4.hpp"
#include "quire/codec/int6.hpp"
#include "quire/codec/int8.hpp"
#include "quire/core/config.hpp"

namespace quire {

inline constexpr std::uint32_t kIntWidths[] = {2, 3, 4, 6, 8};

// Calls visit(IntN{}) for the width; false when there is no such width.
template <class VisitorT>
QUIRE_HD inline bool visit_int_width(std::uint32_t bits, VisitorT&& visit) {
  switch (bits) {
    case 2: visit(Int2{}); return true;
    case 3: visit(Int3{}); return true;
    case 4: visit(Int4{}); return true;
    case 6: visit(Int6{}); return true;
    case 8: visit(Int8{}); return true;
    default: return false;
  }
}

// Bits of plane 0 and 1 of a width; 0 where there is no such plane.
QUIRE_HD constexpr std::uint32_t int_plane_bits(std::uint32_t bits, std::uint32_t plane) {
  if (plane == 0) return bits == 6 ? 4 : (bits == 3 ? 2 : bits);
  return bits == 6 ? 2 : (bits == 3 ? 1 : 0);
}

QUIRE_HD inline void pack_codes(std::uint32_t bits,
                                const std::uint8_t* codes,
                                std::uint32_t dim,
                                const CodeRow& row) {
  visit_int_width(bits, [&](auto width) { decltype(width)::pack(codes, dim, row); });
}

QUIRE_HD inline void unpack_codes(std::uint32_t bits,
                                  const ConstCodeRow& row,
                                  std::uint32_t dim,
                                  std::uint8_t* codes) {
  visit_int_width(bits, [&](auto width) {
    for (std::uint32_t i = 0; i < dim; ++i) {
      codes[i] = static_cast<std::uint8_t>(decltype(width)::get(row, i));
    }
  });
}

}  // namespace quire
