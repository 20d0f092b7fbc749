// Wrong calls of quire_encode, quire_decode and quire_demote. Oracle: the rules of quire.h: a
// status number, the field in the error, and nothing written.
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "quire/quire.h"
#include "support/catch.hpp"
#include "support/codec_call.hpp"

namespace quire {
namespace {

// K6 with groups of 32: two planes, metadata, a transform with an offset: every pointer is needed.
const VectorFormat kAll = {Grid::kAffine, 6, 32, kTransformHadamard | kTransformOffset};
const VectorFormat kHalf = {Grid::kF16, 16, 0, kTransformHadamard | kTransformOffset};

test::CodecCallSpec spec_of(const VectorFormat& format) {
  return {format, 64, 3, DType::kF32, 0, 1};
}

struct BadCall {
  const char* what;
  int status;
  const char* field;
  std::function<void(quire_codec_args&)> spoil;
};

template <class T>
T* misaligned(T* pointer) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) + 1);
}

// What is wrong whichever side of whichever function the struct is.
const std::vector<BadCall>& bad_codes() {
  static const std::vector<BadCall> calls = {
      {"unknown flag", QUIRE_ABI_MISMATCH, "flags", [](auto& a) { a.flags = 1; }},
      {"unknown high flag", QUIRE_ABI_MISMATCH, "flags", [](auto& a) { a.flags = 1u << 31; }},
      {"grid 0", QUIRE_INVALID_ARGUMENT, "grid", [](auto& a) { a.format.grid = 0; }},
      {"grid 6", QUIRE_INVALID_ARGUMENT, "grid", [](auto& a) { a.format.grid = 6; }},
      {"bits 5", QUIRE_INVALID_ARGUMENT, "bits", [](auto& a) { a.format.bits = 5; }},
      {"bits 16", QUIRE_INVALID_ARGUMENT, "bits", [](auto& a) { a.format.bits = 16; }},
      {"group 48", QUIRE_INVALID_ARGUMENT, "group", [](auto& a) { a.format.group = 48; }},
      {"group 128", QUIRE_INVALID_ARGUMENT, "group", [](auto& a) { a.format.group = 128; }},
      {"transform 4", QUIRE_INVALID_ARGUMENT, "transform", [](auto& a) { a.format.transform = 4; }},
      {"plane 0 missing", QUIRE_INVALID_ARGUMENT, "codes", [](auto& a) { a.codes[0] = nullptr; }},
      {"plane 1 missing", QUIRE_INVALID_ARGUMENT, "codes", [](auto& a) { a.codes[1] = nullptr; }},
      {"meta missing", QUIRE_INVALID_ARGUMENT, "meta", [](auto& a) { a.meta = nullptr; }},
  };
  return calls;
}

const std::vector<BadCall>& bad_shapes() {
  static const std::vector<BadCall> calls = {
      {"head dim 0", QUIRE_INVALID_ARGUMENT, "head_dim", [](auto& a) { a.head_dim = 0; }},
      {"head dim 24", QUIRE_INVALID_ARGUMENT, "head_dim", [](auto& a) { a.head_dim = 24; }},
      {"head dim 272", QUIRE_INVALID_ARGUMENT, "head_dim", [](auto& a) { a.head_dim = 272; }},
      {"group no divisor", QUIRE_INVALID_ARGUMENT, "group", [](auto& a) { a.head_dim = 80; }},
      {"count 2^31", QUIRE_INVALID_ARGUMENT, "count", [](auto& a) { a.count = 1ull << 31; }},
      {"count 2^32", QUIRE_INVALID_ARGUMENT, "count", [](auto& a) { a.count = 1ull << 32; }},
  };
  return calls;
}

const std::vector<BadCall>& bad_rows() {
  static const std::vector<BadCall> calls = {
      {"no rows", QUIRE_INVALID_ARGUMENT, "rows", [](auto& a) { a.rows.data = nullptr; }},
      {"dtype 0", QUIRE_INVALID_ARGUMENT, "rows", [](auto& a) { a.rows.dtype = 0; }},
      {"dtype 4", QUIRE_INVALID_ARGUMENT, "rows", [](auto& a) { a.rows.dtype = 4; }},
      {"rows misaligned",
       QUIRE_MISALIGNED,
       "rows",
       [](auto& a) { a.rows.data = misaligned(static_cast<char*>(a.rows.data)); }},
  };
  return calls;
}

void check_refused(const VectorFormat& format, const BadCall& bad) {
  using Function = quire_status (*)(const quire_codec_args*);
  for (const Function function : {&quire_encode, &quire_decode}) {
    test::CodecCall call(spec_of(format));
    const test::FloatRows rows = call.rows;
    bad.spoil(call.args);
    INFO((function == &quire_encode ? "encode: " : "decode: ") << bad.what);
    const quire_status status = function(&call.args);
    INFO("status " << status << " field " << call.error.field << " text " << call.error.text);
    REQUIRE(test::reports(status, call.error, bad.status, bad.field));
    REQUIRE(call.coded.untouched());
    REQUIRE(call.rows == rows);
    REQUIRE(call.saturated == 1000);
  }
}

