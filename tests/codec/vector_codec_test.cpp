// Whole vectors of every format to rows and metadata, and back. Oracle: random codes that must
// return, values computed from them in double, and the group encoders called one group at a time.
#include "quire/codec/vector_codec.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/codec_check.hpp"
#include "support/codec_float16.hpp"
#include "support/codec_rows.hpp"
#include "support/codec_tolerance.hpp"
#include "support/gen.hpp"

namespace quire {
namespace {

constexpr std::uint32_t kCount = 5;  // vectors per buffer

CodedVector random_coded(const VectorFormat& format, std::uint32_t dim, test::Rng& rng) {
  CodedVector coded = {};
  for (std::uint32_t i = 0; i < dim; ++i) {
    coded.codes[i] = static_cast<std::uint8_t>(rng.below(1u << format.bits));
  }
  for (std::uint32_t m = 0; m < meta_count(format, dim); ++m) {
    coded.meta[m] =
        float_to_half(rng.normal() * std::ldexp(1.0f, 5 - static_cast<int>(rng.below(20))));
  }
  return coded;
}

bool same(const VectorFormat& format,
          std::uint32_t dim,
          const CodedVector& a,
          const CodedVector& b) {
  bool equal = true;
  for (std::uint32_t i = 0; i < dim; ++i) equal = equal && a.codes[i] == b.codes[i];
  for (std::uint32_t m = 0; m < meta_count(format, dim); ++m)
    equal = equal && a.meta[m] == b.meta[m];
  return equal;
}

TEST_CASE("random codes and metadata come back for every format and head dim", "[codec][vector]") {
  test::Rng rng(71);
  INFO(rng.describe());
  test::FirstFailure failures;
  for (std::uint32_t dim = 16; dim <= 256; dim += 16) {
    for (const VectorFormat& format : test::formats_of(dim)) {
      if (format.is_float()) continue;
      test::CodedRows rows(format, dim, kCount);
      std::vector<CodedVector> stored;
      for (std::uint32_t i = 0; i < kCount; ++i) {
        stored.push_back(random_coded(format, dim, rng));
        store_coded(format, dim, stored.back(), rows.slot(i));
      }
      for (std::uint32_t i = 0; i < kCount; ++i) {  // after all are written: none hurt another
        CodedVector back = {};
        load_coded(format, dim, rows.const_slot(i), back);
        failures.check(same(format, dim, stored[i], back), test::describe(format), " dim ", dim);
      }
      failures.check(rows.guards_intact(), "guards, ", test::describe(format), " dim ", dim);
    }
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("decoded values are scale, level and zero in double", "[codec][vector]") {
  test::Rng rng(72);
  INFO(rng.describe());
  test::FirstFailure failures;
  for (const std::uint32_t dim : test::kHeadDims) {
    for (const VectorFormat& format : test::formats_of(dim)) {
      if (format.is_float()) continue;
      const std::uint32_t size = format.group == 0 ? dim : format.group;
      test::CodedRows rows(format, dim, kCount);
      const CodedVector coded = random_coded(format, dim, rng);
      store_coded(format, dim, coded, rows.slot(2));
      float x[kMaxHeadDim];
      decode_vector(format, dim, rows.const_slot(2), x);
      for (std::uint32_t i = 0; i < dim; ++i) {
        const std::uint32_t g = i / size;
        double product = 0.0;
        double zero = 0.0;
        if (format.grid == Grid::kAffine) {
          product = test::half_value(coded.meta[2 * g]) * coded.codes[i];
          zero = test::half_value(coded.meta[2 * g + 1]);
        } else {
          product = test::half_value(coded.meta[g]) *
                    static_cast<double>(symmetric_level(format.grid, format.bits, coded.codes[i]));
        }
        const double bound = test::affine_value_rounding(product, product + zero);
        failures.check(std::fabs(x[i] - (product + zero)) <= bound,
                       test::describe(format),
                       " dim ",
                       dim,
                       " element ",
                       i);
      }
    }
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("a vector is encoded group by group, with metadata strided over vectors",
          "[codec][vector]") {
  test::Rng rng(73);
  INFO(rng.describe());
  for (const std::uint32_t dim : test::kHeadDims) {
    for (const VectorFormat& format : test::formats_of(dim)) {
      if (format.is_float()) continue;
      INFO(test::describe(format) << " dim " << dim);
      const std::uint32_t size = format.group == 0 ? dim : format.group;
      std::vector<float> x = rng.normals(dim, 2.0f, 1.0f);
      for (std::uint32_t i = 0; i < dim; ++i) x[i] *= static_cast<float>(1 + i / size);
      test::CodedRows rows(format, dim, kCount);
      CodecEvents events;
      encode_vector(format, dim, x.data(), rows.slot(3), events);
      CodedVector back = {};
      load_coded(format, dim, rows.const_slot(3), back);
      for (std::uint32_t g = 0; g < dim / size; ++g) {
        std::vector<std::uint8_t> codes(size);
        const float* group = x.data() + g * size;
        if (format.grid == Grid::kAffine) {
          const AffineMeta meta = affine_encode(group, size, format.bits, codes.data(), events);
          REQUIRE(rows.meta()[2 * g * kCount + 3] == meta.scale);
          REQUIRE(rows.meta()[(2 * g + 1) * kCount + 3] == meta.zero);
        } else {
          const std::uint16_t scale =
              symmetric_encode(group, size, format.grid, format.bits, codes.data(), events);
          REQUIRE(rows.meta()[g * kCount + 3] == scale);
        }
        for (std::uint32_t i = 0; i < size; ++i) REQUIRE(back.codes[g * size + i] == codes[i]);
      }
      REQUIRE(rows.guards_intact());
    }
  }
}

TEST_CASE("a slot that is written leaves all other vectors alone", "[codec][vector]") {
  test::Rng rng(74);
  INFO(rng.describe());
  for (const VectorFormat& format : test::formats_of(64)) {
    INFO(test::describe(format));
    test::CodedRows before(format, 64, kCount);
    CodecEvents events;
    for (std::uint32_t i = 0; i < kCount; ++i) {
      const std::vector<float> x = rng.normals(64);
      encode_vector(format, 64, x.data(), before.slot(i), events);
    }
    test::CodedRows after = before;
    const std::vector<float> x = rng.normals(64, 5.0f);
    encode_vector(format, 64, x.data(), after.slot(1), events);
    for (std::uint32_t i = 0; i < kCount; ++i) {
      float a[64];
      float b[64];
      decode_vector(format, 64, before.const_slot(i), a);
      decode_vector(format, 64, after.const_slot(i), b);
      REQUIRE(std::equal(a, a + 64, b) == (i != 1));
    }
    REQUIRE(after.guards_intact());
  }
}

TEST_CASE("16-bit rows hold the nearest 16-bit floats", "[codec][vector]") {
  test::Rng rng(75);
  INFO(rng.describe());
  for (const std::uint32_t dim : {16u, 80u, 256u}) {
    for (const VectorFormat& format : test::formats_of(dim)) {
      if (!format.is_float()) continue;
      const std::vector<float> x = rng.normals(dim, 10.0f);
      test::CodedRows rows(format, dim, 2);
      CodecEvents events;
      encode_vector(format, dim, x.data(), rows.slot(1), events);
      std::vector<float> y(dim);
      decode_vector(format, dim, rows.const_slot(1), y.data());
      const test::Float16Values& values =
          format.grid == Grid::kF16 ? test::half_values() : test::bfloat_values();
      for (std::uint32_t i = 0; i < dim; ++i) REQUIRE(y[i] == values.nearest_even(x[i]));
      REQUIRE(events.saturated == 0);
      REQUIRE(rows.guards_intact());
    }
  }
}

TEST_CASE("f16 rows saturate and count, bf16 rows keep their range", "[codec][vector]") {
  const float most = std::numeric_limits<float>::max();
  std::vector<float> x(16, 1.0f);
  x[2] = 65504.0f;
  x[3] = 65510.0f;  // nearest half is 65504, yet it lies beyond
  x[4] = -1e6f;
  x[5] = most;
  x[6] = -most;
  for (const VectorFormat& format : test::formats_of(16)) {
    if (!format.is_float()) continue;
    test::CodedRows rows(format, 16, 1);
    CodecEvents events;
    encode_vector(format, 16, x.data(), rows.slot(0), events);
    float y[16];
    decode_vector(format, 16, rows.const_slot(0), y);
    for (const float v : y) REQUIRE(is_finite(v));
    if (format.grid == Grid::kF16) {
      REQUIRE(events.saturated == 4);
      REQUIRE(y[3] == 65504.0f);
      REQUIRE(y[4] == -65504.0f);
      REQUIRE(y[5] == 65504.0f);
      REQUIRE(y[6] == -65504.0f);
    } else {
      REQUIRE(events.saturated == 0);
      REQUIRE(y[4] == test::bfloat_values().nearest_even(-1e6));
      REQUIRE(y[5] == test::bfloat_values().largest());
      REQUIRE(y[6] == -test::bfloat_values().largest());
    }
  }
}

}  // namespace
}  // namespace quire
