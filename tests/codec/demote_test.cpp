// From one format to another without the original. Oracle: which of the three ways is due (equal
// coding copies, integer quotient divides, all else decodes and encodes), each done step by step.
#include "quire/codec/demote.hpp"

#include <cmath>
#include <vector>

#include "support/catch.hpp"
#include "support/codec_check.hpp"
#include "support/codec_rows.hpp"
#include "support/codec_tolerance.hpp"
#include "support/gen.hpp"

namespace quire {
namespace {

constexpr std::uint32_t kCount = 3;

// Both affine, same groups, and the larger code range is a multiple of the smaller one.
bool divides(const VectorFormat& from, const VectorFormat& to) {
  if (from.grid != Grid::kAffine || to.grid != Grid::kAffine || from.group != to.group)
    return false;
  return (from.bits == 8 && (to.bits == 4 || to.bits == 2)) ||
         (from.bits == 6 && (to.bits == 3 || to.bits == 2)) || (from.bits == 4 && to.bits == 2);
}

test::CodedRows encoded(const VectorFormat& format, std::uint32_t dim, test::Rng& rng) {
  test::CodedRows rows(format, dim, kCount);
  CodecEvents events;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    const std::vector<float> x = rng.normals(dim, 2.0f, 0.5f);
    encode_vector(format, dim, x.data(), rows.slot(i), events);
  }
  return rows;
}

TEST_CASE("codes are divided exactly where the quotient is whole", "[codec][demote]") {
  const std::vector<VectorFormat> all = test::formats_of(64);
  for (const VectorFormat& from : all) {
    for (const VectorFormat& to : all) {
      INFO(test::describe(from) << " to " << test::describe(to));
      REQUIRE(demotes_in_integers(from, to) == divides(from, to));
    }
  }
}

TEST_CASE("every pair of formats goes the way that is due", "[codec][demote]") {
  test::Rng rng(81);
  INFO(rng.describe());
  test::FirstFailure failures;
  for (const std::uint32_t dim : {16u, 80u, 192u}) {
    const std::vector<VectorFormat> all = test::formats_of(dim);
    for (const VectorFormat& from : all) {
      test::CodedRows source = encoded(from, dim, rng);
      for (const VectorFormat& to : all) {
        test::CodedRows got(to, dim, kCount);
        test::CodedRows expected(to, dim, kCount);
        for (std::uint32_t i = 0; i < kCount; ++i) {
          CodecEvents events;
          demote_vector(from, to, dim, source.const_slot(i), got.slot(i), events);
          if (divides(from, to)) {
            CodedVector in;
            CodedVector out;
            load_coded(from, dim, source.const_slot(i), in);
            demote_integers(from, to, dim, in, out);
            store_coded(to, dim, out, expected.slot(i));
          } else {
            float x[kMaxHeadDim];
            decode_vector(from, dim, source.const_slot(i), x);
            encode_vector(to, dim, x, expected.slot(i), events);
          }
        }
        const bool copied = from.same_coding(to);
        const bool right = copied ? got == source : got == expected;
        failures.check(right && got.guards_intact(),
                       test::describe(from),
                       " to ",
                       test::describe(to),
                       " dim ",
                       dim);
      }
    }
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

// Codes that no encoder makes (all at once, any scale) are copied too: nothing is re-encoded.
TEST_CASE("equal coding copies bytes, whatever they are", "[codec][demote]") {
  test::Rng rng(82);
  INFO(rng.describe());
  for (const VectorFormat& format : test::formats_of(96)) {
    INFO(test::describe(format));
    test::CodedRows from(format, 96, kCount);
    for (std::uint32_t p = 0; p < 2; ++p) {
      for (std::uint32_t b = 0; b < kCount * plane_bytes(format, 96, p); ++b)
        from.plane(p)[b] = static_cast<std::uint8_t>(rng.bits());
    }
    for (std::uint32_t m = 0; m < kCount * meta_count(format, 96); ++m)
      from.meta()[m] = static_cast<std::uint16_t>(rng.bits());
    test::CodedRows to(format, 96, kCount);
    VectorFormat rotated = format;
    rotated.transform = kTransformHadamard;  // no part of the coding
    CodecEvents events;
    for (std::uint32_t i = 0; i < kCount; ++i)
      demote_vector(format, rotated, 96, from.const_slot(i), to.slot(i), events);
    REQUIRE(from == to);
    REQUIRE(to.guards_intact());
  }
}

TEST_CASE("metadata may lie at different strides on both sides", "[codec][demote]") {
  test::Rng rng(83);
  INFO(rng.describe());
  const VectorFormat k8 = {Grid::kAffine, 8, 32, 0};
  for (const std::uint32_t bits : {8u, 6u, 4u}) {
    const VectorFormat to = {Grid::kAffine, bits, 32, 0};
    test::CodedRows source = encoded(k8, 64, rng);
    test::CodedRows wide(to, 64, kCount);
    test::CodedRows single(to, 64, 1);
    CodecEvents events;
    demote_vector(k8, to, 64, source.const_slot(1), wide.slot(1), events);
    demote_vector(k8, to, 64, source.const_slot(1), single.slot(0), events);
    INFO("bits " << bits);
    for (std::uint32_t m = 0; m < meta_count(to, 64); ++m)
      REQUIRE(wide.meta()[m * kCount + 1] == single.meta()[m]);
    REQUIRE(wide.guards_intact());
    REQUIRE(single.guards_intact());
  }
}

TEST_CASE("affine pairs without a quotient stay within half a step of the new scale",
          "[codec][demote][bound]") {
  test::Rng rng(84);
  INFO(rng.describe());
  test::FirstFailure failures;
  const std::uint32_t pairs[][2] = {{8, 6}, {8, 3}, {6, 4}, {4, 3}, {3, 2}};
  for (const auto& pair : pairs) {
    const VectorFormat from = {Grid::kAffine, pair[0], 0, 0};
    const VectorFormat to = {Grid::kAffine, pair[1], 0, 0};
    REQUIRE_FALSE(demotes_in_integers(from, to));
    for (int repeat = 0; repeat < 300; ++repeat) {
      test::CodedRows source = encoded(from, 128, rng);
      test::CodedRows result(to, 128, kCount);
      CodecEvents events;
      demote_vector(from, to, 128, source.const_slot(0), result.slot(0), events);
      float before[128];
      float after[128];
      decode_vector(from, 128, source.const_slot(0), before);
      decode_vector(to, 128, result.const_slot(0), after);
      const double step = half_to_float(result.meta()[0]);
      const double zero = half_to_float(result.meta()[kCount]);
      for (std::uint32_t i = 0; i < 128; ++i) {
        const double bound = 0.5 * step + test::affine_code_rounding(before[i] - zero) +
                             test::affine_value_rounding(after[i] - zero, after[i]);
        failures.check(std::fabs(before[i] - after[i]) <= bound, pair[0], " to ", pair[1]);
      }
      failures.check(events.saturated == 0, "nothing is beyond fp16");
    }
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("numbers that bf16 held and fp16 cannot are counted on the way down", "[codec][demote]") {
  const VectorFormat bf16 = {Grid::kBf16, 16, 0, 0};
  std::vector<float> x(16, 1.0f);
  x[4] = 1e6f;
  x[9] = -1e30f;
  test::CodedRows source(bf16, 16, 1);
  CodecEvents none;
  encode_vector(bf16, 16, x.data(), source.slot(0), none);
  REQUIRE(none.saturated == 0);
  for (const VectorFormat& to : test::formats_of(16)) {
    if (to.grid == Grid::kBf16) continue;
    test::CodedRows result(to, 16, 1);
    CodecEvents events;
    demote_vector(bf16, to, 16, source.const_slot(0), result.slot(0), events);
    float y[16];
    decode_vector(to, 16, result.const_slot(0), y);
    INFO(test::describe(to));
    REQUIRE(events.saturated == 2);
    for (const float v : y) REQUIRE(is_finite(v));
  }
}

}  // namespace
}  // namespace quire
