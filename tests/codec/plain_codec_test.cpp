// quire_encode, quire_decode and quire_demote. Oracle: the header functions that define the
// formats, called vector by vector; equal to the last bit.
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "quire/codec/demote.hpp"
#include "quire/codec/transform.hpp"
#include "support/catch.hpp"
#include "support/codec_call.hpp"
#include "support/codec_check.hpp"
#include "support/codec_tolerance.hpp"

namespace quire {
namespace {

constexpr DType kDtypes[] = {DType::kF32, DType::kF16, DType::kBf16};

// Walks through dims, formats, transforms, dtypes and strides with counts that have no common
// divisor, so that every pair meets.
std::vector<test::CodecCallSpec> all_calls() {
  std::vector<test::CodecCallSpec> calls;
  std::uint32_t walk = 0;
  for (const std::uint32_t dim : test::kHeadDims) {
    const std::int64_t strides[] = {0, dim, dim + 3, -static_cast<std::int64_t>(dim) - 5, 1000};
    for (const VectorFormat& plain : test::formats_of(dim)) {
      for (std::uint32_t transform = 0; transform < 4; ++transform, ++walk) {
        test::CodecCallSpec spec;
        spec.format = plain;
        spec.format.transform = transform;
        spec.dim = dim;
        spec.count = 1 + walk % 7;
        spec.dtype = kDtypes[walk % 3];
        spec.stride = strides[walk % 5];
        spec.seed = walk;
        calls.push_back(spec);
      }
    }
  }
  return calls;
}

void fill(test::CodecCall& call, test::Rng& rng) {
  call.rows.fill(rng, 3.0f, 1.0f);
  for (float& o : call.offset) o = 2.0f * rng.normal();
}

HeadTransform transform_of(const test::CodecCall& call, std::vector<std::uint16_t>& offset) {
  offset.resize(call.spec.dim);
  for (std::size_t d = 0; d < offset.size(); ++d) {
    offset[d] = call.args.offset == nullptr ? std::uint16_t{0} : float_to_half(call.offset[d]);
  }
  return {call.spec.format.transform, call.spec.seed, offset.data()};
}

test::CodedRows encoded_by_headers(test::CodecCall& call, CodecEvents& events) {
  const test::CodecCallSpec& s = call.spec;
  test::CodedRows expected(s.format, s.dim, s.count);
  std::vector<std::uint16_t> offset;
  const HeadTransform transform = transform_of(call, offset);
  for (std::uint32_t i = 0; i < s.count; ++i) {
    std::vector<float> x(s.dim);
    for (std::uint32_t d = 0; d < s.dim; ++d) x[d] = call.rows.get(i, d);
    transform_stored(transform, s.dim, x.data());
    encode_vector(s.format, s.dim, x.data(), expected.slot(i), events);
  }
  return expected;
}

TEST_CASE("quire_encode writes the bytes of the header functions", "[codec][plain]") {
  test::Rng rng(111);
  INFO(rng.describe());
  test::FirstFailure failures;
  for (const test::CodecCallSpec& spec : all_calls()) {
    test::CodecCall call(spec);
    fill(call, rng);
    const test::FloatRows rows = call.rows;
    CodecEvents events;
    const test::CodedRows expected = encoded_by_headers(call, events);
    const quire_status status = quire_encode(&call.args);
    failures.check(status == QUIRE_OK, test::describe(spec.format), " status ", status);
    failures.check(call.coded == expected && call.coded.guards_intact(),
                   test::describe(spec.format),
                   " dim ",
                   spec.dim,
                   " stride ",
                   spec.stride);
    failures.check(call.rows == rows && call.saturated == 1000 + events.saturated, "inputs");
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("quire_decode writes the floats of the header functions and nothing beside them",
          "[codec][plain]") {
  test::Rng rng(112);
  INFO(rng.describe());
  test::FirstFailure failures;
  for (const test::CodecCallSpec& spec : all_calls()) {
    test::CodecCall call(spec);
    fill(call, rng);
    CodecEvents events;
    call.coded = encoded_by_headers(call, events);
    test::FloatRows expected(spec.dtype, spec.count, spec.dim, spec.stride);
    std::vector<std::uint16_t> offset;
    const HeadTransform transform = transform_of(call, offset);
    for (std::uint32_t i = 0; i < spec.count; ++i) {
      std::vector<float> x(spec.dim);
      decode_vector(spec.format, spec.dim, call.coded.const_slot(i), x.data());
      transform_back(transform, spec.dim, x.data());
      for (std::uint32_t d = 0; d < spec.dim; ++d) expected.set(i, d, x[d]);
    }
    call.rows = test::FloatRows(spec.dtype, spec.count, spec.dim, spec.stride);
    call.bind();
    const test::CodedRows before = call.coded;
    const quire_status status = quire_decode(&call.args);
    failures.check(status == QUIRE_OK, test::describe(spec.format), " status ", status);
    failures.check(call.rows == expected,
                   test::describe(spec.format),
                   " dim ",
                   spec.dim,
                   " stride ",
                   spec.stride);
    failures.check(call.coded == before && call.saturated == 1000, "inputs");
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("quire_demote writes the bytes of the header functions", "[codec][plain]") {
  test::Rng rng(113);
  INFO(rng.describe());
  test::FirstFailure failures;
  for (const std::uint32_t dim : {16u, 80u, 128u}) {
    const std::vector<VectorFormat> formats = test::formats_of(dim);
    for (VectorFormat from : formats) {
      for (VectorFormat to : formats) {
        from.transform = to.transform = rng.below(4);
        test::CodecCall source({from, dim, 3, DType::kF32, 0, 9});
        test::CodecCall result({to, dim, 3, DType::kF32, 0, 9});
        fill(source, rng);
        REQUIRE(quire_encode(&source.args) == QUIRE_OK);
        test::CodedRows expected(to, dim, 3);
        CodecEvents events;
        for (std::uint32_t i = 0; i < 3; ++i) {
          demote_vector(from, to, dim, source.coded.const_slot(i), expected.slot(i), events);
        }
        const test::CodedRows before = source.coded;
        result.args.head_dim = 0;  // count and head dim are those of `from`
        result.args.count = 0;
        result.args.rows = {};
        source.args.rows = {};
        const quire_status status = quire_demote(&source.args, &result.args);
        failures.check(status == QUIRE_OK && result.coded == expected && source.coded == before,
                       test::describe(from),
                       " to ",
                       test::describe(to),
                       " status ",
                       status);
        failures.check(result.coded.guards_intact(), "guards");
      }
    }
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("no vectors is a call that does nothing", "[codec][plain]") {
  for (const VectorFormat& format : test::formats_of(64)) {
    test::CodecCall call({format, 64, 2, DType::kF32, 0, 0});
    const test::FloatRows rows = call.rows;
    call.args.count = 0;
    INFO(test::describe(format));
    REQUIRE(quire_encode(&call.args) == QUIRE_OK);
    REQUIRE(quire_decode(&call.args) == QUIRE_OK);
    test::CodecCall to({format, 64, 2, DType::kF32, 0, 0});
    REQUIRE(quire_demote(&call.args, &to.args) == QUIRE_OK);
    REQUIRE(call.coded.untouched());
    REQUIRE(to.coded.untouched());
    REQUIRE(call.rows == rows);
    REQUIRE(call.saturated == 1000);
  }
}

TEST_CASE("counter and error may be absent", "[codec][plain]") {
  test::Rng rng(114);
  INFO(rng.describe());
  test::CodecCall call({{Grid::kAffine, 4, 0, 0}, 64, 3, DType::kF32, 0, 0});
  fill(call, rng);
  call.rows.set(1, 1, 1e6f);
  call.args.saturated = nullptr;
  call.args.error = nullptr;
  REQUIRE(quire_encode(&call.args) == QUIRE_OK);
  call.args.head_dim = 1;
  REQUIRE(quire_encode(&call.args) == QUIRE_INVALID_ARGUMENT);
}

TEST_CASE("an absent offset is zero", "[codec][plain]") {
  test::Rng rng(115);
  INFO(rng.describe());
  const VectorFormat with = {Grid::kAffine, 8, 0, kTransformOffset | kTransformHadamard};
  test::CodecCall zero({with, 64, 3, DType::kF32, 0, 4});
  zero.rows.fill(rng, 1.0f, 0.5f);
  REQUIRE(quire_encode(&zero.args) == QUIRE_OK);
  test::CodecCall absent({with, 64, 3, DType::kF32, 0, 4});
  absent.rows = zero.rows;
  absent.bind();
  absent.args.offset = nullptr;
  REQUIRE(quire_encode(&absent.args) == QUIRE_OK);
  REQUIRE(absent.coded == zero.coded);
}

TEST_CASE("a row may be read for every vector by a token stride of zero", "[codec][plain]") {
  test::Rng rng(116);
  INFO(rng.describe());
  test::CodecCall call({{Grid::kAffine, 4, 0, 0}, 64, 4, DType::kF32, 0, 0});
  fill(call, rng);
  call.args.rows.sequence_stride = 64;  // not all zero, so not dense
  REQUIRE(quire_encode(&call.args) == QUIRE_OK);
  for (std::uint32_t i = 1; i < 4; ++i) {
    float first[64];
    float other[64];
    decode_vector(call.spec.format, 64, call.coded.const_slot(0), first);
    decode_vector(call.spec.format, 64, call.coded.const_slot(i), other);
    REQUIRE(std::equal(first, first + 64, other));
  }
}

TEST_CASE("every finite number is encoded or refused, never stored as infinity or NaN",
          "[codec][plain]") {
  const float most = std::numeric_limits<float>::max();
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const float large : {7e4f, 1e20f, 2e36f, 2.9e38f, most}) {
      for (const VectorFormat& plain : test::formats_of(64)) {
        for (std::uint32_t transform = 0; transform < 4; ++transform) {
          VectorFormat format = plain;
          format.transform = transform;
          test::CodecCall call({format, 64, 1, dtype, 0, 3});
          for (std::uint32_t d = 0; d < 64; ++d) call.rows.set(0, d, d % 3 == 0 ? -large : large);
          INFO(test::describe(format) << " numbers of " << large);
          const quire_status status = quire_encode(&call.args);
          if (status == QUIRE_BAD_VALUE) {
            REQUIRE(call.coded.untouched());
            continue;
          }
          REQUIRE(status == QUIRE_OK);
          if (format.grid != Grid::kBf16) REQUIRE(call.saturated > 1000);
          float x[64];
          decode_vector(format, 64, call.coded.const_slot(0), x);
          for (const float v : x) REQUIRE(is_finite(v));
        }
      }
    }
  }
}

TEST_CASE("the largest finite numbers saturate like all numbers beyond fp16", "[codec][plain]") {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    test::CodecCall call({{Grid::kAffine, 8, 0, 0}, 16, 1, dtype, 0, 0});
    for (std::uint32_t d = 0; d < 16; ++d) call.rows.set(0, d, static_cast<float>(d));
    const std::uint32_t largest = dtype == DType::kF32 ? 0x7f7fffffu : 0x7f7fu;
    call.rows.set_bits(0, 5, largest);
    REQUIRE(quire_encode(&call.args) == QUIRE_OK);
    REQUIRE(call.saturated == 1001);
    float x[16];
    decode_vector(call.spec.format, 16, call.coded.const_slot(0), x);
    const double step = test::half_value(call.coded.meta()[0]);
    REQUIRE(std::fabs(x[5] - kHalfMax) <= 0.5 * step + test::affine_code_rounding(kHalfMax));
  }
}

TEST_CASE("quire_demote counts what fp16 could not hold", "[codec][plain]") {
  test::CodecCall from({{Grid::kBf16, 16, 0, 0}, 16, 1, DType::kF32, 0, 0});
  for (std::uint32_t d = 0; d < 16; ++d) from.rows.set(0, d, d < 3 ? 1e6f : 1.0f);
  REQUIRE(quire_encode(&from.args) == QUIRE_OK);
  REQUIRE(from.saturated == 1000);  // bf16 holds them
  test::CodecCall to({{Grid::kAffine, 8, 0, 0}, 16, 1, DType::kF32, 0, 0});
  REQUIRE(quire_demote(&from.args, &to.args) == QUIRE_OK);
  REQUIRE(to.saturated == 1003);
}

}  // namespace
}  // namespace quire
