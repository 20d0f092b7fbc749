// Scalar quantizers of a unit normal by numerical integration: the tables and distortions that the
// symmetric formats promise are computed here, not copied.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace quire::test {

inline constexpr double kNormalEnd = 14.0;  // the density is below 1e-43 beyond

inline double normal_density(double x) {
  return std::exp(-0.5 * x * x) / std::sqrt(2.0 * 3.14159265358979323846);
}

inline double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

// Gauss-Legendre with 5 points on equal panels; exact to rounding for smooth f and short panels.
template <class FunctionT>
double integrate(double from, double to, int panels, FunctionT&& f) {
  constexpr double kNode[3] = {0.0, 0.5384693101056831, 0.9061798459386640};
  constexpr double kWeight[3] = {0.5688888888888889, 0.4786286704993665, 0.2369268850561891};
  const double half = 0.5 * (to - from) / panels;
  double sum = 0.0;
  for (int p = 0; p < panels; ++p) {
    const double middle = from + (2 * p + 1) * half;
    sum += kWeight[0] * f(middle);
    for (int i = 1; i < 3; ++i) {
      sum += kWeight[i] * (f(middle - kNode[i] * half) + f(middle + kNode[i] * half));
    }
  }
  return sum * half;
}

// The positive half of a symmetric quantizer: ascending levels, a border half-way between two.
struct HalfGrid {
  std::vector<double> level;
  std::vector<double> border;

  explicit HalfGrid(std::vector<double> levels) : level(std::move(levels)) {
    for (std::size_t i = 0; i + 1 < level.size(); ++i) {
      border.push_back(0.5 * (level[i] + level[i + 1]));
    }
  }

  double nearest(double x) const {  // with the sign of x
    const auto at = std::upper_bound(border.begin(), border.end(), std::fabs(x)) - border.begin();
    return std::copysign(level[static_cast<std::size_t>(at)], x);
  }

  // Integral of f(x, level of x) over x > 0, cell by cell: f is smooth inside a cell.
  template <class FunctionT>
  double over_cells(double end, FunctionT&& f) const {
    double sum = 0.0;
    for (std::size_t i = 0; i < level.size(); ++i) {
      const double from = i == 0 ? 0.0 : border[i - 1];
      const double to = i < border.size() ? border[i] : end;
      const int panels = static_cast<int>(std::ceil((to - from) * 16.0));
      sum += integrate(from, to, panels, [&](double x) { return f(x, level[i]); });
    }
    return sum;
  }

  // E f(x, level of x) for a unit normal x and an even f.
  template <class FunctionT>
  double mean(FunctionT&& f) const {
    return 2.0 *
           over_cells(kNormalEnd, [&](double x, double c) { return normal_density(x) * f(x, c); });
  }

  double distortion() const {
    return mean([](double x, double c) { return (x - c) * (x - c); });
  }
};

// Lloyd's iteration from quantiles: every level moves to the centre of mass of its cell.
inline HalfGrid lloyd_max_by_iteration(std::uint32_t bits) {
  const std::size_t half = std::size_t{1} << (bits - 1);
  std::vector<double> level(half);
  for (std::size_t i = 0; i < half; ++i) {
    level[i] = 3.0 * (static_cast<double>(i) + 0.5) / static_cast<double>(half);
  }
  for (int iteration = 0; iteration < 20000; ++iteration) {
    const HalfGrid grid(level);
    double moved = 0.0;
    for (std::size_t i = 0; i < half; ++i) {
      const double from = i == 0 ? 0.0 : grid.border[i - 1];
      const double to = i + 1 < half ? grid.border[i] : kNormalEnd;
      const int panels = static_cast<int>(std::ceil((to - from) * 8.0));
      const double mass = integrate(from, to, panels, normal_density);
      const double moment =
          integrate(from, to, panels, [](double x) { return x * normal_density(x); });
      moved = std::max(moved, std::fabs(moment / mass - level[i]));
      level[i] = moment / mass;
    }
    if (moved < 1e-12) break;
  }
  return HalfGrid(level);
}

