// 16-bit floats. Oracle: the value of every bit pattern in double from the words of IEEE 754, and
// for the roundings a search for the neighbours among all values (support/codec_float16.hpp).
#include "quire/core/dtype.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/codec_check.hpp"
#include "support/codec_float16.hpp"
#include "support/gen.hpp"

namespace quire {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kFloatMax = std::numeric_limits<float>::max();

float next_up(float x) { return std::nextafter(x, kInf); }
float next_down(float x) { return std::nextafter(x, -kInf); }

// Compares one float in all three directions with the neighbours that the oracle finds. The sign
// must survive, also that of a result that is zero.
void check_half_roundings(float x, test::FirstFailure& failures) {
  const test::Float16Values& halves = test::half_values();
  const double exact = x;
  const double expected[3] = {halves.nearest_even(exact), halves.down(exact), halves.up(exact)};
  const Rounding rounding[3] = {Rounding::kNearestEven, Rounding::kDown, Rounding::kUp};
  for (int i = 0; i < 3; ++i) {
    const std::uint16_t bits = float_to_half(x, rounding[i]);
    const bool sign_kept = (bits >> 15 != 0) == std::signbit(x);
    failures.check(test::half_value(bits) == expected[i] && sign_kept,
                   exact,
                   " rounding ",
                   i,
                   " gave ",
                   test::half_value(bits),
                   " expected ",
                   expected[i]);
  }
}

// A finite float of any exponent.
float any_finite(test::Rng& rng) {
  for (;;) {
    const float x = bits_float(static_cast<std::uint32_t>(rng.bits()));
    if (std::isfinite(x)) return x;
  }
}

TEST_CASE("every half pattern has the value that IEEE 754 gives it", "[core][dtype]") {
  test::FirstFailure failures;
  for (std::uint32_t i = 0; i < 0x10000u; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const double expected = test::half_value(bits);
    const float value = half_to_float(bits);
    const bool same = std::isnan(expected) ? std::isnan(value) : value == expected;
    failures.check(same && std::signbit(value) == (bits >> 15 != 0), "half bits ", i);
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("every finite half comes back from fp32 in all roundings", "[core][dtype]") {
  test::FirstFailure failures;
  for (std::uint32_t i = 0; i < 0x10000u; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float value = half_to_float(bits);
    for (const Rounding r : {Rounding::kNearestEven, Rounding::kDown, Rounding::kUp}) {
      const std::uint16_t back = float_to_half(value, r);
      if (std::isfinite(value)) {
        failures.check(back == bits, "half bits ", i, " came back as ", back);
      } else if (std::isnan(value)) {
        failures.check(std::isnan(half_to_float(back)), "NaN bits ", i, " became ", back);
      } else {  // infinity is what metadata must never hold
        failures.check(back == ((bits & 0x8000u) | 0x7bffu), "Inf bits ", i, " became ", back);
      }
    }
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("half-way cases and their fp32 neighbours round as the search says", "[core][dtype]") {
  test::FirstFailure failures;
  for (std::uint32_t i = 0; i < 0x7bffu; ++i) {
    const double below = test::half_value(static_cast<std::uint16_t>(i));
    const double above = test::half_value(static_cast<std::uint16_t>(i + 1));
    const float middle = static_cast<float>((below + above) / 2);
    for (const float x : {middle, next_up(middle), next_down(middle)}) {
      check_half_roundings(x, failures);
      check_half_roundings(-x, failures);
    }
    check_half_roundings(next_up(static_cast<float>(below)), failures);
    check_half_roundings(next_down(static_cast<float>(above)), failures);
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("random floats of every exponent round as the search says", "[core][dtype]") {
  test::Rng rng(11);
  INFO(rng.describe());
  test::FirstFailure failures;
  for (int i = 0; i < 100000; ++i) {
    check_half_roundings(any_finite(rng), failures);
    // The exponents that fp16 has, its subnormals and a little below.
    const float scale = std::ldexp(1.0f, static_cast<int>(rng.below(46)) - 28);
    check_half_roundings(rng.normal() * scale, failures);
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("floats around zero and around the largest half round as the search says",
          "[core][dtype]") {
  test::FirstFailure failures;
  const float tiny = std::numeric_limits<float>::denorm_min();
  const float least = std::ldexp(1.0f, -24);
  std::vector<float> edges = {0.0f, tiny, std::numeric_limits<float>::min(), least, least / 2};
  edges.insert(edges.end(), {least / 4, 1.5f * least, std::ldexp(1.0f, -14), 65472.0f, kHalfMax});
  edges.insert(edges.end(), {65519.0f, 65520.0f, 65535.0f, 65536.0f, 1e6f, 1e20f, kFloatMax});
  for (const float edge : edges) {
    for (const float x : {edge, next_down(edge), edge == kFloatMax ? edge : next_up(edge)}) {
      check_half_roundings(x, failures);
      check_half_roundings(-x, failures);
    }
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("numbers beyond the range of fp16 saturate instead of becoming infinite",
          "[core][dtype]") {
  REQUIRE(static_cast<double>(kHalfMax) == test::half_values().largest());
  for (const Rounding r : {Rounding::kNearestEven, Rounding::kDown, Rounding::kUp}) {
    for (const float x : {next_up(kHalfMax), 65520.0f, 1e30f, kFloatMax, kInf}) {
      REQUIRE(float_to_half(x, r) == 0x7bff);
      REQUIRE(float_to_half(-x, r) == 0xfbff);
    }
    REQUIRE(std::isnan(half_to_float(float_to_half(kNan, r))));
    REQUIRE(std::isnan(half_to_float(float_to_half(-kNan, r))));
    REQUIRE(std::isnan(half_to_float(float_to_half(bits_float(0x7f800001u), r))));
  }
}

TEST_CASE("every bfloat pattern has its value and comes back", "[core][dtype]") {
  test::FirstFailure failures;
  for (std::uint32_t i = 0; i < 0x10000u; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const double expected = test::bfloat_value(bits);
    const float value = bfloat_to_float(bits);
    const std::uint16_t back = float_to_bfloat(value);
    if (std::isnan(expected)) {
      failures.check(std::isnan(value) && std::isnan(bfloat_to_float(back)), "NaN bits ", i);
    } else {
      failures.check(value == expected && back == bits, "bfloat bits ", i, " came back ", back);
    }
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("floats round to the nearest bfloat, ties to even, never to infinity", "[core][dtype]") {
  test::Rng rng(12);
  INFO(rng.describe());
  test::FirstFailure failures;
  const auto check = [&](float x) {
    const double expected = test::bfloat_values().nearest_even(x);
    const double got = test::bfloat_value(float_to_bfloat(x));
    failures.check(got == expected && std::signbit(got) == std::signbit(x),
                   static_cast<double>(x),
                   " gave ",
                   got,
                   " expected ",
                   expected);
  };
  for (std::uint32_t i = 0; i < 0x7f80u; ++i) {  // the last middle lies above the largest bfloat
    const float middle = bits_float((i << 16) | 0x8000u);
    for (const float x : {middle, next_up(middle), next_down(middle)}) {
      check(x);
      check(-x);
    }
  }
  for (int i = 0; i < 100000; ++i) check(any_finite(rng));
  check(kFloatMax);
  check(-kFloatMax);
  INFO(failures.describe());
  REQUIRE(failures.none());
  REQUIRE(std::isinf(bfloat_to_float(float_to_bfloat(kInf))));
  // A NaN whose payload lies in the low half must not turn into infinity.
  REQUIRE(std::isnan(bfloat_to_float(float_to_bfloat(bits_float(0x7f800001u)))));
  REQUIRE(std::isnan(bfloat_to_float(float_to_bfloat(bits_float(0xff800001u)))));
}

TEST_CASE("finite is everything but infinities and NaN", "[core][dtype]") {
  test::Rng rng(13);
  INFO(rng.describe());
  for (const float x : {0.0f, -0.0f, kFloatMax, -kFloatMax, next_up(0.0f)}) REQUIRE(is_finite(x));
  for (const float x : {kInf, -kInf, kNan, -kNan, bits_float(0x7f800001u)})
    REQUIRE_FALSE(is_finite(x));
  test::FirstFailure failures;
  for (int i = 0; i < 100000; ++i) {
    const auto bits = static_cast<std::uint32_t>(rng.bits());
    const float x = bits_float(bits);
    failures.check(is_finite(x) == std::isfinite(x), "bits ", bits);
    if (!std::isnan(x)) failures.check(float_bits(x) == bits, "bits ", bits);
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("elements are loaded and stored by dtype and index", "[core][dtype]") {
  REQUIRE(dtype_bytes(DType::kF32) == sizeof(float));
  REQUIRE(dtype_bytes(DType::kF16) == sizeof(std::uint16_t));
  REQUIRE(dtype_bytes(DType::kBf16) == sizeof(std::uint16_t));
  test::Rng rng(14);
  INFO(rng.describe());
  const std::vector<float> x = rng.normals(64, 100.0f);
  std::vector<float> f32(x.size());
  std::vector<std::uint16_t> f16(x.size());
  std::vector<std::uint16_t> bf16(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    store_from_float(f32.data(), DType::kF32, at, x[i]);
    store_from_float(f16.data(), DType::kF16, at, x[i]);
    store_from_float(bf16.data(), DType::kBf16, at, x[i]);
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const double exact = x[i];
    REQUIRE(load_as_float(f32.data(), DType::kF32, at) == x[i]);
    REQUIRE(load_as_float(f16.data(), DType::kF16, at) == test::half_values().nearest_even(exact));
    REQUIRE(load_as_float(bf16.data(), DType::kBf16, at) ==
            test::bfloat_values().nearest_even(exact));
  }
}

}  // namespace
}  // namespace quire
