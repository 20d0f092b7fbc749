// Views of an engine's arrays. Oracle: an array filled with numbers that say where they are.
#include "quire/core/view.hpp"

#include <vector>

#include "support/catch.hpp"
#include "support/codec_float16.hpp"

namespace quire {
namespace {

TEST_CASE("offsets follow the three strides in any order and sign", "[core][view]") {
  RowsView rows;
  rows.sequence_stride = 1000;
  rows.token_stride = -40;
  rows.head_stride = 7;
  REQUIRE(rows.offset(0, 0, 0) == 0);
  REQUIRE(rows.offset(1, 0, 0) == 1000);
  REQUIRE(rows.offset(0, 1, 0) == -40);
  REQUIRE(rows.offset(0, 0, 1) == 7);
  REQUIRE(rows.offset(3, 5, 2) == 3000 - 200 + 14);
  MutableRowsView writable;
  writable.sequence_stride = 1000;
  writable.token_stride = -40;
  writable.head_stride = 7;
  REQUIRE(writable.offset(3, 5, 2) == rows.offset(3, 5, 2));
  REQUIRE(writable.offset(0, 1, 0) == -40);
}

TEST_CASE("offsets beyond 4 Gi elements do not wrap", "[core][view]") {
  RowsView rows;
  rows.sequence_stride = std::int64_t{1} << 33;
  rows.token_stride = std::int64_t{1} << 20;
  rows.head_stride = 256;
  const std::int64_t expected =
      5 * (std::int64_t{1} << 33) + 70000 * (std::int64_t{1} << 20) + 31 * std::int64_t{256};
  REQUIRE(rows.offset(5, 70000, 31) == expected);
}

TEST_CASE("a view says nothing until it is filled in", "[core][view]") {
  REQUIRE(RowsView{}.data == nullptr);
  REQUIRE(RowsView{}.dtype == DType::kF32);
  REQUIRE(MutableRowsView{}.data == nullptr);
  REQUIRE(RowsView{}.offset(9, 9, 9) == 0);
}

TEST_CASE("a row is copied into fp32 from every dtype", "[core][view]") {
  constexpr std::uint32_t kDim = 48;
  constexpr std::uint32_t kBefore = 17;  // an offset that no alignment fits
  std::vector<float> f32(200);
  std::vector<std::uint16_t> bits16(200);
  for (std::uint32_t i = 0; i < 200; ++i) {
    f32[i] = static_cast<float>(i) + 0.25f;
    bits16[i] = static_cast<std::uint16_t>(0x3c00u + 3 * i);
  }
  RowsView rows;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
    rows.dtype = dtype;
    rows.data = dtype == DType::kF32 ? static_cast<const void*>(f32.data()) : bits16.data();
    std::vector<float> out(kDim + 1, -1.0f);
    load_row(rows, kBefore, kDim, out.data());
    for (std::uint32_t i = 0; i < kDim; ++i) {
      const std::uint16_t bits = bits16[kBefore + i];
      const double expected = dtype == DType::kF32   ? static_cast<double>(f32[kBefore + i])
                              : dtype == DType::kF16 ? test::half_value(bits)
                                                     : test::bfloat_value(bits);
      REQUIRE(out[i] == expected);
    }
    REQUIRE(out[kDim] == -1.0f);  // nothing is written behind the row
  }
}

}  // namespace
}  // namespace quire
