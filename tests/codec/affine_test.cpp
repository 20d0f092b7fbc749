// The affine grid on worked numbers. Oracle: numbers worked by hand from
// b8 = [-1, -0.5, 0, 0.25, 0.5, 1, 1.5, 2.75]; the rows of 6 and 3 bits the same way (3.75/63 lies
// between 1950 and 1951 steps of 2^-15, 3.75/7 between 1097 and 1098 steps of 2^-11).
#include "quire/codec/affine.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "quire/codec/demote.hpp"
#include "support/catch.hpp"
#include "support/codec_rows.hpp"
#include "support/codec_tolerance.hpp"

namespace quire {
namespace {

constexpr float kWorked[8] = {-1.0f, -0.5f, 0.0f, 0.25f, 0.5f, 1.0f, 1.5f, 2.75f};

struct Row {
  std::uint32_t bits;
  std::uint16_t scale;
  unsigned codes[8];
};

constexpr Row kRows[] = {
    {8, 0x2388, {0, 34, 68, 85, 102, 136, 170, 255}},
    {6, 0x2b9f, {0, 8, 17, 21, 25, 34, 42, 63}},
    {4, 0x3400, {0, 2, 4, 5, 6, 8, 10, 15}},
    {3, 0x384a, {0, 1, 2, 2, 3, 4, 5, 7}},
    {2, 0x3d00, {0, 0, 1, 1, 1, 2, 2, 3}},
};
constexpr std::uint16_t kMinusOne = 0xbc00;

std::vector<float> worked(std::uint32_t dim) {
  std::vector<float> x(dim);
  for (std::uint32_t i = 0; i < dim; ++i) x[i] = kWorked[i % 8];
  return x;
}

VectorFormat affine(std::uint32_t bits, std::uint32_t group = 0) {
  return {Grid::kAffine, bits, group, kTransformNone};
}

struct Encoded {
  AffineMeta meta;
  std::vector<std::uint8_t> codes;
  CodecEvents events;
};

Encoded encode(const std::vector<float>& x, std::uint32_t bits) {
  Encoded e;
  e.codes.resize(x.size());
  e.meta =
      affine_encode(x.data(), static_cast<std::uint32_t>(x.size()), bits, e.codes.data(), e.events);
  return e;
}

float decode(const Encoded& e, std::size_t i) {
  return affine_value(e.codes[i], half_to_float(e.meta.scale), half_to_float(e.meta.zero));
}

TEST_CASE("the worked vector has the worked scale, zero and codes at every width",
          "[codec][affine]") {
  for (const Row& row : kRows) {
    for (const std::uint32_t dim : {8u, 16u, 128u}) {
      INFO("bits " << row.bits << " dim " << dim);
      const Encoded e = encode(worked(dim), row.bits);
      REQUIRE(e.meta.scale == row.scale);
      REQUIRE(e.meta.zero == kMinusOne);
      for (std::uint32_t i = 0; i < dim; ++i) REQUIRE(e.codes[i] == row.codes[i % 8]);
      REQUIRE(e.events.saturated == 0);
    }
  }
}

TEST_CASE("the worked vector packs into the worked words", "[codec][affine]") {
  const struct {
    std::uint32_t bits;
    std::vector<std::uint16_t> words;  // of 8 elements, little endian
  } packed[] = {{8, {0x2200, 0x5544, 0x8866, 0xffaa}}, {4, {0x5420, 0xfa86}}, {2, {0xe950}}};
  const std::vector<float> x = worked(16);
  for (const auto& p : packed) {
    INFO("bits " << p.bits);
    test::CodedRows rows(affine(p.bits), 16, 1);
    CodecEvents events;
    encode_vector(affine(p.bits), 16, x.data(), rows.slot(0), events);
    for (std::size_t i = 0; i < 2 * p.words.size(); ++i) {
      const std::uint16_t word = p.words[i % p.words.size()];
      REQUIRE(rows.plane(0)[2 * i] == (word & 0xff));
      REQUIRE(rows.plane(0)[2 * i + 1] == word >> 8);
    }
    REQUIRE(rows.guards_intact());
  }
}

TEST_CASE("the worked codes give the worked values back", "[codec][affine]") {
  // Seven decimals in the source, so half a unit of the last one.
  constexpr double kPrinted = 0.5e-7;
  const double eight[8] = {
      -1.0, -0.4998779, 0.0002441, 0.2503052, 0.5003662, 1.0004883, 1.5006104, 2.7509155};
  const float two[8] = {-1.0f, -1.0f, 0.25f, 0.25f, 0.25f, 1.5f, 1.5f, 2.75f};
  const std::vector<float> x = worked(128);
  const Encoded e8 = encode(x, 8);
  const Encoded e4 = encode(x, 4);
  const Encoded e2 = encode(x, 2);
  for (std::size_t i = 0; i < x.size(); ++i) {
    REQUIRE(std::fabs(decode(e8, i) - eight[i % 8]) <= kPrinted);
    REQUIRE(decode(e4, i) == x[i]);
    REQUIRE(decode(e2, i) == two[i % 8]);
  }
}

TEST_CASE("the worked vector goes down from K8 to K4 and from V4 to V2 as worked",
          "[codec][affine][demote]") {
  const struct {
    std::uint32_t from, to;
    std::uint16_t scale;
    std::vector<std::uint8_t> bytes;
  } steps[] = {{8, 4, 0x3400, {0x20, 0x54, 0x86, 0xfa}}, {4, 2, 0x3d00, {0x50, 0xe9}}};
  const std::vector<float> x = worked(128);
  for (const auto& s : steps) {
    INFO(s.from << " to " << s.to);
    test::CodedRows from(affine(s.from), 128, 1);
    test::CodedRows to(affine(s.to), 128, 1);
    CodecEvents events;
    encode_vector(affine(s.from), 128, x.data(), from.slot(0), events);
    demote_vector(affine(s.from), affine(s.to), 128, from.const_slot(0), to.slot(0), events);
    for (std::size_t i = 0; i < 128 * s.to / 8; ++i) {
      REQUIRE(to.plane(0)[i] == s.bytes[i % s.bytes.size()]);
    }
    REQUIRE(to.meta()[0] == s.scale);
    REQUIRE(to.meta()[1] == kMinusOne);
  }
}

TEST_CASE("a constant that fp16 holds becomes codes 0 and scale 0 and comes back exactly",
          "[codec][affine]") {
  for (const float constant : {0.0f, 1.0f, -3.5f, 65504.0f, -65504.0f, 5.9604645e-8f}) {
    for (const Row& row : kRows) {
      INFO(constant << " bits " << row.bits);
      const Encoded e = encode(std::vector<float>(64, constant), row.bits);
      REQUIRE(half_to_float(e.meta.scale) == 0.0f);
      for (std::size_t i = 0; i < 64; ++i) {
        REQUIRE(e.codes[i] == 0);
        REQUIRE(decode(e, i) == constant);
      }
    }
  }
}

TEST_CASE("a constant between two halves keeps the bound of half a step", "[codec][affine]") {
  for (const float constant : {0.1f, -0.1f, 1000.3f, -1000.3f, 1e-7f, -1e-7f, 1e-30f, -1e-30f}) {
    for (const Row& row : kRows) {
      INFO(constant << " bits " << row.bits);
      const Encoded e = encode(std::vector<float>(64, constant), row.bits);
      const double step = half_to_float(e.meta.scale);
      const double zero = half_to_float(e.meta.zero);
      const double rounding = test::affine_code_rounding(constant - zero);
      REQUIRE(zero <= constant);
      for (const unsigned code : e.codes) {
        REQUIRE(code < 1u << row.bits);
        REQUIRE(std::fabs(zero + code * step - constant) <= 0.5 * step + rounding);
      }
    }
  }
}

TEST_CASE("negative zero is zero", "[codec][affine]") {
  for (const Row& row : kRows) {
    INFO("bits " << row.bits);
    std::vector<float> x(32, -0.0f);
    const Encoded constant = encode(x, row.bits);
    for (std::size_t i = 0; i < x.size(); ++i) REQUIRE(decode(constant, i) == 0.0f);
    x[3] = static_cast<float>((1u << row.bits) - 1u);
    x[7] = 0.0f;
    const Encoded e = encode(x, row.bits);
    for (std::size_t i = 0; i < x.size(); ++i) REQUIRE(decode(e, i) == x[i]);
  }
}

TEST_CASE("a range of one ulp keeps both ends within half a step", "[codec][affine]") {
  const float half_ulp_at_one = half_to_float(0x3c01) - 1.0f;
  for (const float top : {std::nextafter(1.0f, 2.0f), 1.0f + half_ulp_at_one}) {
    for (const Row& row : kRows) {
      INFO("top - 1 = " << top - 1.0f << " bits " << row.bits);
      std::vector<float> x(32, 1.0f);
      x[31] = top;
      const Encoded e = encode(x, row.bits);
      const double step = half_to_float(e.meta.scale);
      REQUIRE(step > 0.0);
      REQUIRE(half_to_float(e.meta.zero) == 1.0f);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double value = 1.0 + e.codes[i] * step;
        REQUIRE(std::fabs(value - x[i]) <= 0.5 * step + test::affine_code_rounding(top - 1.0f));
      }
    }
  }
}

TEST_CASE("half-way codes round to even", "[codec][affine]") {
  for (const Row& row : kRows) {
    const unsigned steps = (1u << row.bits) - 1u;
    INFO("bits " << row.bits);
    std::vector<float> x = {0.0f, static_cast<float>(steps)};  // scale 1, zero 0
    for (unsigned k = 0; k < steps; ++k) x.push_back(static_cast<float>(k) + 0.5f);
    const Encoded e = encode(x, row.bits);
    REQUIRE(half_to_float(e.meta.scale) == 1.0f);
    for (unsigned k = 0; k < steps; ++k) {
      const unsigned even = k % 2 == 0 ? k : k + 1;
      REQUIRE(e.codes[k + 2] == even);
    }
  }
}

TEST_CASE("numbers beyond fp16 saturate, are counted, and never become infinite or NaN",
          "[codec][affine]") {
  const float huge = std::numeric_limits<float>::max();
  const struct {
    std::vector<float> x;
    std::uint64_t beyond;
    float low, high;
  } cases[] = {
      {{65504.0f, -65504.0f, 0.0f, 1.0f}, 0, -65504.0f, 65504.0f},
      {{65505.0f, 0.0f, 1.0f, 2.0f}, 1, 0.0f, 65504.0f},
      {{-1e6f, 1e6f, 3e38f, 0.0f}, 3, -65504.0f, 65504.0f},
      {{huge, huge, huge, huge}, 4, 65504.0f, 65504.0f},
      {{-huge, -huge, -1e5f, -70000.0f}, 4, -65504.0f, -65504.0f},
  };
  for (const auto& c : cases) {
    for (const Row& row : kRows) {
      INFO("first " << c.x[0] << " bits " << row.bits);
      const Encoded e = encode(c.x, row.bits);
      REQUIRE(e.events.saturated == c.beyond);
      REQUIRE(is_finite(half_to_float(e.meta.scale)));
      REQUIRE(half_to_float(e.meta.zero) == c.low);
      const double step = half_to_float(e.meta.scale);
      for (std::size_t i = 0; i < c.x.size(); ++i) {
        const double inside = std::fmin(std::fmax(c.x[i], c.low), c.high);
        const double rounding = test::affine_code_rounding(inside - c.low);
        REQUIRE(e.codes[i] < 1u << row.bits);
        REQUIRE(std::fabs(c.low + e.codes[i] * step - inside) <= 0.5 * step + rounding);
      }
    }
  }
}

}  // namespace
}  // namespace quire
