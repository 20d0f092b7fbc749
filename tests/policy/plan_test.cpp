// Oracle: prices of a head added up page by page and chunk by chunk.
#include <cstddef>
#include <set>

#include "quire/core/plan.hpp"
#include "support/catch.hpp"
#include "support/gen.hpp"

namespace quire::test {
namespace {

// Pages one at a time: a page holds tokens until it is full, a chunk holds pages.
struct Counted {
  std::uint64_t pages[2] = {};
  std::uint64_t chunks = 0;
};

Counted count_by_hand(const ByteCost& cost, const std::uint64_t* tokens) {
  Counted counted;
  for (int tier = 0; tier < 2; ++tier) {
    std::uint64_t in_page = 0;
    for (std::uint64_t t = 0; t < tokens[tier]; ++t) {
      if (in_page == 0) {
        if (counted.pages[tier] % cost.chunk_pages == 0) ++counted.chunks;
        ++counted.pages[tier];
      }
      in_page = (in_page + 1) % cost.tokens_per_page[tier];
    }
  }
  return counted;
}

TEST_CASE("a head's bytes are its pages, its table and what every head has", "[policy][cost]") {
  Rng rng(7411);
  INFO(rng.describe());
  for (int i = 0; i < 3000; ++i) {
    ByteCost cost;
    cost.page_bytes = 64u * (1 + rng.below(200));
    cost.tokens_per_page[0] = 16 * (1 + rng.below(4));
    cost.tokens_per_page[1] = 16 * (1 + rng.below(8));
    cost.record_bytes[0] = 1 + rng.below(300);
    cost.record_bytes[1] = 1 + rng.below(150);
    cost.chunk_bytes = 128;
    cost.chunk_pages = 1 + rng.below(8);
    cost.fixed_bytes = rng.below(5000);
    const std::uint64_t tokens[2] = {rng.below(700), rng.below(700)};
    const Counted counted = count_by_hand(cost, tokens);
    REQUIRE(cost.pages(0, tokens[0]) == counted.pages[0]);
    REQUIRE(cost.pages(1, tokens[1]) == counted.pages[1]);
    REQUIRE(cost.chunks(counted.pages[0], counted.pages[1]) == counted.chunks);
    REQUIRE(cost.head_bytes(tokens[0], tokens[1]) ==
            (counted.pages[0] + counted.pages[1]) * cost.page_bytes +
                counted.chunks * cost.chunk_bytes + cost.fixed_bytes);
    REQUIRE(cost.head_record_bytes(tokens[0], tokens[1]) ==
            tokens[0] * cost.record_bytes[0] + tokens[1] * cost.record_bytes[1]);
    if (counted.chunks > 1) {
      cost.row_chunks = static_cast<std::uint32_t>(counted.chunks - 1);  // a shared middle chunk
      REQUIRE(cost.chunks(counted.pages[0], counted.pages[1]) == counted.chunks - 1);
    }
  }
}

TEST_CASE("tier and move values are those of the C ABI", "[policy][abi]") {
  REQUIRE(static_cast<int>(Tier::kHigh) == 0);
  REQUIRE(static_cast<int>(Tier::kLow) == 1);
  REQUIRE(static_cast<int>(Tier::kDropped) == 254);
  REQUIRE(static_cast<int>(Tier::kKeep) == 255);
  REQUIRE(offsetof(PlanMove, layer) == 0);
  REQUIRE(offsetof(PlanMove, head) == 4);
  REQUIRE(offsetof(PlanMove, position) == 8);
  REQUIRE(offsetof(PlanMove, to) == 12);
}

}  // namespace
}  // namespace quire::test
