// Oracle: the definition of fp16 in exact double arithmetic, over all finite numbers and all
// midpoints between neighbours.
#include "half.hpp"

#include <cmath>
#include <cstdint>

#include "support/catch.hpp"

namespace smol::test {
namespace {

constexpr uint32_t kLargestCode = 0x7bff;

double value_of(uint32_t code) {
  const uint32_t exponent = code >> 10;
  const double fraction = static_cast<double>(code & 1023) / 1024.0;
  return exponent == 0 ? fraction * 0x1p-14
                       : (1.0 + fraction) * std::pow(2.0, static_cast<double>(exponent) - 15.0);
}

}  // namespace

TEST_CASE("every fp16 code becomes its number", "[smol][half]") {
  for (uint32_t code = 0; code <= kLargestCode; ++code) {
    const auto half = static_cast<uint16_t>(code);
    INFO(code);
    REQUIRE(static_cast<double>(half_to_float(half)) == value_of(code));
    REQUIRE(static_cast<double>(half_to_float(static_cast<uint16_t>(half | 0x8000))) ==
            -value_of(code));
  }
  CHECK(half_to_float(0x7c00) == HUGE_VALF);
  CHECK(half_to_float(0xfc00) == -HUGE_VALF);
  CHECK(std::isnan(half_to_float(0x7e00)));
}

TEST_CASE("rounding keeps every fp16 number and takes midpoints to even", "[smol][half]") {
  for (uint32_t code = 0; code < kLargestCode; ++code) {
    const auto low = static_cast<float>(value_of(code));
    const auto high = static_cast<float>(value_of(code + 1));
    const float middle = (low + high) / 2.0f;  // exact: one bit more than fp16
    INFO(code);
    REQUIRE(round_to_half(low) == low);
    REQUIRE(round_to_half(middle) == (code % 2 == 0 ? low : high));
    REQUIRE(round_to_half(std::nextafter(middle, 0.0f)) == low);
    REQUIRE(round_to_half(std::nextafter(middle, HUGE_VALF)) == high);
    REQUIRE(round_to_half(-middle) == -round_to_half(middle));
  }
}

TEST_CASE("numbers beyond fp16 become its largest", "[smol][half]") {
  for (const float x : {65504.0f, 65505.0f, 1e6f, HUGE_VALF}) {
    CHECK(round_to_half(x) == 65504.0f);
    CHECK(round_to_half(-x) == -65504.0f);
  }
  CHECK(std::isnan(round_to_half(NAN)));
}

}  // namespace smol::test