// Spoils one side of a demotion from K6 to K6 (or f16 to f16); the error is the source's.
void check_demotion_refused(const VectorFormat& format, const BadCall& bad, bool spoil_to) {
  test::CodecCall from(spec_of(format));
  test::CodecCall to(spec_of(format));
  bad.spoil(spoil_to ? to.args : from.args);
  INFO("demote, " << (spoil_to ? "to: " : "from: ") << bad.what);
  const quire_status status = quire_demote(&from.args, &to.args);
  INFO("status " << status << " field " << from.error.field << " text " << from.error.text);
  REQUIRE(test::reports(status, from.error, bad.status, bad.field));
  REQUIRE(from.coded.untouched());
  REQUIRE(to.coded.untouched());
}

TEST_CASE("wrong codec calls are refused by name and write nothing", "[codec][plain][args]") {
  for (const auto* list : {&bad_codes(), &bad_shapes(), &bad_rows()}) {
    for (const BadCall& bad : *list) check_refused(kAll, bad);
  }
}

TEST_CASE("wrong demotions are refused by name and write nothing", "[codec][plain][args]") {
  for (const BadCall& bad : bad_codes()) {
    check_demotion_refused(kAll, bad, false);
    check_demotion_refused(kAll, bad, true);
  }
  for (const BadCall& bad : bad_shapes()) check_demotion_refused(kAll, bad, false);
}

TEST_CASE("16-bit codes must be aligned to their words", "[codec][plain][args]") {
  const BadCall bad = {"codes misaligned", QUIRE_MISALIGNED, "codes", [](auto& a) {
                         a.codes[0] = misaligned(a.codes[0]);
                       }};
  check_refused(kHalf, bad);
  check_demotion_refused(kHalf, bad, false);
  check_demotion_refused(kHalf, bad, true);
}

TEST_CASE("metadata must be aligned to its words", "[codec][plain][args]") {
  const BadCall bad = {
      "meta misaligned", QUIRE_MISALIGNED, "meta", [](auto& a) { a.meta = misaligned(a.meta); }};
  check_refused(kAll, bad);
  check_demotion_refused(kAll, bad, false);
  check_demotion_refused(kAll, bad, true);
}

TEST_CASE("an offset vector and a counter must be aligned", "[codec][plain][args]") {
  test::CodecCall call(spec_of(kAll));
  call.args.offset = misaligned(call.args.offset);
  REQUIRE(test::reports(quire_encode(&call.args), call.error, QUIRE_MISALIGNED, "offset"));
  call.bind();
  call.args.saturated = misaligned(call.args.saturated);
  REQUIRE(test::reports(quire_encode(&call.args), call.error, QUIRE_MISALIGNED, "saturated"));
}

TEST_CASE("an offset that is not finite or leaves fp16 is refused", "[codec][plain][args]") {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), inf, -inf, 65505.0f, -1e6f}) {
    test::CodecCall call(spec_of(kAll));
    for (std::uint32_t i = 0; i < 3; ++i) {
      for (std::uint32_t d = 0; d < 64; ++d) call.rows.set(i, d, static_cast<float>(d));
    }
    call.offset[7] = bad;
    INFO("offset " << bad);
    const quire_status status = quire_encode(&call.args);
    REQUIRE(status != QUIRE_OK);
    REQUIRE(std::string(call.error.field) == "offset");
    REQUIRE(call.coded.untouched());
  }
}

TEST_CASE("no args at all is an error, not a crash", "[codec][plain][args]") {
  test::CodecCall call(spec_of(kAll));
  REQUIRE(quire_encode(nullptr) == QUIRE_INVALID_ARGUMENT);
  REQUIRE(quire_decode(nullptr) == QUIRE_INVALID_ARGUMENT);
  REQUIRE(quire_demote(nullptr, &call.args) == QUIRE_INVALID_ARGUMENT);
  REQUIRE(quire_demote(nullptr, nullptr) == QUIRE_INVALID_ARGUMENT);
  const quire_status status = quire_demote(&call.args, nullptr);
  REQUIRE(test::reports(status, call.error, QUIRE_INVALID_ARGUMENT, "to"));
}

