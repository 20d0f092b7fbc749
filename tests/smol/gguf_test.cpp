// Oracle: what the test itself wrote into the file; for broken files, that each is refused with a
// short printable message and nothing is read outside (the sanitizer run sees that).
#include "gguf.hpp"

#include <string>

#include "gguf_builder.hpp"
#include "support/catch.hpp"
#include "support/gen.hpp"

namespace smol::test {
namespace {

using Kind = GgufValue::Kind;

GgufBuilder every_kind() {
  GgufBuilder b;
  b.text("general.architecture", "llama");
  b.value<uint8_t>("u8", kTypeU8, 200);
  b.value<int8_t>("i8", kTypeI8, -100);
  b.value<uint16_t>("u16", kTypeU16, 60000);
  b.value<int16_t>("i16", kTypeI16, -30000);
  b.value<uint32_t>("u32", kTypeU32, 4000000000u);
  b.value<int32_t>("i32", kTypeI32, -2000000000);
  b.value<uint64_t>("u64", kTypeU64, 1ull << 60);
  b.value<int64_t>("i64", kTypeI64, -(1ll << 60));
  b.value<float>("f32", kTypeF32, 0.25f);
  b.value<double>("f64", kTypeF64, -1e100);
  b.value<uint8_t>("bool", kTypeBool, 1);
  b.texts("texts", {"one", "", "three"});
  b.array<int32_t>("ints", kTypeI32, {-1, 2, -3});
  b.array<uint8_t>("bytes", kTypeU8, {1, 255});
  b.array<float>("floats", kTypeF32, {0.5f, -2.0f});
  b.tensor("matrix", {3, 2}, {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f});
  b.tensor("blocks", {32}, kBlockQ8_0, std::vector<uint8_t>(34, 1));
  return b;
}

std::string parse(const GgufBuilder& b) {
  GgufFile file;
  return file.parse(b.build(), "t.gguf");
}

// Short, one line, and it begins with the file.
bool is_clear(const std::string& message) {
  if (message.rfind("t.gguf: ", 0) != 0 || message.size() > 300) return false;
  for (const char c : message) {
    if (c < 0x20 || c >= 0x7f) return false;
  }
  return true;
}

void require_refused(const GgufBuilder& b, const std::string& part) {
  const std::string message = parse(b);
  INFO(message);
  REQUIRE(is_clear(message));
  REQUIRE(message.find(part) != std::string::npos);
}

void check_integers(const GgufFile& file) {
  const auto check = [&](const char* key, int64_t expected) {
    const GgufValue* value = file.find_value(key);
    INFO(key);
    REQUIRE(value != nullptr);
    CHECK(value->kind == Kind::kInteger);
    CHECK(value->integer == expected);
  };
  check("u8", 200);
  check("i8", -100);
  check("u16", 60000);
  check("i16", -30000);
  check("u32", 4000000000);
  check("i32", -2000000000);
  check("u64", int64_t{1} << 60);
  check("i64", -(int64_t{1} << 60));
  check("bool", 1);
}

}  // namespace

TEST_CASE("metadata of every type comes back as written", "[smol][gguf]") {
  for (const uint32_t version : {2u, 3u}) {
    GgufBuilder b = every_kind();
    b.version = version;
    GgufFile file;
    REQUIRE(file.parse(b.build(), "t.gguf") == "");
    check_integers(file);
    CHECK(file.find_value("f32")->number == 0.25);
    CHECK(file.find_value("f64")->number == -1e100);
    CHECK(file.find_value("general.architecture")->text == "llama");
    CHECK(file.find_value("texts")->kind == Kind::kTexts);
    CHECK(file.find_value("texts")->texts == std::vector<std::string>{"one", "", "three"});
    CHECK(file.find_value("ints")->integers == std::vector<int64_t>{-1, 2, -3});
    CHECK(file.find_value("bytes")->integers == std::vector<int64_t>{1, 255});
    CHECK(file.find_value("floats")->kind == Kind::kNumbers);
    CHECK(file.find_value("floats")->numbers == std::vector<double>{0.5, -2.0});
    CHECK(file.find_value("absent") == nullptr);
  }
}

TEST_CASE("tensors come back as written", "[smol][gguf]") {
  GgufFile file;
  REQUIRE(file.parse(every_kind().build(), "t.gguf") == "");
  const GgufTensor* matrix = file.find_tensor("matrix");
  REQUIRE(matrix != nullptr);
  CHECK(matrix->dims == std::vector<uint64_t>{3, 2});
  std::vector<float> values;
  REQUIRE(file.read_tensor("matrix", &values) == "");
  CHECK(values == std::vector<float>{1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f});
  CHECK(file.find_tensor("absent") == nullptr);
  CHECK(file.read_tensor("absent", &values) == "t.gguf: tensor 'absent' is missing");
}

TEST_CASE("another alignment moves the data", "[smol][gguf]") {
  GgufBuilder b;
  b.alignment = 64;
  b.value<uint32_t>("general.alignment", kTypeU32, 64);
  b.tensor("first", {1}, {1.0f});
  b.tensor("second", {1}, {2.0f});
  GgufFile file;
  REQUIRE(file.parse(b.build(), "t.gguf") == "");
  std::vector<float> values;
  REQUIRE(file.read_tensor("second", &values) == "");
  CHECK(values == std::vector<float>{2.0f});
}

TEST_CASE("a file cut at any byte is refused", "[smol][gguf]") {
  const std::vector<uint8_t> whole = every_kind().build();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const auto end = whole.begin() + static_cast<std::ptrdiff_t>(length);
    GgufFile file;
    const std::string message = file.parse(std::vector<uint8_t>(whole.begin(), end), "t.gguf");
    INFO(length << " of " << whole.size() << ": " << message);
    REQUIRE(is_clear(message));
  }
}