inline HalfGrid uniform_grid(std::uint32_t bits, double step) {
  std::vector<double> level(std::size_t{1} << (bits - 1));
  for (std::size_t i = 0; i < level.size(); ++i) level[i] = (static_cast<double>(i) + 0.5) * step;
  return HalfGrid(level);
}

// The step of least distortion: there the error is orthogonal to the level, E (x - c) c = 0, and
// E (x - c) c falls as the step grows.
inline double best_uniform_step(std::uint32_t bits) {
  double low = 0.01;
  double high = 2.0;
  for (int i = 0; i < 60; ++i) {
    const double step = 0.5 * (low + high);
    const double slope =
        uniform_grid(bits, step).mean([](double x, double c) { return (x - c) * c; });
    (slope > 0.0 ? low : high) = step;
  }
  return 0.5 * (low + high);
}

// Expected tan^2 of the angle between a random direction of `dim` elements and its codes after two
// assignment passes: the relative squared error with the unbiased scale <x,x>/<x,c>, since
// |x - a c|^2 / |x|^2 = |x|^2 |c|^2 / <x,c>^2 - 1.
//
// To first order in 1/dim. With x scaled to root mean square 1 and g = mean (x - c) c:
//   first pass: sin^2 is the distortion on the marginal of a sphere, less g^2 / E c^2 for the
//   least-squares scale; E g^2 = Var((x - c) c - h (x^2 - 1) / 2) / dim, where the second term
//   is the part that scaling to root mean square 1 takes away and h = -d/da E (x - a c(x/a))
//   c(x/a). second pass: codes for the scale 1 + g / E c^2. With r = h / E c^2 the gain grows from
//   1 to 3 - 3 r + r^2 times that term: re-assigning gives 1 - r, its own least squares (1 - r)^2.
inline double expected_symmetric_error(const HalfGrid& grid, std::uint32_t dim) {
  const double power = grid.mean([](double, double c) { return c * c; });
  const auto slope = [&](double scale) {
    std::vector<double> scaled = grid.level;
    for (double& level : scaled) level *= scale;
    return HalfGrid(scaled).mean([&](double x, double c) { return (x - c) * c / scale; });
  };
  const double delta = 1e-3;
  const double h = (slope(1.0 - delta) - slope(1.0 + delta)) / (2.0 * delta);
  const double variance = grid.mean([&](double x, double c) {
    const double g = (x - c) * c - 0.5 * h * (x * x - 1.0);
    return g * g;
  });
  const double n = dim;
  const auto marginal = [&](double x) { return std::pow(1.0 - x * x / n, 0.5 * (n - 3.0)); };
  const double end = std::sqrt(n);
  const double mass = integrate(0.0, end, 2000, marginal);
  const double sphere = grid.over_cells(end, [&](double x, double c) {
    return marginal(x) * (x - c) * (x - c);
  }) / mass;
  const double r = h / power;
  const double sine_squared = sphere - variance / (n * power) * (3.0 - 3.0 * r + r * r);
  return sine_squared / (1.0 - sine_squared);
}

// E range^2 of `count` independent unit normals: from the joint density of smallest and largest,
// n (n - 1) (Phi(b) - Phi(a))^(n - 2) phi(a) phi(b).
inline double expected_squared_range(std::uint32_t count) {
  const double n = count;
  constexpr double kEnd = 8.0;
  return integrate(-kEnd, kEnd, 200, [&](double a) {
    const double below = normal_cdf(a);
    return normal_density(a) * integrate(a, kEnd, 100, [&](double b) {
             const double inside = normal_cdf(b) - below;
             return n * (n - 1.0) * std::pow(inside, n - 2.0) * normal_density(b) * (b - a) *
                    (b - a);
           });
  });
}

}  // namespace quire::test