TEST_CASE("numbers that are not finite are refused by their index and nothing is written",
          "[codec][plain][args]") {
  struct Bits {
    DType dtype;
    std::vector<std::uint32_t> bits;
  };
  const Bits cases[] = {
      {DType::kF32, {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f800001u, 0xffffffffu}},
      {DType::kF16, {0x7c00u, 0xfc00u, 0x7e00u, 0x7c01u}},
      {DType::kBf16, {0x7f80u, 0xff80u, 0x7fc0u, 0x7f81u}}};
  for (const VectorFormat& format : {kAll, kHalf, VectorFormat{Grid::kBf16, 16, 0, 0}}) {
    for (const Bits& c : cases) {
      for (const std::uint32_t bits : c.bits) {
        for (const std::uint32_t element : {0u, 65u, 191u}) {  // of 3 vectors of 64
          test::CodecCall call({format, 64, 3, c.dtype, 70, 1});
          for (std::uint32_t i = 0; i < 3; ++i) {
            for (std::uint32_t d = 0; d < 64; ++d) call.rows.set(i, d, 1.0f);
          }
          call.rows.set_bits(element / 64, element % 64, bits);
          INFO(test::describe(format) << " bits " << bits << " at " << element);
          const quire_status status = quire_encode(&call.args);
          REQUIRE(test::reports(status, call.error, QUIRE_BAD_VALUE, "rows"));
          REQUIRE(call.error.given == element);
          REQUIRE(call.coded.untouched());
          REQUIRE(call.saturated == 1000);
        }
      }
    }
  }
}

TEST_CASE("a struct of an older or foreign header is refused", "[codec][plain][args]") {
  for (const std::uint32_t size : {0u, 4u, 8u, std::uint32_t{sizeof(quire_codec_args)} - 1}) {
    test::CodecCall call(spec_of(kAll));
    test::CodecCall to(spec_of(kAll));
    call.args.struct_size = size;
    INFO("struct_size " << size);
    REQUIRE(quire_encode(&call.args) == QUIRE_ABI_MISMATCH);
    REQUIRE(quire_decode(&call.args) == QUIRE_ABI_MISMATCH);
    REQUIRE(quire_demote(&call.args, &to.args) == QUIRE_ABI_MISMATCH);
    REQUIRE(call.error.status == QUIRE_OK);  // nobody knows where `error` lies in such a struct
    REQUIRE(quire_demote(&to.args, &call.args) == QUIRE_ABI_MISMATCH);
    REQUIRE(test::reports(QUIRE_ABI_MISMATCH, to.error, QUIRE_ABI_MISMATCH, "struct_size"));
    REQUIRE(call.coded.untouched());
  }
}

TEST_CASE("a struct of a newer header is taken while its new fields are zero",
          "[codec][plain][args]") {
  struct Newer {
    quire_codec_args args;
    unsigned char more[40];
  };
  for (std::size_t set = 0; set <= sizeof(Newer::more); ++set) {
    test::CodecCall call(spec_of(kAll));
    for (std::uint32_t i = 0; i < 3; ++i) {
      for (std::uint32_t d = 0; d < 64; ++d) call.rows.set(i, d, static_cast<float>(d));
    }
    Newer newer = {};
    newer.args = call.args;
    newer.args.struct_size = sizeof(Newer);
    if (set < sizeof(Newer::more)) newer.more[set] = 1;
    INFO("byte " << set << " behind the struct");
    const quire_status status = quire_encode(&newer.args);
    if (set == sizeof(Newer::more)) {
      REQUIRE(status == QUIRE_OK);
      continue;
    }
    REQUIRE(test::reports(status, call.error, QUIRE_ABI_MISMATCH, "struct_size"));
    REQUIRE(call.coded.untouched());
  }
}

TEST_CASE("transforms must agree, whatever else differs", "[codec][plain][args]") {
  for (std::uint32_t a = 0; a < 4; ++a) {
    for (std::uint32_t b = 0; b < 4; ++b) {
      test::CodecCall from(spec_of({Grid::kF16, 16, 0, a}));
      test::CodecCall to(spec_of({Grid::kAffine, 4, 0, b}));
      std::memset(from.coded.plane(0), 0, 3 * 128);
      INFO(a << " to " << b);
      const quire_status status = quire_demote(&from.args, &to.args);
      if (a == b) {
        REQUIRE(status == QUIRE_OK);
      } else {
        REQUIRE(test::reports(status, from.error, QUIRE_INVALID_ARGUMENT, "transform"));
        REQUIRE(from.error.needed == a);
        REQUIRE(from.error.given == b);
        REQUIRE(to.coded.untouched());
      }
    }
  }
}

TEST_CASE("an error struct of another size is left alone", "[codec][plain][args]") {
  test::CodecCall call(spec_of(kAll));
  call.error.struct_size = sizeof(quire_error) - 1;
  call.args.head_dim = 1;
  REQUIRE(quire_encode(&call.args) == QUIRE_INVALID_ARGUMENT);
  REQUIRE(call.error.status == QUIRE_OK);
  REQUIRE(call.error.field[0] == 0);
}

TEST_CASE("success leaves the error struct alone", "[codec][plain][args]") {
  test::CodecCall call(spec_of(kAll));
  for (std::uint32_t i = 0; i < 3; ++i) {
    for (std::uint32_t d = 0; d < 64; ++d) call.rows.set(i, d, 0.5f);
  }
  call.error.status = 77;
  std::strcpy(call.error.field, "mine");
  REQUIRE(quire_encode(&call.args) == QUIRE_OK);
  REQUIRE(call.error.status == 77);
  REQUIRE(std::string(call.error.field) == "mine");
}

}  // namespace
}  // namespace quire
