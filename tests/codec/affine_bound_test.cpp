// The affine grid on random vectors. Oracle: the slow encoder in double
// (support/codec_reference.hpp) and the promise of the format: no code clamps, no element is off by
// more than half a step.
#include <algorithm>
#include <cmath>
#include <vector>

#include "quire/codec/demote.hpp"
#include "quire/codec/vector_codec.hpp"
#include "support/catch.hpp"
#include "support/codec_check.hpp"
#include "support/codec_reference.hpp"
#include "support/codec_rows.hpp"
#include "support/gen.hpp"

namespace quire {
namespace {

constexpr std::uint32_t kWidths[] = {8, 6, 4, 3, 2};

struct Shape {
  VectorFormat format;
  std::uint32_t dim;
};

std::vector<Shape> affine_shapes() {
  std::vector<Shape> shapes;
  for (const std::uint32_t dim : test::kHeadDims) {
    for (const VectorFormat& format : test::formats_of(dim)) {
      if (format.grid == Grid::kAffine) shapes.push_back({format, dim});
    }
  }
  return shapes;
}

// Scales from 1e-7 to 1e5, means up to a few thousand scales, now and then values on a coarse
// lattice so that ties happen.
std::vector<float> random_vector(std::uint32_t dim, test::Rng& rng) {
  const double scale = std::pow(10.0, 12.0 * rng.uniform() - 7.0);
  const double spread = std::pow(10.0, 4.0 * rng.uniform() - 1.0);
  const double mean = rng.below(3) == 0 ? 0.0 : scale * spread * rng.normal();
  const bool lattice = rng.below(4) == 0;
  std::vector<float> x(dim);
  for (float& v : x) {
    double value = mean + scale * rng.normal();
    if (lattice) value = scale * std::nearbyint(value / scale * 4.0) / 4.0;
    v = static_cast<float>(value);
  }
  return x;
}

// One group against the slow encoder: metadata bit by bit, every code the nearest one.
void check_group(const float* x,
                 std::uint32_t count,
                 std::uint32_t bits,
                 const std::uint8_t* codes,
                 const std::uint16_t* meta,
                 test::FirstFailure& failures) {
  const test::AffineReference r = test::affine_reference(x, count, bits);
  const double scale = test::half_value(meta[0]);
  const double zero = test::half_value(meta[1]);
  failures.check(scale == r.scale, "scale ", scale, " expected ", r.scale);
  failures.check(zero == r.zero, "zero ", zero, " expected ", r.zero);
  const double most = (1u << bits) - 1u;
  for (std::uint32_t i = 0; i < count; ++i) {
    const double rounding = test::affine_code_rounding(r.position[i]);
    failures.check(r.position[i] <= most + 0.5 && codes[i] <= most,
                   "clamped: position ",
                   r.position[i],
                   " bits ",
                   bits);
    failures.check(test::is_nearest_code(codes[i], r.position[i], rounding),
                   "code ",
                   int{codes[i]},
                   " for position ",
                   r.position[i]);
  }
}

TEST_CASE("no affine code clamps and none is off by more than half a step",
          "[codec][affine][bound]") {
  test::Rng rng(21);
  INFO(rng.describe());
  test::FirstFailure failures;
  for (const Shape& s : affine_shapes()) {
    for (int repeat = 0; repeat < 2400; ++repeat) {
      const std::vector<float> x = random_vector(s.dim, rng);
      CodedVector coded;
      CodecEvents events;
      encode_integers(s.format, s.dim, x.data(), coded, events);
      const std::uint32_t size = group_size(s.format, s.dim);
      std::uint64_t saturated = 0;
      for (std::uint32_t g = 0; g < s.dim / size; ++g) {
        const float* group = x.data() + g * size;
        check_group(
            group, size, s.format.bits, coded.codes + g * size, coded.meta + 2 * g, failures);
        saturated += test::affine_reference(group, size, s.format.bits).saturated;
      }
      failures.check(events.saturated == saturated, "saturated ", events.saturated);
    }
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("what is decoded is off by at most half a step and the fp32 roundings",
          "[codec][affine][bound]") {
  test::Rng rng(22);
  INFO(rng.describe());
  test::FirstFailure failures;
  for (const Shape& s : affine_shapes()) {
    test::CodedRows rows(s.format, s.dim, 1);
    const std::uint32_t size = group_size(s.format, s.dim);
    for (int repeat = 0; repeat < 400; ++repeat) {
      const std::vector<float> x = random_vector(s.dim, rng);
      CodecEvents events;
      float y[kMaxHeadDim];
      encode_vector(s.format, s.dim, x.data(), rows.slot(0), events);
      decode_vector(s.format, s.dim, rows.const_slot(0), y);
      for (std::uint32_t i = 0; i < s.dim; ++i) {
        const std::uint32_t g = i / size;
        const double step = test::half_value(rows.meta()[2 * g]);
        const double zero = test::half_value(rows.meta()[2 * g + 1]);
        const double limit = test::half_values().largest();
        const double inside = std::clamp(static_cast<double>(x[i]), -limit, limit);
        const double bound = 0.5 * step + test::affine_code_rounding(inside - zero) +
                             test::affine_value_rounding(inside - zero + step, y[i]);
        failures.check(std::fabs(y[i] - inside) <= bound,
                       test::describe(s.format),
                       " x ",
                       inside,
                       " y ",
                       y[i],
                       " step ",
                       step);
      }
    }
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE(
    "zero never rounds above the smallest element and scale is the least that reaches the top",
    "[codec][affine][bound]") {
  test::Rng rng(23);
  INFO(rng.describe());
  test::FirstFailure failures;
  for (const std::uint32_t bits : kWidths) {
    const double steps = (1u << bits) - 1u;
    for (int repeat = 0; repeat < 20000; ++repeat) {
      std::vector<float> x = random_vector(16, rng);
      for (float& v : x) v = std::clamp(v, -kHalfMax, kHalfMax);
      const auto [low, high] = std::minmax_element(x.begin(), x.end());
      const AffineMeta meta = affine_meta(*low, *high, bits);
      const double zero = test::half_value(meta.zero);
      const double scale = test::half_value(meta.scale);
      failures.check(zero <= *low, "zero ", zero, " above ", *low);
      // Real numbers may ask for a hair more than fp32 computed.
      const double asked = (*high - zero) / steps;
      failures.check(scale >= asked * (1.0 - 2.0 * test::kFloatEps), "scale ", scale, asked);
      const double next = half_to_float(static_cast<std::uint16_t>(meta.scale - 1));
      if (meta.scale > 0) {
        failures.check(next < asked * (1.0 + 2.0 * test::kFloatEps), "not the least: ", scale);
      }
    }
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

// The five pairs with an integer quotient.
constexpr std::uint32_t kQuotients[][2] = {{8, 4}, {8, 2}, {6, 3}, {6, 2}, {4, 2}};

TEST_CASE("demotion by integer quotient stays within half a step and the rounding of the scale",
          "[codec][affine][demote][bound]") {
  test::Rng rng(24);
  INFO(rng.describe());
  test::FirstFailure failures;
  for (const auto& q : kQuotients) {
    const VectorFormat from = {Grid::kAffine, q[0], 0, 0};
    const VectorFormat to = {Grid::kAffine, q[1], 0, 0};
    REQUIRE(demotes_in_integers(from, to));
    const double ratio = affine_demotion_ratio(q[0], q[1]);
    for (int repeat = 0; repeat < 10000; ++repeat) {
      const std::vector<float> x = random_vector(32, rng);
      CodedVector high;
      CodedVector low;
      CodecEvents events;
      encode_integers(from, 32, x.data(), high, events);
      demote_integers(from, to, 32, high, low);
      const double old_step = test::half_value(high.meta[0]);
      const double step = test::half_value(low.meta[0]);
      const double zero = test::half_value(low.meta[1]);
      failures.check(low.meta[1] == high.meta[1], "the zero moved");
      failures.check(step == test::half_values().nearest_even(ratio * old_step), "step ", step);
      const double bound = test::demotion_bound(std::max(step, ratio * old_step), q[1]);
      for (std::uint32_t i = 0; i < 32; ++i) {
        const double before = zero + high.codes[i] * old_step;
        const double after = zero + low.codes[i] * step;
        failures.check(low.codes[i] < 1u << q[1] && std::fabs(before - after) <= bound,
                       q[0],
                       " to ",
                       q[1],
                       " before ",
                       before,
                       " after ",
                       after);
      }
    }
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("every code of every integer quotient goes to the nearest code", "[codec][demote]") {
  for (const std::uint32_t from : kWidths) {
    for (const std::uint32_t to : kWidths) {
      const unsigned all = (1u << from) - 1u;
      const unsigned few = (1u << to) - 1u;
      INFO(from << " to " << to);
      const bool whole = from > to && all % few == 0;
      REQUIRE(affine_demotes_in_integers(from, to) == whole);
      if (!whole) continue;
      REQUIRE(affine_demotion_ratio(from, to) == all / few);
      CodedVector in = {};
      CodedVector out = {};
      for (unsigned q = 0; q <= all; ++q) in.codes[q] = static_cast<std::uint8_t>(q);
      demote_integers({Grid::kAffine, from, 0, 0}, {Grid::kAffine, to, 0, 0}, 256, in, out);
      for (unsigned q = 0; q <= all; ++q) {
        REQUIRE(out.codes[q] == std::lround(static_cast<double>(q) * few / all));
      }
    }
  }
}

}  // namespace
}  // namespace quire
