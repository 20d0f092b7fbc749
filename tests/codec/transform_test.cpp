// The signed block Hadamard and the offset. Oracle: the matrix written out in double
// (H[i][j] = (-1)^popcount(i & j) on blocks, signs from channel_is_negative), and orthogonality.
#include "quire/codec/transform.hpp"

#include <bitset>
#include <cmath>
#include <vector>

#include "support/catch.hpp"
#include "support/codec_check.hpp"
#include "support/codec_float16.hpp"
#include "support/codec_tolerance.hpp"
#include "support/gen.hpp"

namespace quire {
namespace {

std::uint32_t largest_power_of_two_dividing(std::uint32_t dim) {
  std::uint32_t power = 1;
  while (dim % (2 * power) == 0) power *= 2;
  return power;
}

// Row i, column j of H S / sqrt(n).
double matrix(std::uint32_t seed, std::uint32_t dim, std::uint32_t i, std::uint32_t j) {
  const std::uint32_t n = largest_power_of_two_dividing(dim);
  if (i / n != j / n) return 0.0;
  const bool odd = std::bitset<32>((i % n) & (j % n)).count() % 2 != 0;
  const bool negative = odd != channel_is_negative(seed, j);
  return (negative ? -1.0 : 1.0) / std::sqrt(static_cast<double>(n));
}

double norm_of(const std::vector<float>& x) {
  return test::norm(x.data(), static_cast<std::int64_t>(x.size()));
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

TEST_CASE("two- and four-point Hadamard transforms are the textbook matrices",
          "[codec][transform]") {
  float two[2] = {3.0f, 5.0f};
  hadamard_blocks(2, two);
  const float root = 1.0f / std::sqrt(2.0f);
  REQUIRE(two[0] == 8.0f * root);
  REQUIRE(two[1] == -2.0f * root);
  const float expected[4][4] = {{1, 1, 1, 1}, {1, -1, 1, -1}, {1, 1, -1, -1}, {1, -1, -1, 1}};
  for (int column = 0; column < 4; ++column) {
    float four[4] = {};
    four[column] = 2.0f;  // 2 / sqrt(4) = 1
    hadamard_blocks(4, four);
    for (int row = 0; row < 4; ++row) REQUIRE(four[row] == expected[row][column]);
  }
}

TEST_CASE("the block is the largest power of two that divides the head dim", "[codec][transform]") {
  for (std::uint32_t dim = 16; dim <= 256; dim += 16) {
    INFO("dim " << dim);
    REQUIRE(hadamard_block(dim) == largest_power_of_two_dividing(dim));
  }
  REQUIRE(hadamard_block(80) == 16);
  REQUIRE(hadamard_block(96) == 32);
  REQUIRE(hadamard_block(192) == 64);
  REQUIRE(hadamard_block(256) == 256);
}

TEST_CASE("the rotation is the matrix, for every head dim", "[codec][transform]") {
  test::FirstFailure failures;
  for (std::uint32_t dim = 16; dim <= 256; dim += 16) {
    const double tolerance = test::rotation_tolerance(hadamard_block(dim), 1.0);
    for (std::uint32_t column = 0; column < dim; ++column) {
      std::vector<float> x(dim, 0.0f);
      x[column] = 1.0f;
      rotate(3, dim, x.data());
      for (std::uint32_t row = 0; row < dim; ++row) {
        const double expected = matrix(3, dim, row, column);
        failures.check(std::fabs(x[row] - expected) <= tolerance,
                       "dim ",
                       dim,
                       " row ",
                       row,
                       " column ",
                       column);
      }
    }
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("R times its transpose is the identity", "[codec][transform]") {
  test::FirstFailure failures;
  for (std::uint32_t dim = 16; dim <= 256; dim += 16) {
    std::vector<std::vector<float>> columns(dim, std::vector<float>(dim, 0.0f));
    for (std::uint32_t j = 0; j < dim; ++j) {
      columns[j][j] = 1.0f;
      rotate(71, dim, columns[j].data());
    }
    for (std::uint32_t i = 0; i < dim; ++i) {
      for (std::uint32_t j = i; j < dim; ++j) {
        const double product = dot(columns[i], columns[j]);
        failures.check(std::fabs(product - (i == j ? 1.0 : 0.0)) <= test::kOrthonormal,
                       "dim ",
                       dim,
                       " ",
                       i,
                       " ",
                       j);
      }
    }
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("norms and scores survive the rotation, and rotating back inverts it",
          "[codec][transform]") {
  test::Rng rng(61);
  INFO(rng.describe());
  test::FirstFailure failures;
  for (std::uint32_t dim = 16; dim <= 256; dim += 16) {
    const std::uint32_t block = hadamard_block(dim);
    const double relative = test::rotation_relative(block);
    REQUIRE(relative < 1e-5);  // far below any format's error
    for (std::uint32_t repeat = 0; repeat < 200; ++repeat) {
      const std::vector<float> q = rng.normals(dim, 1.0f);
      const std::vector<float> k = rng.normals(dim, 4.0f, 2.0f);
      std::vector<float> rq = q;
      std::vector<float> rk = k;
      rotate(repeat, dim, rq.data());
      rotate(repeat, dim, rk.data());
      const double bound = relative * norm_of(q) * norm_of(k);
      failures.check(std::fabs(dot(rq, rk) - dot(q, k)) <= bound, "score, dim ", dim);
      failures.check(std::fabs(norm_of(rk) / norm_of(k) - 1.0) <= relative, "norm, dim ", dim);
      rotate_back(repeat, dim, rk.data());
      const double back = 2.0 * test::rotation_tolerance(block, norm_of(k));
      for (std::uint32_t i = 0; i < dim; ++i) {
        failures.check(std::fabs(rk[i] - k[i]) <= back, "back, dim ", dim, " element ", i);
      }
    }
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

// The bytes of stored tokens depend on the signs: these words may never change.
TEST_CASE("the signs of a seed are frozen", "[codec][transform]") {
  const struct {
    std::uint32_t seed;
    std::uint64_t negative[4];  // bit c % 64 of word c / 64: channel c is negative
  } known[] = {
      {0x0u, {0xb103f415a2df7714u, 0xd535708d55d6717eu, 0xa49df7ceb9aca6bau, 0x3fdaff66cfce5cb6u}},
      {0x1u, {0x957871fcf5637987u, 0x313f20a73fe159f8u, 0xd18146e7d545f489u, 0xcab965c67b788231u}},
      {0x3039u,
       {0x85a38c9b179a4881u, 0x48224b30ffb56928u, 0xdae098c59431db94u, 0x3fcd77b22d9c04cbu}},
      {0xffffffffu,
       {0x8ac908b2de21590du, 0x8eba7a784ddedf29u, 0x2e94761151295244u, 0xd552c4395c6e8b71u}},
  };
  for (const auto& k : known) {
    for (std::uint32_t c = 0; c < 256; ++c) {
      INFO("seed " << k.seed << " channel " << c);
      REQUIRE(channel_is_negative(k.seed, c) == ((k.negative[c / 64] >> (c % 64)) % 2 != 0));
    }
  }
}

TEST_CASE("signs look like coin flips over seeds and over channels", "[codec][transform]") {
  constexpr std::uint32_t kSeeds = 4096;
  const auto sign = [](std::uint32_t seed, std::uint32_t c) {
    return channel_is_negative(seed, c) ? -1 : 1;
  };
  const double deviation = std::sqrt(static_cast<double>(kSeeds));
  const double limit = 6.0 * deviation;  // about 1,300 sums: 6 deviations by chance once in 400,000
  for (std::uint32_t c = 0; c < 256; ++c) {
    int sum = 0;
    int with_neighbour = 0;
    int with_next_seed = 0;
    for (std::uint32_t seed = 0; seed < kSeeds; ++seed) {
      sum += sign(seed, c);
      with_neighbour += sign(seed, c) * sign(seed, (c + 1) % 256);
      with_next_seed += sign(seed, c) * sign(seed + 1, c);
    }
    INFO("channel " << c);
    REQUIRE(std::abs(sum) <= limit);
    REQUIRE(std::abs(with_neighbour) <= limit);
    REQUIRE(std::abs(with_next_seed) <= limit);
  }
  for (std::uint32_t seed = 0; seed < 256; ++seed) {
    int sum = 0;
    for (std::uint32_t c = 0; c < 256; ++c) sum += sign(seed, c);
    INFO("seed " << seed);
    REQUIRE(std::abs(sum) <= 6.0 * 16.0);
  }
}

std::vector<std::uint16_t> random_offset(std::uint32_t dim, test::Rng& rng) {
  std::vector<std::uint16_t> offset(dim);
  for (auto& o : offset) o = float_to_half(3.0f * rng.normal());
  return offset;
}

TEST_CASE("what is stored is the rotated difference to the offset", "[codec][transform]") {
  test::Rng rng(62);
  INFO(rng.describe());
  for (const std::uint32_t dim : {16u, 80u, 128u}) {
    const std::vector<std::uint16_t> offset = random_offset(dim, rng);
    const std::vector<float> x = rng.normals(dim, 2.0f);
    for (std::uint32_t kind = 0; kind < 4; ++kind) {
      const HeadTransform transform = {kind, 77, offset.data()};
      std::vector<float> y = x;
      transform_stored(transform, dim, y.data());
      for (std::uint32_t i = 0; i < dim; ++i) {
        double expected = 0.0;
        double size = 0.0;
        for (std::uint32_t j = 0; j < dim; ++j) {
          const double shift = (kind & kTransformOffset) != 0 ? test::half_value(offset[j]) : 0.0;
          const double weight =
              (kind & kTransformHadamard) != 0 ? matrix(77, dim, i, j) : (i == j ? 1.0 : 0.0);
          expected += weight * (static_cast<double>(x[j]) - shift);
          size += (x[j] - shift) * (x[j] - shift);
        }
        INFO("dim " << dim << " kind " << kind << " element " << i);
        const double bound = test::rotation_tolerance(hadamard_block(dim), std::sqrt(size));
        REQUIRE(std::fabs(y[i] - expected) <= bound);
      }
      std::vector<float> back = y;
      transform_back(transform, dim, back.data());
      const double bound = 4.0 * test::rotation_tolerance(hadamard_block(dim), norm_of(y)) +
                           2.0 * test::kFloatEps * norm_of(x);
      for (std::uint32_t i = 0; i < dim; ++i) REQUIRE(std::fabs(back[i] - x[i]) <= bound);
    }
  }
}

TEST_CASE("the query is rotated, not shifted, and its constant makes scores true again",
          "[codec][transform]") {
  test::Rng rng(63);
  INFO(rng.describe());
  for (std::uint32_t dim = 16; dim <= 256; dim += 16) {
    const std::vector<std::uint16_t> offset = random_offset(dim, rng);
    std::vector<float> mean(dim);
    for (std::uint32_t i = 0; i < dim; ++i) mean[i] = half_to_float(offset[i]);
    for (std::uint32_t kind = 0; kind < 4; ++kind) {
      const HeadTransform transform = {kind, 5, offset.data()};
      const std::vector<float> q = rng.normals(dim);
      const std::vector<float> k = rng.normals(dim, 2.0f, 1.0f);
      std::vector<float> tq = q;
      std::vector<float> tk = k;
      const double constant = transform_query(transform, dim, tq.data());
      transform_stored(transform, dim, tk.data());
      INFO("dim " << dim << " kind " << kind);
      const double rounding = dim * test::kFloatEps * norm_of(q) * norm_of(mean);
      const double expected = (kind & kTransformOffset) != 0 ? dot(q, mean) : 0.0;
      REQUIRE(std::fabs(constant - expected) <= rounding);
      const double bound = (test::rotation_relative(hadamard_block(dim)) + 2.0 * test::kFloatEps) *
                           norm_of(q) * (norm_of(k) + norm_of(mean));
      REQUIRE(std::fabs(dot(tq, tk) + constant - dot(q, k)) <= bound + rounding);
      if ((kind & kTransformHadamard) == 0) REQUIRE(tq == q);
    }
  }
}

TEST_CASE("a transform without an offset vector subtracts nothing", "[codec][transform]") {
  test::Rng rng(64);
  INFO(rng.describe());
  const std::vector<float> x = rng.normals(32);
  const HeadTransform transform = {kTransformOffset, 1, nullptr};
  std::vector<float> y = x;
  transform_stored(transform, 32, y.data());
  REQUIRE(y == x);
  transform_back(transform, 32, y.data());
  REQUIRE(y == x);
  REQUIRE(transform_query(transform, 32, y.data()) == 0.0f);
  REQUIRE(y == x);
}

// An offset is only looked at when the kind says so.
TEST_CASE("an offset vector without the offset bit changes nothing", "[codec][transform]") {
  const std::vector<std::uint16_t> offset(16, 0x3c00);
  const HeadTransform transform = {kTransformNone, 1, offset.data()};
  std::vector<float> x(16, 2.0f);
  transform_stored(transform, 16, x.data());
  transform_back(transform, 16, x.data());
  REQUIRE(transform_query(transform, 16, x.data()) == 0.0f);
  REQUIRE(x == std::vector<float>(16, 2.0f));
}

}  // namespace
}  // namespace quire
