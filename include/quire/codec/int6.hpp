// 6-bit codes as two planes: the low 4 bits and the high 2 bits, so that loops read powers of two.
#pragma once

#include <cstdint>

#include "quire/codec/bit_plane.hpp"
#include "quire/core/config.hpp"

namespace quire {

struct Int6 {
  static constexpr unsigned kBits = 6;
  static constexpr unsigned kPlaneBits[2] = {4, 2};

  QUIRE_HD static unsigned get(const ConstCodeRow& row, std::uint32_t element) {
    return BitPlane<4>::get(row.plane[0], element) | (BitPlane<2>::get(row.plane[1], element) << 4);
  }

  QUIRE_HD static void pack(const std::uint8_t* codes, std::uint32_t dim, const CodeRow& row) {
    BitPlane<4>::pack(codes, dim, 0, row.plane[0]);
    BitPlane<2>::pack(codes, dim, 4, row.plane[1]);
  }
};

}  // namespace quire
