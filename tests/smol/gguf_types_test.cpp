// Oracle: blocks worked out by hand from the format's definition; all numbers are exact in fp32.
#include "gguf_types.hpp"

#include <cmath>
#include <vector>

#include "gguf.hpp"
#include "gguf_builder.hpp"
#include "support/catch.hpp"

namespace smol::test {
namespace {

constexpr uint16_t kHalfOne = 0x3c00;        // 1
constexpr uint16_t kHalfMinusTwo = 0xc000;   // -2
constexpr uint16_t kHalfQuarter = 0x3400;    // 0.25
constexpr uint16_t kHalfSmallest = 0x0001;   // 2^-24
constexpr uint16_t kHalfLargest = 0x7bff;    // 65504
constexpr uint16_t kHalfMinusZero = 0x8000;  // -0

std::vector<float> read(uint32_t type, uint64_t elements, const Bytes& bytes) {
  GgufBuilder b;
  b.tensor("x", {elements}, type, bytes.data());
  GgufFile file;
  REQUIRE(file.parse(b.build(), "t.gguf") == "");
  std::vector<float> values;
  REQUIRE(file.read_tensor("x", &values) == "");
  REQUIRE(values.size() == elements);
  return values;
}

// Nibbles: element i of the first half is i, of the second half 15 - i.
void put_nibbles(Bytes& bytes) {
  for (int i = 0; i < 16; ++i) bytes.put<uint8_t>(static_cast<uint8_t>(i | ((15 - i) << 4)));
}

}  // namespace

TEST_CASE("F32 is taken as it is", "[smol][dequantize]") {
  Bytes bytes;
  bytes.put<float>(-0.1f).put<float>(3e38f).put<float>(0.0f);
  CHECK(read(kBlockF32, 3, bytes) == std::vector<float>{-0.1f, 3e38f, 0.0f});
}

TEST_CASE("F16 covers normal, subnormal and largest numbers", "[smol][dequantize]") {
  Bytes bytes;
  for (const uint16_t half :
       {kHalfOne, kHalfMinusTwo, kHalfQuarter, kHalfSmallest, kHalfLargest, kHalfMinusZero})
    bytes.put<uint16_t>(half);
  const std::vector<float> x = read(kBlockF16, 6, bytes);
  CHECK(x == std::vector<float>{1.0f, -2.0f, 0.25f, 0x1p-24f, 65504.0f, -0.0f});
  CHECK(std::signbit(x[5]));
}

TEST_CASE("Q8_0 is scale times signed byte", "[smol][dequantize]") {
  Bytes bytes;
  bytes.put<uint16_t>(kHalfQuarter);
  for (int i = 0; i < 32; ++i) bytes.put<int8_t>(static_cast<int8_t>(i * 8 - 128));
  bytes.put<uint16_t>(kHalfMinusTwo);
  for (int i = 0; i < 32; ++i) bytes.put<int8_t>(static_cast<int8_t>(127 - i));
  const std::vector<float> x = read(kBlockQ8_0, 64, bytes);
  for (int i = 0; i < 32; ++i) {
    INFO(i);
    CHECK(x[static_cast<std::size_t>(i)] == 0.25f * static_cast<float>(i * 8 - 128));
    CHECK(x[static_cast<std::size_t>(i) + 32] == -2.0f * static_cast<float>(127 - i));
  }
}

TEST_CASE("Q4_0 is scale times nibble minus 8", "[smol][dequantize]") {
  Bytes bytes;
  bytes.put<uint16_t>(kHalfQuarter);
  put_nibbles(bytes);
  bytes.put<uint16_t>(kHalfMinusTwo);
  put_nibbles(bytes);
  const std::vector<float> x = read(kBlockQ4_0, 64, bytes);
  for (int i = 0; i < 16; ++i) {
    INFO(i);
    const auto at = static_cast<std::size_t>(i);
    CHECK(x[at] == 0.25f * static_cast<float>(i - 8));
    CHECK(x[at + 16] == 0.25f * static_cast<float>(7 - i));
    CHECK(x[at + 32] == -2.0f * static_cast<float>(i - 8));
    CHECK(x[at + 48] == -2.0f * static_cast<float>(7 - i));
  }
}

TEST_CASE("Q4_1 is scale times nibble plus minimum", "[smol][dequantize]") {
  Bytes bytes;
  bytes.put<uint16_t>(kHalfQuarter).put<uint16_t>(kHalfMinusTwo);
  put_nibbles(bytes);
  bytes.put<uint16_t>(kHalfOne).put<uint16_t>(kHalfQuarter);
  put_nibbles(bytes);
  const std::vector<float> x = read(kBlockQ4_1, 64, bytes);
  for (int i = 0; i < 16; ++i) {
    INFO(i);
    const auto at = static_cast<std::size_t>(i);
    CHECK(x[at] == 0.25f * static_cast<float>(i) - 2.0f);
    CHECK(x[at + 16] == 0.25f * static_cast<float>(15 - i) - 2.0f);
    CHECK(x[at + 32] == static_cast<float>(i) + 0.25f);
    CHECK(x[at + 48] == static_cast<float>(15 - i) + 0.25f);
  }
}

TEST_CASE("another tensor type is named as unsupported", "[smol][dequantize][bad]") {
  GgufBuilder b;
  b.tensor("x", {256}, kBlockQ4_K, std::vector<uint8_t>(144, 0));
  GgufFile file;
  REQUIRE(file.parse(b.build(), "t.gguf") == "");
  std::vector<float> values;
  CHECK(file.read_tensor("x", &values) ==
        "t.gguf: tensor 'x' has the unsupported type 12 (supported: F32, F16, Q8_0, Q4_0, Q4_1)");
  CHECK(find_block_type(kBlockQ4_K) == nullptr);
}

}  // namespace smol::test
