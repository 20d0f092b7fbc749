// 8-bit codes: one plane, a byte a code. Recipe and example: int4.hpp.
#pragma once

#include <cstdint>

#include "quire/codec/bit_plane.hpp"
#include "quire/core/config.hpp"

namespace quire {

struct Int8 {
  static constexpr unsigned kBits = 8;
  static constexpr unsigned kPlaneBits[2] = {8, 0};

  QUIRE_HD static unsigned get(const ConstCodeRow& row, std::uint32_t element) {
    return row.plane[0][element];
  }

  QUIRE_HD static void pack(const std::uint8_t* codes, std::uint32_t dim, const CodeRow& row) {
    BitPlane<8>::pack(codes, dim, 0, row.plane[0]);
  }
};

}  // namespace quire
