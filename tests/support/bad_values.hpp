// Arrays with one number that must be refused, in every dtype, at chosen places.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "quire/core/dtype.hpp"
#include "quire/quire.h"
#include "support/catch.hpp"

namespace quire::test {

struct BadValue {
  const char* name;
  quire_dtype dtype;
  float value;
  bool refused_in_q;  // q may be large, K and V may not
};

inline const BadValue kBadValues[] = {
    {"f32 NaN", QUIRE_F32, std::numeric_limits<float>::quiet_NaN(), true},
    {"f32 -NaN", QUIRE_F32, -std::numeric_limits<float>::quiet_NaN(), true},
    {"f32 Inf", QUIRE_F32, std::numeric_limits<float>::infinity(), true},
    {"f32 -Inf", QUIRE_F32, -std::numeric_limits<float>::infinity(), true},
    {"f32 just too large", QUIRE_F32, 65504.004f, false},
    {"f32 huge", QUIRE_F32, -3.0e38f, true},
    {"f16 NaN", QUIRE_F16, std::numeric_limits<float>::quiet_NaN(), true},
    {"f16 Inf", QUIRE_F16, std::numeric_limits<float>::infinity(), true},
    {"f16 -Inf", QUIRE_F16, -std::numeric_limits<float>::infinity(), true},
    {"bf16 NaN", QUIRE_BF16, std::numeric_limits<float>::quiet_NaN(), true},
    {"bf16 Inf", QUIRE_BF16, std::numeric_limits<float>::infinity(), true},
    {"bf16 large", QUIRE_BF16, -65536.0f, false},
    {"bf16 huge", QUIRE_BF16, 2.0e38f, true},
};

// Numbers of any dtype; 16-bit infinities by their bits, since conversion saturates.
class TypedRows {
 public:
  TypedRows(const std::vector<float>& values, quire_dtype dtype) : dtype_(dtype) {
    floats_ = values;
    halves_.resize(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) set(i, values[i]);
  }

  void set(std::size_t at, float x) {
    floats_[at] = x;
    if (dtype_ == QUIRE_F16)
      halves_[at] =
          is_infinite(x) ? static_cast<std::uint16_t>(x > 0 ? 0x7c00 : 0xfc00) : float_to_half(x);
    if (dtype_ == QUIRE_BF16)
      halves_[at] =
          is_infinite(x) ? static_cast<std::uint16_t>(x > 0 ? 0x7f80 : 0xff80) : float_to_bfloat(x);
  }

  quire_rows rows() {
    void* data = dtype_ == QUIRE_F32 ? static_cast<void*>(floats_.data()) : halves_.data();
    return {data, static_cast<std::uint32_t>(dtype_), 0, 0, 0, 0};
  }

 private:
  static bool is_infinite(float x) {
    return x > std::numeric_limits<float>::max() || x < std::numeric_limits<float>::lowest();
  }

  quire_dtype dtype_;
  std::vector<float> floats_;
  std::vector<std::uint16_t> halves_;
};

// visit(rows, index, name) with one bad number in the first, middle and last of `count` elements.
template <class VisitorT>
void for_bad_values(const std::vector<float>& good,
                    std::size_t count,
                    bool is_query,
                    VisitorT&& visit) {
  for (const BadValue& bad : kBadValues) {
    if (is_query && !bad.refused_in_q) continue;
    for (const std::size_t at : {std::size_t{0}, count / 2, count - 1}) {
      INFO(bad.name << " at element " << at);
      TypedRows rows(good, bad.dtype);
      rows.set(at, bad.value);
      visit(rows.rows(), static_cast<std::int64_t>(at));
    }
  }
}

}  // namespace quire::test
