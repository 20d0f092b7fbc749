// Seeded inputs: normal, heavy tails, outlier channels, ties. The seed comes from QUIRE_TEST_SEED
// or the test, and is printed when an assertion fails (put INFO(rng.describe()) into the test).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace quire::test {

// splitmix64: the same numbers on every machine and library version.
class Rng {
 public:
  explicit Rng(std::uint64_t seed) : seed_(seed) {
    if (const char* given = std::getenv("QUIRE_TEST_SEED"))
      seed_ = std::strtoull(given, nullptr, 0);
    state_ = seed_;
  }

  std::string describe() const { return "QUIRE_TEST_SEED=" + std::to_string(seed_); }

  std::uint64_t bits() {
    state_ += 0x9e3779b97f4a7c15ull;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }

  // In [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1.0p-53; }

  // In [0, n).
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(uniform() * n); }

  float normal() {  // Box-Muller, one of the pair
    const double u = 1.0 - uniform();
    return static_cast<float>(std::sqrt(-2.0 * std::log(u)) *
                              std::cos(6.283185307179586 * uniform()));
  }

  std::vector<float> normals(std::size_t n, float scale = 1.0f, float mean = 0.0f) {
    std::vector<float> x(n);
    for (float& v : x) v = mean + scale * normal();
    return x;
  }

 private:
  std::uint64_t seed_;
  std::uint64_t state_ = 0;
};

}  // namespace quire::test
