// Keys and values as the figures of distortion_test.cpp were measured on:
// G independent normals; O Student-t(5) channels of variance 1 with four zero-mean outlier
// channels; B the same four as constant biases. Rounded to bfloat16, as a model hands them over.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "quire/core/dtype.hpp"
#include "support/gen.hpp"

namespace quire::test {

enum class DataModel { kG, kO, kB };

struct Vectors {
  std::uint32_t count = 0;
  std::uint32_t dim = 0;
  std::vector<float> x;  // [count, dim]

  const float* row(std::uint32_t i) const { return x.data() + std::size_t{i} * dim; }
  float* row(std::uint32_t i) { return x.data() + std::size_t{i} * dim; }
};

// Student-t with 5 degrees of freedom, scaled to variance 1 (its own is 5 / 3).
inline double student5(Rng& rng) {
  const double normal = rng.normal();
  double chi_squared = 0.0;
  for (int i = 0; i < 5; ++i) {
    const double z = rng.normal();
    chi_squared += z * z;
  }
  return normal / std::sqrt(chi_squared / 5.0) * std::sqrt(3.0 / 5.0);
}

// -1 for a plain channel, else which of the four outlier channels this is.
inline int outlier_index(std::uint32_t channel, std::uint32_t dim) {
  constexpr double kPlace[4] = {0.04, 0.29, 0.55, 0.79};
  for (int k = 0; k < 4; ++k) {
    if (channel == static_cast<std::uint32_t>(dim * kPlace[k])) return k;
  }
  return -1;
}

inline Vectors make_vectors(DataModel model, std::uint32_t count, std::uint32_t dim, Rng& rng) {
  constexpr double kOutlier[4] = {10.0, 15.0, 20.0, 30.0};
  Vectors v{count, dim, std::vector<float>(std::size_t{count} * dim)};
  for (std::uint32_t i = 0; i < count; ++i) {
    for (std::uint32_t c = 0; c < dim; ++c) {
      double value = model == DataModel::kG ? rng.normal() : student5(rng);
      const int k = model == DataModel::kG ? -1 : outlier_index(c, dim);
      if (k >= 0 && model == DataModel::kO) value *= kOutlier[k];
      if (k >= 0 && model == DataModel::kB) {
        value = kOutlier[k] * ((k % 2 == 0 ? 1.0 : -1.0) + 0.25 * value);
      }
      v.row(i)[c] = bfloat_to_float(float_to_bfloat(static_cast<float>(value)));
    }
  }
  return v;
}

}  // namespace quire::test
