// 3-bit codes as two planes: the low 2 bits and the high bit.
#pragma once

#include <cstdint>

#include "quire/codec/bit_plane.hpp"
#include "quire/core/config.hpp"

namespace quire {

struct Int3 {
  static constexpr unsigned kBits = 3;
  static constexpr unsigned kPlaneBits[2] = {2, 1};

  QUIRE_HD static unsigned get(const ConstCodeRow& row, std::uint32_t element) {
    return BitPlane<2>::get(row.plane[0], element) | (BitPlane<1>::get(row.plane[1], element) << 2);
  }

  QUIRE_HD static void pack(const std::uint8_t* codes, std::uint32_t dim, const CodeRow& row) {
    BitPlane<2>::pack(codes, dim, 0, row.plane[0]);
    BitPlane<1>::pack(codes, dim, 2, row.plane[1]);
  }
};

}  // namespace quire
