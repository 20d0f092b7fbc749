// 2-bit codes: one plane, four codes to a byte.
#pragma once

#include <cstdint>

#include "quire/codec/bit_plane.hpp"
#include "quire/core/config.hpp"

namespace quire {

struct Int2 {
  static constexpr unsigned kBits = 2;
  static constexpr unsigned kPlaneBits[2] = {2, 0};

  QUIRE_HD static unsigned get(const ConstCodeRow& row, std::uint32_t element) {
    return BitPlane<2>::get(row.plane[0], element);
  }

  QUIRE_HD static void pack(const std::uint8_t* codes, std::uint32_t dim, const CodeRow& row) {
    BitPlane<2>::pack(codes, dim, 0, row.plane[0]);
  }
};

// round(code / 5), exact for all 16 codes.
QUIRE_HD constexpr unsigned int2_from_int4(unsigned code) { return (code + 2u) / 5u; }

}  // namespace quire
