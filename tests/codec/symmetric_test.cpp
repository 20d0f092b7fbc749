// Tables and codes of the symmetric grids. Oracle: numerical integration over the normal density
// (support/codec_normal.hpp), distortions published for Lloyd-Max quantizers of a unit normal, and
// search for the nearest level.
#include "quire/codec/symmetric.hpp"

#include <cmath>
#include <vector>

#include "support/catch.hpp"
#include "support/codec_check.hpp"
#include "support/codec_normal.hpp"
#include "support/codec_tolerance.hpp"
#include "support/gen.hpp"

namespace quire {
namespace {

struct GridWidth {
  Grid grid;
  std::uint32_t bits;
  double distortion;  // published squared error on a unit normal; 0: none published
};

constexpr GridWidth kGrids[] = {
    {Grid::kSymmetricTable, 2, 0.117482},
    {Grid::kSymmetricTable, 3, 0.034548},
    {Grid::kSymmetricTable, 4, 0.009501},
    {Grid::kSymmetricUniform, 2, 0.118846},
    {Grid::kSymmetricUniform, 3, 0.037440},
    {Grid::kSymmetricUniform, 4, 0.011543},
    {Grid::kSymmetricUniform, 6, 0.0},
};

test::HalfGrid best_grid(const GridWidth& g) {
  return g.grid == Grid::kSymmetricTable
             ? test::lloyd_max_by_iteration(g.bits)
             : test::uniform_grid(g.bits, test::best_uniform_step(g.bits));
}

float level(const GridWidth& g, unsigned code) { return symmetric_level(g.grid, g.bits, code); }

TEST_CASE("the Lloyd-Max tables are what Lloyd's iteration converges to", "[codec][symmetric]") {
  for (const std::uint32_t bits : {2u, 3u, 4u}) {
    const LloydMax table = lloyd_max(bits);
    const test::HalfGrid expected = test::lloyd_max_by_iteration(bits);
    REQUIRE(expected.level.size() == std::size_t{1} << (bits - 1));
    for (std::size_t i = 0; i < expected.level.size(); ++i) {
      INFO("bits " << bits << " level " << i);
      REQUIRE(std::fabs(table.level[i] - expected.level[i]) <= test::kTableAgreement);
    }
    for (std::size_t i = 0; i < expected.border.size(); ++i) {
      INFO("bits " << bits << " border " << i);
      REQUIRE(std::fabs(table.border[i] - expected.border[i]) <= test::kTableAgreement);
    }
  }
}

TEST_CASE("the uniform steps are those of least squared error", "[codec][symmetric]") {
  for (const std::uint32_t bits : {2u, 3u, 4u, 6u}) {
    INFO("bits " << bits);
    REQUIRE(std::fabs(symmetric_step(bits) - test::best_uniform_step(bits)) <=
            test::kTableAgreement);
  }
}

TEST_CASE("levels ascend with the code, are odd around zero and equal the computed ones",
          "[codec][symmetric]") {
  for (const GridWidth& g : kGrids) {
    const unsigned count = 1u << g.bits;
    const test::HalfGrid expected = best_grid(g);
    // The step's own tolerance counts once per step from the middle.
    const double tolerance =
        test::kTableAgreement * (g.grid == Grid::kSymmetricUniform ? count : 1);
    for (unsigned code = 0; code < count; ++code) {
      INFO("grid " << static_cast<int>(g.grid) << " bits " << g.bits << " code " << code);
      REQUIRE(level(g, code) == -level(g, count - 1 - code));
      if (code > 0) REQUIRE(level(g, code) > level(g, code - 1));
      if (code >= count / 2) {
        REQUIRE(std::fabs(level(g, code) - expected.level[code - count / 2]) <= tolerance);
      }
    }
  }
}

TEST_CASE("the distortion on a unit normal is the computed and the printed one",
          "[codec][symmetric]") {
  for (const GridWidth& g : kGrids) {
    INFO("grid " << static_cast<int>(g.grid) << " bits " << g.bits);
    // Through the encoder and decoder of the library. The squared error has no jumps at borders
    // (only kinks), so a fine trapezoid rule is exact to its step squared.
    constexpr int kPoints = 400000;
    constexpr double kStep = 2.0 * test::kNormalEnd / kPoints;
    double distortion = 0.0;
    for (int i = 0; i < kPoints; ++i) {
      const double x = -test::kNormalEnd + (i + 0.5) * kStep;
      const float fp32 = static_cast<float>(x);
      const double error = x - level(g, symmetric_code(g.grid, g.bits, fp32, 1.0f));
      distortion += kStep * test::normal_density(x) * error * error;
    }
    REQUIRE(std::fabs(distortion - best_grid(g).distortion()) <= test::kTableAgreement);
    if (g.distortion > 0.0) {
      REQUIRE(std::fabs(distortion - g.distortion) <= test::kTableAgreement);
    }
  }
}

TEST_CASE("every element gets the nearest level", "[codec][symmetric]") {
  test::Rng rng(31);
  INFO(rng.describe());
  test::FirstFailure failures;
  for (const GridWidth& g : kGrids) {
    const unsigned count = 1u << g.bits;
    for (int i = 0; i < 20000; ++i) {
      const float scale = std::ldexp(1.0f + static_cast<float>(rng.uniform()),
                                     static_cast<int>(rng.below(40)) - 20);
      const float x = 1.5f * rng.normal() * scale;
      const unsigned code = symmetric_code(g.grid, g.bits, x, 1.0f / scale);
      const double position = static_cast<double>(x) / scale;
      double nearest = 1e9;
      for (unsigned c = 0; c < count; ++c)
        nearest = std::fmin(nearest, std::fabs(level(g, c) - position));
      const double distance = code < count ? std::fabs(level(g, code) - position) : 1e9;
      const double rounding = 2.0 * test::kSymmetricCodeRounding * std::fabs(position);
      failures.check(distance <= nearest + rounding, "x ", x, " scale ", scale, " code ", code);
    }
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("far elements get the outermost level", "[codec][symmetric]") {
  for (const GridWidth& g : kGrids) {
    const unsigned most = (1u << g.bits) - 1u;
    INFO("grid " << static_cast<int>(g.grid) << " bits " << g.bits);
    for (const float x : {4.0f, 100.0f, 65504.0f, 1e30f}) {
      REQUIRE(symmetric_code(g.grid, g.bits, x, 1.0f) == most);
      REQUIRE(symmetric_code(g.grid, g.bits, -x, 1.0f) == 0);
    }
  }
}

TEST_CASE("a value on a border goes outward on the uniform grid and inward on the table",
          "[codec][symmetric]") {
  for (const std::uint32_t bits : {2u, 3u, 4u, 6u}) {
    const int half = 1 << (bits - 1);
    for (int k = 1; k < half; ++k) {
      // A power of two of the step, so that the quotient is exact.
      if ((k & (k - 1)) != 0) continue;
      const float border = static_cast<float>(k) * symmetric_step(bits);
      INFO("bits " << bits << " border " << k);
      REQUIRE(symmetric_code(Grid::kSymmetricUniform, bits, border, 1.0f) == half + k);
      REQUIRE(symmetric_code(Grid::kSymmetricUniform, bits, -border, 1.0f) == half - 1 - k);
    }
  }
  for (const std::uint32_t bits : {2u, 3u, 4u}) {
    const int half = 1 << (bits - 1);
    for (int k = 0; k + 1 < half; ++k) {
      const float border = lloyd_max(bits).border[k];
      INFO("bits " << bits << " border " << k);
      REQUIRE(symmetric_code(Grid::kSymmetricTable, bits, border, 1.0f) == half + k);
      REQUIRE(symmetric_code(Grid::kSymmetricTable, bits, -border, 1.0f) == half - 1 - k);
      const float above = std::nextafter(border, 9.0f);
      REQUIRE(symmetric_code(Grid::kSymmetricTable, bits, above, 1.0f) == half + k + 1);
    }
  }
}

TEST_CASE("zero of either sign is the smallest positive level", "[codec][symmetric]") {
  for (const GridWidth& g : kGrids) {
    const unsigned half = 1u << (g.bits - 1);
    REQUIRE(symmetric_code(g.grid, g.bits, 0.0f, 1.0f) == half);
    REQUIRE(symmetric_code(g.grid, g.bits, -0.0f, 1.0f) == half);
  }
}

TEST_CASE("the lane sum adds products in double, whatever their order of magnitude",
          "[codec][symmetric]") {
  test::Rng rng(32);
  INFO(rng.describe());
  for (const std::uint32_t count : {1u, 7u, 8u, 9u, 64u, 256u}) {
    LaneSum sum;
    long double expected = 0.0L;
    long double size = 0.0L;
    for (std::uint32_t i = 0; i < count; ++i) {
      const float a = rng.normal() * std::ldexp(1.0f, static_cast<int>(rng.below(30)));
      const float b = rng.normal();
      sum.add(i, a, b);
      expected += static_cast<long double>(a) * static_cast<long double>(b);
      size += std::fabs(static_cast<long double>(a) * static_cast<long double>(b));
    }
    const auto error = std::fabs(static_cast<long double>(sum.total()) - expected);
    INFO("count " << count);
    REQUIRE(error <= static_cast<long double>(count) * 0x1.0p-53L * size);
  }
}

}  // namespace
}  // namespace quire