TEST_CASE("flipped bits are refused or leave a file that can be read", "[smol][gguf]") {
  const std::vector<uint8_t> whole = every_kind().build();
  quire::test::Rng rng(1);
  INFO(rng.describe());
  uint32_t refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<uint8_t> bytes = whole;
    const uint32_t flips = 1 + rng.below(4);
    for (uint32_t i = 0; i < flips; ++i) {
      const uint32_t at = rng.below(static_cast<uint32_t>(bytes.size()));
      bytes[at] = static_cast<uint8_t>(rng.bits());
    }
    GgufFile file;
    std::string message = file.parse(bytes, "t.gguf");
    std::vector<float> values;
    for (const char* name : {"matrix", "blocks"}) {
      if (message.empty()) message = file.read_tensor(name, &values);
    }
    if (message.empty()) continue;
    ++refused;
    INFO("round " << round << ": " << message);
    REQUIRE(is_clear(message));
  }
  // Most bytes are data or names, but a good part of the rest has a meaning that can be broken.
  CHECK(refused > 2000);
  CHECK(refused < 20000);
}

TEST_CASE("magic and version are checked", "[smol][gguf][bad]") {
  GgufBuilder b = every_kind();
  b.magic = 0x47475546u;  // the other byte order
  require_refused(b, "no GGUF file");
  b = every_kind();
  for (const uint32_t version : {0u, 1u, 4u, 0x03000000u}) {
    b.version = version;
    require_refused(b, "version " + std::to_string(version));
  }
}

TEST_CASE("absurd counts are refused before anything is allocated", "[smol][gguf][bad]") {
  for (const uint64_t count : {uint64_t{1} << 20, uint64_t{1} << 60, ~uint64_t{0}}) {
    GgufBuilder b = every_kind();
    b.tensor_count = count;
    require_refused(b, "more entries than the file holds");
    b = every_kind();
    b.value_count = count;
    require_refused(b, "more entries than the file holds");
    for (const uint32_t type : {kTypeU8, kTypeU16, kTypeF32, kTypeU64, kTypeString}) {
      b = every_kind();
      b.begin_value("long", kTypeArray).put<uint32_t>(type).put<uint64_t>(count);
      require_refused(b, "'long': an array claims " + std::to_string(count));
    }
    b = every_kind();
    b.begin_value("long", kTypeString).put<uint64_t>(count);
    require_refused(b, "the file ends inside 'long'");
  }
}

