// Groups on the symmetric grids: two assignment passes and the unbiased scale. Oracle: the slow
// encoder in double (support/codec_reference.hpp), written from the formulas in
// docs/numerics.md; and what unbiased means: a decoded vector's share of itself is 1.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "quire/codec/transform.hpp"
#include "quire/codec/vector_codec.hpp"
#include "support/catch.hpp"
#include "support/codec_check.hpp"
#include "support/codec_models.hpp"
#include "support/codec_reference.hpp"
#include "support/codec_rows.hpp"
#include "support/gen.hpp"

namespace quire {
namespace {

std::vector<VectorFormat> symmetric_formats(std::uint32_t dim) {
  std::vector<VectorFormat> all = test::formats_of(dim);
  all.erase(std::remove_if(
                all.begin(), all.end(), [](const VectorFormat& f) { return !f.is_symmetric(); }),
            all.end());
  return all;
}

// The library's own levels, which symmetric_test.cpp compares with integration.
test::HalfGrid grid_of(const VectorFormat& format) {
  std::vector<double> level;
  for (unsigned code = 1u << (format.bits - 1); code < 1u << format.bits; ++code) {
    level.push_back(symmetric_level(format.grid, format.bits, code));
  }
  return test::HalfGrid(level);
}

// The scale as a half: rounded to fp32, then to nearest even.
double stored_scale(double scale) {
  return test::half_values().nearest_even(static_cast<float>(scale));
}

std::vector<float> coded_and_back(const VectorFormat& format,
                                  std::uint32_t dim,
                                  const float* x,
                                  CodecEvents& events) {
  CodedVector coded;
  std::vector<float> y(dim);
  encode_integers(format, dim, x, coded, events);
  decode_integers(format, dim, coded, y.data());
  return y;
}

double dot(const float* a, const float* b, std::uint32_t n) {
  double sum = 0.0;
  for (std::uint32_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

TEST_CASE("codes and scale are those of the slow encoder, bit by bit", "[codec][symmetric]") {
  test::Rng rng(41);
  INFO(rng.describe());
  test::FirstFailure failures;
  std::uint64_t doubtful = 0;
  std::uint64_t groups = 0;
  for (const std::uint32_t dim : test::kHeadDims) {
    for (const VectorFormat& format : symmetric_formats(dim)) {
      const test::HalfGrid grid = grid_of(format);
      const std::uint32_t size = group_size(format, dim);
      for (int repeat = 0; repeat < 100; ++repeat) {
        const float scale = std::pow(10.0f, 8.0f * static_cast<float>(rng.uniform()) - 4.0f);
        const std::vector<float> x = rng.normals(dim, scale, rng.below(2) == 0 ? 0.0f : scale);
        CodedVector coded;
        CodecEvents events;
        encode_integers(format, dim, x.data(), coded, events);
        for (std::uint32_t g = 0; g < dim / size; ++g, ++groups) {
          const test::SymmetricReference r =
              test::symmetric_reference(x.data() + g * size, size, grid);
          if (r.doubtful) {
            ++doubtful;
            continue;
          }
          const std::vector<std::uint8_t> codes(coded.codes + g * size,
                                                coded.codes + (g + 1) * size);
          failures.check(codes == r.codes, test::describe(format), " codes, dim ", dim);
          failures.check(test::half_value(coded.meta[g]) == stored_scale(r.scale),
                         test::describe(format),
                         " scale ",
                         test::half_value(coded.meta[g]),
                         " expected ",
                         r.scale);
        }
      }
    }
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
  REQUIRE(doubtful * 100 < groups);  // the comparison was made on nearly all
}

TEST_CASE("the decoded vector's share of the vector is one up to the rounding of the scale",
          "[codec][symmetric]") {
  test::Rng rng(42);
  INFO(rng.describe());
  test::FirstFailure failures;
  for (const std::uint32_t dim : {64u, 128u, 256u}) {
    for (const VectorFormat& format : symmetric_formats(dim)) {
      const std::uint32_t size = group_size(format, dim);
      for (int repeat = 0; repeat < 100; ++repeat) {
        const std::vector<float> x = rng.normals(dim, 3.0f);
        CodecEvents events;
        const std::vector<float> y = coded_and_back(format, dim, x.data(), events);
        for (std::uint32_t at = 0; at < dim; at += size) {
          const double share =
              dot(x.data() + at, y.data() + at, size) / dot(x.data() + at, x.data() + at, size);
          failures.check(std::fabs(share - 1.0) <= test::kHalfEps + 4.0 * test::kFloatEps,
                         test::describe(format),
                         " share ",
                         share);
        }
      }
    }
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("scores against decoded keys have slope one", "[codec][symmetric][unbiased]") {
  constexpr std::uint32_t kDim = 128;
  constexpr std::uint32_t kKeys = 2048;
  constexpr std::uint32_t kQueries = 96;
  test::Rng rng(43);
  INFO(rng.describe());
  const test::Vectors keys = test::make_vectors(test::DataModel::kG, kKeys, kDim, rng);
  const std::vector<float> queries = rng.normals(std::size_t{kQueries} * kDim);
  for (const VectorFormat& format : symmetric_formats(kDim)) {
    if (format.group != 0) continue;
    double cross = 0.0;
    double power = 0.0;
    for (std::uint32_t i = 0; i < kKeys; ++i) {
      std::vector<float> key(keys.row(i), keys.row(i) + kDim);
      rotate(5, kDim, key.data());
      CodecEvents events;
      std::vector<float> y = coded_and_back(format, kDim, key.data(), events);
      rotate_back(5, kDim, y.data());
      for (std::uint32_t q = 0; q < kQueries; ++q) {
        const float* query = queries.data() + std::size_t{q} * kDim;
        const double exact = dot(query, keys.row(i), kDim);
        cross += exact * dot(query, y.data(), kDim);
        power += exact * exact;
      }
    }
    INFO(test::describe(format) << " slope " << cross / power);
    REQUIRE(std::fabs(cross / power - 1.0) <= test::kUnbiasedSlope);
  }
}

// A fixed key and a fixed query: one rotation may be wrong by much, the mean over rotations may
// not. Least squares would shrink the mean by the distortion.
TEST_CASE("the mean over rotations of a decoded score is the exact score",
          "[codec][symmetric][unbiased]") {
  constexpr std::uint32_t kDim = 128;
  constexpr std::uint32_t kRotations = 4000;
  test::Rng rng(45);
  INFO(rng.describe());
  const std::vector<float> key = rng.normals(kDim);
  std::vector<float> query = rng.normals(kDim);
  for (std::uint32_t i = 0; i < kDim; ++i) query[i] += 0.5f * key[i];
  const double exact = dot(query.data(), key.data(), kDim);
  for (const VectorFormat& format : symmetric_formats(kDim)) {
    if (format.group != 0) continue;
    double sum = 0.0;
    double squares = 0.0;
    for (std::uint32_t seed = 0; seed < kRotations; ++seed) {
      std::vector<float> x = key;
      rotate(seed, kDim, x.data());
      CodecEvents events;
      std::vector<float> y = coded_and_back(format, kDim, x.data(), events);
      rotate_back(seed, kDim, y.data());
      const double score = dot(query.data(), y.data(), kDim);
      sum += score;
      squares += score * score;
    }
    const double mean = sum / kRotations;
    const double variance = squares / kRotations - mean * mean;
    INFO(test::describe(format) << " mean " << mean << " exact " << exact);
    REQUIRE(std::fabs(mean - exact) <=
            5.0 * std::sqrt(variance / kRotations) + test::kHalfEps * std::fabs(exact));
  }
}

TEST_CASE("a vector of zeros has scale zero and decodes to zeros", "[codec][symmetric]") {
  for (const std::uint32_t dim : {16u, 128u}) {
    for (const VectorFormat& format : symmetric_formats(dim)) {
      for (const float zero : {0.0f, -0.0f}) {
        const std::vector<float> x(dim, zero);
        CodedVector coded;
        CodecEvents events;
        encode_integers(format, dim, x.data(), coded, events);
        std::vector<float> y(dim, 1.0f);
        decode_integers(format, dim, coded, y.data());
        INFO(test::describe(format));
        for (std::uint32_t g = 0; g < meta_count(format, dim); ++g) REQUIRE(coded.meta[g] == 0);
        for (const float v : y) REQUIRE(v == 0.0f);
        REQUIRE(events.saturated == 0);
      }
    }
  }
}

TEST_CASE("vectors too small for the scale decode to small finite numbers", "[codec][symmetric]") {
  // Below 2^-25 the scale is zero; 1 / rms does not fit fp32 for the smallest.
  for (const float tiny : {1e-8f,
                           1e-30f,
                           std::numeric_limits<float>::min(),
                           1e-40f,
                           std::numeric_limits<float>::denorm_min()}) {
    for (const VectorFormat& format : symmetric_formats(64)) {
      std::vector<float> x(64, 0.0f);
      for (std::size_t i = 0; i < x.size(); i += 3) x[i] = i % 2 == 0 ? tiny : -tiny;
      CodecEvents events;
      const std::vector<float> y = coded_and_back(format, 64, x.data(), events);
      INFO(test::describe(format) << " tiny " << tiny);
      for (const float v : y) {
        REQUIRE(is_finite(v));
        // The nearest scale is off by at most half of 2^-24, times the outermost level.
        REQUIRE(std::fabs(v) <= 4.0f * (tiny + std::ldexp(1.0f, -25)));
      }
      REQUIRE(events.saturated == 0);
    }
  }
}

TEST_CASE("the inverse of a scale is zero for a vector of zeros", "[codec][symmetric]") {
  REQUIRE(symmetric_inverse(1.0, 0.0) == 0.0f);
  REQUIRE(symmetric_inverse(1.0, 4.0) == 0.25f);
  REQUIRE(symmetric_inverse(3.0, 2.0) == 1.5f);
}

TEST_CASE("the inverse of a scale is a finite number, however small the vector",
          "[codec][symmetric]") {
  // The root mean square of fp32 subnormals: 1 / rms is beyond fp32, and infinity times an element
  // that is zero would be NaN.
  for (const double rms : {1e-39, 1e-42, 1e-45}) {
    INFO("root mean square " << rms);
    REQUIRE(is_finite(symmetric_inverse(1.0, rms)));
  }
}

TEST_CASE(
    "a one-hot vector comes back after rotation: zeros exactly, the one to the scale's rounding",
    "[codec][symmetric]") {
  for (const std::uint32_t dim : {16u, 64u, 128u, 256u}) {
    for (const VectorFormat& format : symmetric_formats(dim)) {
      for (const std::uint32_t hot : {0u, 7u, dim - 1}) {
        std::vector<float> x(dim, 0.0f);
        x[hot] = -3.7f;
        rotate(9, dim, x.data());
        CodecEvents events;
        std::vector<float> y = coded_and_back(format, dim, x.data(), events);
        rotate_back(9, dim, y.data());
        INFO(test::describe(format) << " dim " << dim << " hot " << hot);
        // All groups hold one magnitude, so all have one scale and the rest cancels exactly.
        for (std::uint32_t i = 0; i < dim; ++i) {
          if (i != hot) REQUIRE(y[i] == 0.0f);
        }
        const double relative = test::kHalfEps + test::rotation_relative(dim);
        REQUIRE(std::fabs(y[hot] + 3.7f) <= relative * 3.7);
      }
    }
  }
}

TEST_CASE("the negative vector has mirrored codes and the same scale", "[codec][symmetric]") {
  test::Rng rng(44);
  INFO(rng.describe());
  for (const std::uint32_t dim : {64u, 96u}) {
    for (const VectorFormat& format : symmetric_formats(dim)) {
      const std::vector<float> x = rng.normals(dim, 2.0f, 0.5f);
      std::vector<float> minus = x;
      for (float& v : minus) v = -v;
      CodedVector a;
      CodedVector b;
      CodecEvents events;
      encode_integers(format, dim, x.data(), a, events);
      encode_integers(format, dim, minus.data(), b, events);
      INFO(test::describe(format));
      const unsigned most = (1u << format.bits) - 1u;
      for (std::uint32_t i = 0; i < dim; ++i) REQUIRE(a.codes[i] + b.codes[i] == most);
      for (std::uint32_t g = 0; g < meta_count(format, dim); ++g) REQUIRE(a.meta[g] == b.meta[g]);
    }
  }
}

TEST_CASE("elements beyond fp16 saturate and are counted once each", "[codec][symmetric]") {
  const float huge = std::numeric_limits<float>::max();
  for (const VectorFormat& format : symmetric_formats(64)) {
    std::vector<float> x(64, 100.0f);
    x[0] = 65505.0f;
    x[33] = -huge;
    x[63] = 1e20f;
    std::vector<float> bent = x;
    bent[0] = kHalfMax;
    bent[33] = -kHalfMax;
    bent[63] = kHalfMax;
    CodecEvents events;
    CodecEvents none;
    const std::vector<float> y = coded_and_back(format, 64, x.data(), events);
    const std::vector<float> expected = coded_and_back(format, 64, bent.data(), none);
    INFO(test::describe(format));
    REQUIRE(events.saturated == 3);
    REQUIRE(none.saturated == 0);
    REQUIRE(y == expected);
    for (const float v : y) REQUIRE(is_finite(v));
  }
}

// Equal magnitudes at the top of fp16: the unbiased scale is the magnitude over its level, which
// may be less than 1, so the scale itself can leave fp16 although no element does.
TEST_CASE("a scale beyond fp16 is a counted event, not a silent one", "[codec][symmetric]") {
  for (const VectorFormat& format : symmetric_formats(64)) {
    std::vector<float> x(64, kHalfMax);
    CodecEvents events;
    const std::vector<float> y = coded_and_back(format, 64, x.data(), events);
    const bool exact = std::fabs(y[0] - x[0]) <= test::kHalfEps * kHalfMax;
    INFO(test::describe(format) << " decoded " << y[0]);
    REQUIRE((exact || events.saturated > 0));
  }
}

}  // namespace
}  // namespace quire
