// Packing of integer codes into planes. Oracle: the definition in words (element e of a b-bit plane
// is in byte e / (8 / b), lowest element in the lowest bits), written out per bit here.
#include <vector>

#include "quire/codec/int_list.hpp"
#include "support/catch.hpp"
#include "support/gen.hpp"

namespace quire {
namespace {

struct Planes {
  std::vector<std::uint8_t> low;
  std::vector<std::uint8_t> high;

  Planes(std::uint32_t bits, std::uint32_t dim)
      : low(plane_row_bytes(dim, int_plane_bits(bits, 0)), 0xa5),
        high(plane_row_bytes(dim, int_plane_bits(bits, 1)) + 1, 0xa5) {}
  CodeRow row() { return {{low.data(), high.data()}}; }
  ConstCodeRow const_row() const { return {{low.data(), high.data()}}; }
};

unsigned bit_of(const std::vector<std::uint8_t>& plane,
                unsigned bits,
                std::uint32_t element,
                unsigned bit) {
  const std::uint32_t at = element * bits + bit;
  return (unsigned{plane[at / 8]} >> (at % 8)) & 1u;
}

TEST_CASE("packed codes come back for every width and head dim", "[codec][planes]") {
  test::Rng rng(1);
  INFO(rng.describe());
  for (const std::uint32_t bits : kIntWidths) {
    for (std::uint32_t dim = 16; dim <= 256; dim += 16) {
      std::vector<std::uint8_t> codes(dim);
      for (auto& c : codes) c = static_cast<std::uint8_t>(rng.below(1u << bits));
      Planes planes(bits, dim);
      pack_codes(bits, codes.data(), dim, planes.row());
      std::vector<std::uint8_t> back(dim);
      unpack_codes(bits, planes.const_row(), dim, back.data());
      INFO("bits " << bits << " dim " << dim);
      REQUIRE(back == codes);
      REQUIRE(planes.high.back() == 0xa5);  // nothing is written behind the row
    }
  }
}

TEST_CASE("bit j of a code is bit j of its element in its plane", "[codec][planes]") {
  test::Rng rng(2);
  INFO(rng.describe());
  for (const std::uint32_t bits : kIntWidths) {
    const std::uint32_t dim = 48;
    std::vector<std::uint8_t> codes(dim);
    for (auto& c : codes) c = static_cast<std::uint8_t>(rng.below(1u << bits));
    Planes planes(bits, dim);
    pack_codes(bits, codes.data(), dim, planes.row());
    const std::uint32_t low_bits = int_plane_bits(bits, 0);
    const std::uint32_t high_bits = int_plane_bits(bits, 1);
    REQUIRE(low_bits + high_bits == bits);
    for (std::uint32_t e = 0; e < dim; ++e) {
      for (unsigned b = 0; b < bits; ++b) {
        const unsigned stored = b < low_bits ? bit_of(planes.low, low_bits, e, b)
                                             : bit_of(planes.high, high_bits, e, b - low_bits);
        REQUIRE(stored == ((unsigned{codes[e]} >> b) & 1u));
      }
    }
  }
}

TEST_CASE("integer quotients round every code to the nearest one", "[codec][demote]") {
  for (unsigned q = 0; q < 256; ++q) {
    REQUIRE(int4_from_int8(q) == static_cast<unsigned>(q / 17.0 + 0.5));
  }
  for (unsigned q = 0; q < 16; ++q)
    REQUIRE(int2_from_int4(q) == static_cast<unsigned>(q / 5.0 + 0.5));
  REQUIRE(int4_from_int8(9) == 1);  // the code that the authors' integer path gets wrong
  REQUIRE(int2_from_int4(3) == 1);
}

}  // namespace
}  // namespace quire
