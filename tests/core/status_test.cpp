// Status, Expected and QUIRE_TRY. Oracle: the numbers of quire.h, which were written down first,
// and the fields handed in.
#include "quire/core/status.hpp"

#include <string>
#include <type_traits>

#include "quire/quire.h"
#include "support/catch.hpp"

namespace quire {
namespace {

struct Number {
  StatusCode code;
  int c_code;
  int frozen;  // never reused, so never changed
};

constexpr Number kNumbers[] = {
    {StatusCode::kOk, QUIRE_OK, 0},
    {StatusCode::kInvalidArgument, QUIRE_INVALID_ARGUMENT, 1},
    {StatusCode::kUnsupported, QUIRE_UNSUPPORTED, 2},
    {StatusCode::kBadState, QUIRE_BAD_STATE, 3},
    {StatusCode::kOutOfPages, QUIRE_OUT_OF_PAGES, 4},
    {StatusCode::kCapacity, QUIRE_CAPACITY, 5},
    {StatusCode::kMemoryTooSmall, QUIRE_MEMORY_TOO_SMALL, 6},
    {StatusCode::kMisaligned, QUIRE_MISALIGNED, 7},
    {StatusCode::kAbiMismatch, QUIRE_ABI_MISMATCH, 8},
    {StatusCode::kBadValue, QUIRE_BAD_VALUE, 9},
    {StatusCode::kNotReversible, QUIRE_NOT_REVERSIBLE, 10},
    {StatusCode::kInternal, QUIRE_INTERNAL, 11},
};

TEST_CASE("status numbers are those of the C header and never change", "[core][status]") {
  for (const Number& n : kNumbers) {
    INFO("status " << n.frozen);
    REQUIRE(static_cast<int>(n.code) == n.frozen);
    REQUIRE(n.c_code == n.frozen);
  }
}

TEST_CASE("only the ok status is ok", "[core][status]") {
  REQUIRE(ok_status().ok());
  REQUIRE(Status{}.ok());
  for (const Number& n : kNumbers) {
    const Status status = fail(n.code, "field", "rule");
    REQUIRE(status.ok() == (n.code == StatusCode::kOk));
  }
}

TEST_CASE("a failure carries field, rule and the two numbers of the complaint", "[core][status]") {
  const Status full = fail(StatusCode::kOutOfPages, "pages", "enough free pages", 7, 3);
  REQUIRE(full.code == StatusCode::kOutOfPages);
  REQUIRE(std::string(full.field) == "pages");
  REQUIRE(std::string(full.rule) == "enough free pages");
  REQUIRE(full.needed == 7);
  REQUIRE(full.given == 3);
  const Status wrong = invalid("bits", "2 to 8", 8, std::uint64_t{1} << 40);
  REQUIRE(wrong.code == StatusCode::kInvalidArgument);
  REQUIRE(std::string(wrong.field) == "bits");
  REQUIRE(std::string(wrong.rule) == "2 to 8");
  REQUIRE(wrong.needed == 8);
  REQUIRE(wrong.given == std::uint64_t{1} << 40);
  const Status bare = invalid("bits", "2 to 8");
  REQUIRE(bare.needed == 0);
  REQUIRE(bare.given == 0);
  REQUIRE(std::string(ok_status().field).empty());
  REQUIRE(std::string(ok_status().rule).empty());
}

TEST_CASE("an expected holds a value or the reason why there is none", "[core][status]") {
  const Expected<int> value(42);
  REQUIRE(value.ok());
  REQUIRE(value.status().ok());
  REQUIRE(value.value() == 42);
  const Expected<std::string> none(invalid("name", "not empty", 1, 0));
  REQUIRE_FALSE(none.ok());
  REQUIRE(none.status().code == StatusCode::kInvalidArgument);
  REQUIRE(std::string(none.status().field) == "name");
  const Expected<std::string> moved(std::string(100, 'x'));
  REQUIRE(moved.value() == std::string(100, 'x'));
}

Status stop_at(int failing, int& reached) {
  for (int step = 0; step < 3; ++step) {
    QUIRE_TRY(step == failing ? fail(StatusCode::kCapacity, "step", "fewer", 2, 9) : ok_status());
    ++reached;
  }
  return ok_status();
}

TEST_CASE("QUIRE_TRY returns the first failure unchanged and goes on otherwise", "[core][status]") {
  int reached = 0;
  REQUIRE(stop_at(-1, reached).ok());
  REQUIRE(reached == 3);
  reached = 0;
  const Status stopped = stop_at(1, reached);
  REQUIRE(reached == 1);
  REQUIRE(stopped.code == StatusCode::kCapacity);
  REQUIRE(std::string(stopped.field) == "step");
  REQUIRE(stopped.needed == 2);
  REQUIRE(stopped.given == 9);
}

Expected<int> try_in_expected(bool good) {
  QUIRE_TRY(good ? ok_status() : invalid("good", "true"));
  return 5;
}

TEST_CASE("QUIRE_TRY also leaves functions that return an expected", "[core][status]") {
  REQUIRE(try_in_expected(true).value() == 5);
  REQUIRE(std::string(try_in_expected(false).status().field) == "good");
}

TEST_CASE("status is cheap enough to return by value and usable in constant expressions",
          "[core][status]") {
  REQUIRE(std::is_trivially_copyable_v<Status>);
  constexpr Status kConstant = invalid("field", "rule", 1, 2);
  static_assert(!kConstant.ok() && kConstant.needed == 1 && kConstant.given == 2);
  REQUIRE(kConstant.given == 2);
}

}  // namespace
}  // namespace quire
