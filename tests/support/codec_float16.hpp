// 16-bit floats in double, from the words of IEEE 754 and by search: no bit tricks shared with the
// library.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace quire::test {

// (-1)^sign * 1.mantissa * 2^(exponent - bias), with the two special exponents.
inline double float16_value(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int sign = bits >> 15;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  double magnitude;
  if (exponent == (1 << exponent_bits) - 1) {
    magnitude = mantissa == 0 ? std::numeric_limits<double>::infinity()
                              : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  } else {
    magnitude = std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
  }
  return sign != 0 ? -magnitude : magnitude;
}

inline double half_value(std::uint16_t bits) { return float16_value(bits, 5, 10); }
inline double bfloat_value(std::uint16_t bits) { return float16_value(bits, 8, 7); }

// Every finite value of a 16-bit float type, in order. Beyond the ends all roundings give the end.
class Float16Values {
 public:
  explicit Float16Values(double (*value)(std::uint16_t)) {
    for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
      const double v = value(static_cast<std::uint16_t>(bits));
      if (bits != 0x8000u && std::isfinite(v)) {
        sorted_.push_back({v, static_cast<std::uint16_t>(bits)});
      }
    }
    std::sort(sorted_.begin(), sorted_.end());
  }

  double largest() const { return sorted_.back().first; }

  double down(double x) const {  // the largest value <= x
    const auto after = std::upper_bound(sorted_.begin(), sorted_.end(), Entry{x, 0xffff});
    return after == sorted_.begin() ? after->first : (after - 1)->first;
  }

  double up(double x) const {  // the smallest value >= x
    const auto at = std::lower_bound(sorted_.begin(), sorted_.end(), Entry{x, 0});
    return at == sorted_.end() ? sorted_.back().first : at->first;
  }

  double nearest_even(double x) const {
    const auto above = std::lower_bound(sorted_.begin(), sorted_.end(), Entry{x, 0});
    if (above == sorted_.end()) return sorted_.back().first;
    if (above == sorted_.begin() || above->first == x) return above->first;
    const auto below = above - 1;
    const double up_distance = above->first - x;
    const double down_distance = x - below->first;
    if (up_distance != down_distance) {
      return up_distance < down_distance ? above->first : below->first;
    }
    return above->second % 2 == 0 ? above->first : below->first;
  }

 private:
  using Entry = std::pair<double, std::uint16_t>;
  std::vector<Entry> sorted_;
};

inline const Float16Values& half_values() {
  static const Float16Values values(half_value);
  return values;
}

inline const Float16Values& bfloat_values() {
  static const Float16Values values(bfloat_value);
  return values;
}

}  // namespace quire::test
