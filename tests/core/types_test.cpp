// Strong ids and the small integer helpers. Oracle: the compiler's answer whether an expression is
// legal, and counting up for the divisions.
#include "quire/core/types.hpp"

#include <type_traits>
#include <utility>

#include "quire/core/config.hpp"
#include "support/catch.hpp"
#include "support/codec_check.hpp"

namespace quire {
namespace {

template <class A, class B, class = void>
struct Comparable : std::false_type {};
template <class A, class B>
struct Comparable<A, B, std::void_t<decltype(std::declval<A>() == std::declval<B>())>>
    : std::true_type {};

TEST_CASE("ids of different kinds do not mix, nor with plain integers", "[core][types]") {
  REQUIRE(Comparable<PageId, PageId>::value);
  REQUIRE_FALSE(Comparable<PageId, ChunkId>::value);
  REQUIRE_FALSE(Comparable<PageId, SlotId>::value);
  REQUIRE_FALSE(Comparable<LayerId, HeadId>::value);
  REQUIRE_FALSE(Comparable<TokenPos, PageId>::value);
  REQUIRE_FALSE(Comparable<PageId, int>::value);
  REQUIRE_FALSE(std::is_convertible_v<int, PageId>);
  REQUIRE_FALSE(std::is_convertible_v<PageId, int>);
  REQUIRE_FALSE(std::is_convertible_v<PageId, ChunkId>);
  REQUIRE_FALSE(std::is_convertible_v<HeadId, LayerId>);
}

TEST_CASE("ids compare and order by their value", "[core][types]") {
  for (std::int32_t a = -2; a <= 2; ++a) {
    for (std::int32_t b = -2; b <= 2; ++b) {
      INFO(a << " " << b);
      REQUIRE((PageId{a} == PageId{b}) == (a == b));
      REQUIRE((PageId{a} != PageId{b}) == (a != b));
      REQUIRE((PageId{a} < PageId{b}) == (a < b));
    }
  }
  REQUIRE(PageId{}.value == 0);
  REQUIRE(kNoPage.value < 0);
  REQUIRE(kNoChunk.value < 0);
  REQUIRE(kNoSlot.value < 0);
}

TEST_CASE("an id costs what its number costs", "[core][types]") {
  REQUIRE(sizeof(PageId) == sizeof(std::int32_t));
  REQUIRE(sizeof(TokenPos) == sizeof(std::int32_t));
  REQUIRE(sizeof(LayerId) == sizeof(std::uint32_t));
  REQUIRE(std::is_trivially_copyable_v<PageId>);
}

TEST_CASE("positions up to the largest are exact in fp32", "[core][types]") {
  REQUIRE(kMaxPosition == 16777215);  // what quire.h promises as max_tokens
  for (std::int32_t p : {0, 1, kMaxPosition / 2, kMaxPosition - 1, kMaxPosition}) {
    REQUIRE(static_cast<std::int32_t>(static_cast<float>(p)) == p);
    REQUIRE(static_cast<float>(p) != static_cast<float>(p + 1));
  }
}

template <class IntT>
void check_divisions(test::FirstFailure& failures) {
  for (IntT step = 1; step <= 70; ++step) {
    IntT steps = 0;    // how many steps cover the count
    IntT covered = 0;  // ... and how much they cover
    for (IntT count = 0; count <= 300; ++count) {
      if (covered < count) {
        ++steps;
        covered = static_cast<IntT>(covered + step);
      }
      failures.check(ceil_div(count, step) == steps, "ceil_div ", count, " ", step);
      failures.check(round_up(count, step) == covered, "round_up ", count, " ", step);
    }
  }
}

TEST_CASE("ceil_div and round_up count the steps that cover a number", "[core][types]") {
  test::FirstFailure failures;
  check_divisions<std::uint32_t>(failures);
  check_divisions<std::int64_t>(failures);
  check_divisions<std::uint64_t>(failures);
  INFO(failures.describe());
  REQUIRE(failures.none());
  const std::uint64_t large = (std::uint64_t{1} << 40) + 1;  // bytes of a pool above 4 GiB
  REQUIRE(ceil_div(large, std::uint64_t{512}) == (std::uint64_t{1} << 31) + 1);
  REQUIRE(round_up(large, std::uint64_t{512}) == (std::uint64_t{1} << 40) + 512);
}

TEST_CASE("the limits are those that the C header and the design name", "[core][types]") {
  REQUIRE(kMinHeadDim == 16);
  REQUIRE(kMaxHeadDim == 256);
  REQUIRE(kHeadDimStep == 16);
  REQUIRE(kMaxTiers == 2);
  REQUIRE(kMaxQueryGroup == 64);
  REQUIRE(kMaxDecodeRows == 16);
  REQUIRE(kMaxSplits == 64);
}

}  // namespace
}  // namespace quire