TEST_CASE("unknown value types and nested arrays are refused", "[smol][gguf][bad]") {
  GgufBuilder b = every_kind();
  b.begin_value("odd", 13).put<uint64_t>(0);
  require_refused(b, "'odd': a value has the unknown type 13");
  b = every_kind();
  b.begin_value("odd", kTypeArray).put<uint32_t>(kTypeArray).put<uint64_t>(0);
  require_refused(b, "'odd': an array has the unknown element type 9");
}

TEST_CASE("names that stand twice are refused", "[smol][gguf][bad]") {
  GgufBuilder b = every_kind();
  b.value<uint8_t>("u8", kTypeU8, 1);
  require_refused(b, "'u8' stands twice");
  b = every_kind();
  b.tensor("matrix", {1}, {1.0f});
  require_refused(b, "tensor 'matrix' stands twice");
}

TEST_CASE("impossible shapes are refused", "[smol][gguf][bad]") {
  const uint64_t half = uint64_t{1} << 32;
  const std::vector<std::vector<uint64_t>> shapes = {
      {0}, {4, 0}, {half, half}, {half, half, half, half}, {~uint64_t{0}}, {uint64_t{1} << 41}};
  for (const auto& shape : shapes) {
    GgufBuilder b = every_kind();
    b.tensor_at("odd", shape, kBlockF32, 0);
    require_refused(b, "tensor 'odd' has an absurd shape");
  }
  for (const std::size_t dims : {0u, 5u, 1000u}) {
    GgufBuilder b = every_kind();
    b.tensor_at("odd", std::vector<uint64_t>(dims, 1), kBlockF32, 0);
    require_refused(b, "tensor 'odd' has " + std::to_string(dims) + " dimensions");
  }
  GgufBuilder b = every_kind();
  b.tensor_at("odd", {33}, kBlockQ4_1, 0);
  require_refused(b, "tensor 'odd' has rows of 33 elements");
}

TEST_CASE("tensors outside the file or off the grid are refused", "[smol][gguf][bad]") {
  const uint64_t far = uint64_t{1} << 20;
  for (const uint64_t offset : {far, ~uint64_t{0} - 31, uint64_t{1} << 63}) {
    GgufBuilder b = every_kind();
    b.tensor_at("odd", {4}, kBlockF32, offset);
    require_refused(b, "tensor 'odd' needs 16 bytes from " + std::to_string(offset));
  }
  GgufBuilder b = every_kind();
  b.tensor_at("odd", {1u << 20}, kBlockF32, 0);
  require_refused(b, "tensor 'odd' needs 4194304 bytes");
  b = every_kind();
  b.tensor_at("odd", {1}, kBlockF32, 4);
  require_refused(b, "tensor 'odd' is not aligned");
}

TEST_CASE("an alignment out of range is refused", "[smol][gguf][bad]") {
  for (const uint32_t alignment : {0u, 65537u, 0xffffffffu}) {
    GgufBuilder b;
    b.value<uint32_t>("general.alignment", kTypeU32, alignment);
    b.tensor("first", {1}, {1.0f});
    require_refused(b, "general.alignment is not from 1 to 65536");
  }
}

TEST_CASE("messages show names of the file short and printable", "[smol][gguf][bad]") {
  GgufBuilder b = every_kind();
  b.begin_value(std::string(100000, 'x'), 99);
  require_refused(b, "'xxxxxxxx");
  b = every_kind();
  b.begin_value(std::string("a\0\n\x1b[31m\xff", 9), 99);
  require_refused(b, "'a???[31m?'");
}

TEST_CASE("a path that is no model file is refused", "[smol][gguf][bad]") {
  GgufFile file;
  CHECK(file.load("/nonexistent/x.gguf") == "/nonexistent/x.gguf: cannot be opened");
  CHECK(file.load("/") == "/: is no regular file");
  CHECK(file.load("/dev/zero") == "/dev/zero: is no regular file");
}

}  // namespace smol::test
