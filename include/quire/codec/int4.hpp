// 4-bit codes: one plane, two codes to a byte.
//
// How a vector of the affine format gets here, on the worked example of the tests:
//   x = [-1, -0.5, 0, 0.25, 0.5, 1, 1.5, 2.75]
//   zero  = min rounded toward -inf to fp16            = -1
//   scale = (max - zero) / 15 rounded up to fp16       = 0.25
//   codes = round_half_even((x - zero) / scale)        = 0 2 4 5 6 8 10 15      (affine.hpp)
//   bytes = codes in pairs, first in the low nibble    = 20 54 86 FA            (this file)
// and back: code * scale + zero. Scale and zero live in the page's metadata segment, never between
// codes (page_layout.hpp). Int8, Int6, Int3 and Int2 have the same four members.
#pragma once

#include <cstdint>

#include "quire/codec/bit_plane.hpp"
#include "quire/core/config.hpp"

namespace quire {

struct Int4 {
  static constexpr unsigned kBits = 4;
  static constexpr unsigned kPlaneBits[2] = {4, 0};

  QUIRE_HD static unsigned get(const ConstCodeRow& row, std::uint32_t element) {
    return BitPlane<4>::get(row.plane[0], element);
  }

  QUIRE_HD static void pack(const std::uint8_t* codes, std::uint32_t dim, const CodeRow& row) {
    BitPlane<4>::pack(codes, dim, 0, row.plane[0]);
  }
};

// Demotion without leaving the integers: round(code / 17), exact for all 256 codes because 17 is
// odd and no quotient ends in one half. The new scale is 17 times the old one, the zero stays.
QUIRE_HD constexpr unsigned int4_from_int8(unsigned code) { return (code + 8u) / 17u; }

}  // namespace quire
