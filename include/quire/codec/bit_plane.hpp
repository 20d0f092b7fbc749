// Rows of 8-, 4-, 2- or 1-bit codes. Every integer format is one plane or two of these.
#pragma once

#include <cstdint>

#include "quire/core/config.hpp"

namespace quire {

// The planes of one vector: plane[0] holds the low bits of each code, plane[1] the high bits
// (nullptr for formats of one plane).
struct CodeRow {
  std::uint8_t* plane[2];
};

struct ConstCodeRow {
  const std::uint8_t* plane[2];
};

QUIRE_HD constexpr std::uint32_t plane_row_bytes(std::uint32_t dim, std::uint32_t bits) {
  return dim * bits / 8;
}

// Element e is in byte e / (8 / bits), lowest element in the lowest bits.
template <unsigned kBits>
struct BitPlane {
  static_assert(kBits == 8 || kBits == 4 || kBits == 2 || kBits == 1);
  static constexpr unsigned kPerByte = 8 / kBits;
  static constexpr unsigned kMask = (1u << kBits) - 1u;

  QUIRE_HD static unsigned get(const std::uint8_t* row, std::uint32_t element) {
    return (unsigned{row[element / kPerByte]} >> (kBits * (element % kPerByte))) & kMask;
  }

  // Packs dim codes, each shifted right by `shift` first; dim is a multiple of 16, so that the
  // row is whole bytes and no byte belongs to two tokens.
  QUIRE_HD static void pack(const std::uint8_t* codes,
                            std::uint32_t dim,
                            unsigned shift,
                            std::uint8_t* row) {
    for (std::uint32_t byte = 0; byte < dim / kPerByte; ++byte) {
      unsigned value = 0;
      for (unsigned i = 0; i < kPerByte; ++i) {
        const unsigned code = codes[byte * kPerByte + i];
        value |= ((code >> shift) & kMask) << (kBits * i);
      }
      row[byte] = static_cast<std::uint8_t>(value);
    }
  }
};

}  // namespace quire
