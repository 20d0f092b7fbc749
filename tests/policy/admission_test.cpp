// Oracle: enumeration. What a head may hold is priced page by page; bounds are compared with every
// split of the tokens into tiers.
#include <algorithm>
#include <vector>

#include "quire/policy/admission.hpp"
#include "quire/policy/recipes.hpp"
#include "support/catch.hpp"
#include "support/gen.hpp"

namespace quire::test {
namespace {

AdmissionShape random_shape(Rng& rng) {
  AdmissionShape shape;
  shape.layers = 1 + rng.below(4);
  shape.kv_heads = 1 + rng.below(5);
  shape.sinks = rng.below(5);
  shape.window = rng.below(80);
  shape.tier_count = 2;
  shape.ring_record_bytes = 50 + rng.below(300);
  shape.fp16_token_bytes = 256u * shape.layers * shape.kv_heads;
  shape.cost.page_bytes = 512u * (1 + rng.below(8));
  shape.cost.tokens_per_page[0] = 16 * (1 + rng.below(4));
  shape.cost.tokens_per_page[1] = 16 * (1 + rng.below(7));
  shape.cost.record_bytes[0] = 60 + rng.below(200);
  shape.cost.record_bytes[1] = 40 + rng.below(20);
  shape.cost.chunk_bytes = 128;
  shape.cost.chunk_pages = 32;
  shape.cost.fixed_bytes = 1000 + rng.below(9000);
  return shape;
}

std::uint64_t sequence_bytes(const Policy& policy, const AdmissionShape& shape, std::uint64_t n) {
  std::uint64_t bytes = 0;
  for (std::uint64_t head = 0; head < shape.heads(); ++head)
    bytes += shape.cost.head_bytes(evict_tokens(policy, shape, n, head), 0);
  return bytes;
}

TEST_CASE("a token budget leaves to the pages what the ring does not take", "[policy][admission]") {
  Rng rng(7431);
  INFO(rng.describe());
  for (int i = 0; i < 1000; ++i) {
    const AdmissionShape shape = random_shape(rng);
    const Policy policy = h2o(1 + rng.below(300));
    const std::uint64_t ring = shape.sinks + shape.window;
    const std::uint64_t want = policy.budget_tokens > ring ? policy.budget_tokens - ring : 0;
    for (std::uint64_t head = 0; head < shape.heads(); ++head)
      REQUIRE(evict_tokens(policy, shape, 1000, head) == want);
  }
}

TEST_CASE("a record budget is dealt out to the last record", "[policy][admission]") {
  Rng rng(7432);
  INFO(rng.describe());
  for (int i = 0; i < 1000; ++i) {
    const AdmissionShape shape = random_shape(rng);
    Policy policy = h2o(0);
    policy.budget_bytes = rng.below(2000000);
    const std::uint64_t ring =
        std::uint64_t{shape.sinks + shape.window} * shape.ring_record_bytes * shape.heads();
    std::uint64_t used = ring;
    for (std::uint64_t head = 0; head < shape.heads(); ++head)
      used += evict_tokens(policy, shape, 1000, head) * shape.cost.record_bytes[0];
    if (used > ring) REQUIRE(used <= policy.budget_bytes);
    // What is left is less than a record per head.
    REQUIRE(used + shape.heads() * shape.cost.record_bytes[0] + shape.heads() >
            policy.budget_bytes);
  }
}

TEST_CASE("a byte target is dealt out in whole pages and met from below", "[policy][admission]") {
  Rng rng(7433);
  INFO(rng.describe());
  int dealt = 0;
  for (int i = 0; i < 2000; ++i) {
    const AdmissionShape shape = random_shape(rng);
    Policy policy = h2o(0);
    policy.byte_target = 0.05 + 1.2 * rng.uniform();
    const std::uint64_t n = 1 + rng.below(4000);
    const std::uint64_t target = target_bytes(policy, shape, n);
    const std::uint64_t used = sequence_bytes(policy, shape, n);
    if (used > shape.cost.fixed_bytes * shape.heads()) {
      ++dealt;
      REQUIRE(used <= target);
      // What is left is less than a page, table bytes that are set aside, and rounding of those.
      const std::uint64_t pages = target / shape.cost.page_bytes + 1;
      const std::uint64_t slack = shape.cost.page_bytes + 4 + pages +
                                  shape.heads() * shape.cost.chunk_bytes +
                                  pages / 32 * shape.cost.chunk_bytes;
      REQUIRE(used + slack >= target);
    }
    for (std::uint64_t head = 1; head < shape.heads(); ++head) {
      const std::uint64_t before = evict_tokens(policy, shape, n, head - 1);
      const std::uint64_t here = evict_tokens(policy, shape, n, head);
      REQUIRE(here <= before);
      REQUIRE(before <= here + shape.cost.tokens_per_page[0]);
    }
  }
  REQUIRE(dealt > 1000);
}

TEST_CASE("a budget never shrinks while a sequence grows", "[policy][admission]") {
  Rng rng(7434);
  INFO(rng.describe());
  for (int i = 0; i < 50; ++i) {
    const AdmissionShape shape = random_shape(rng);
    Policy policy = h2o(0);
    policy.byte_target = 0.05 + rng.uniform();
    const std::uint64_t head = rng.below(static_cast<std::uint32_t>(shape.heads()));
    std::uint64_t before = 0;
    for (std::uint64_t n = 0; n < 2000; n += 3) {
      const std::uint64_t now = evict_tokens(policy, shape, n, head);
      REQUIRE(now >= before);
      before = now;
    }
  }
}

TEST_CASE("a prompt's reservation covers every split into tiers", "[policy][admission]") {
  Rng rng(7435);
  INFO(rng.describe());
  for (int i = 0; i < 150; ++i) {
    const AdmissionShape shape = random_shape(rng);
    const std::uint64_t n = shape.outside(1 + rng.below(400));
    const std::uint64_t tokens = n + shape.sinks + shape.window;
    const std::uint64_t all_high = shape.cost.pages(0, n) * shape.heads();
    REQUIRE(prompt_pages(keep_all(), shape, tokens) == all_high);
    std::uint64_t worst = 0;
    for (std::uint64_t high = 0; high <= n; ++high)
      for (std::uint64_t low = 0; low <= n - high; low += 5)
        worst = std::max(worst, shape.cost.pages(0, high) + shape.cost.pages(1, low));
    const std::uint64_t bound = prompt_pages(diffkv_upstream(1.0f, 0.02f), shape, tokens);
    REQUIRE(bound >= worst * shape.heads());
    const std::uint64_t all_low = shape.cost.pages(1, n) * shape.heads();
    REQUIRE(bound <= std::max(all_high, all_low) + shape.heads());
    REQUIRE(prompt_pages(foreign_plan(), shape, tokens) >= worst * shape.heads());
  }
}

TEST_CASE("an evicting prompt reserves its budget, or less when it is short",
          "[policy][admission]") {
  Rng rng(7436);
  INFO(rng.describe());
  for (int i = 0; i < 1000; ++i) {
    const AdmissionShape shape = random_shape(rng);
    const std::uint32_t ring = shape.sinks + shape.window;
    const Policy policy = h2o(ring + rng.below(200));
    const std::uint64_t tokens = 1 + rng.below(500);
    const std::uint64_t kept =
        std::min<std::uint64_t>(policy.budget_tokens - ring, tokens > ring ? tokens - ring : 0);
    REQUIRE(prompt_pages(policy, shape, tokens) == shape.cost.pages(0, kept) * shape.heads());
  }
}

// Every split of what may move, at every stage: demoted tokens beside the pages of the high tier,
// then what entered. The bound is never more than one page above the worst of them.
TEST_CASE("what a later prompt takes of a head is bounded by the worst split",
          "[policy][admission]") {
  Rng rng(7439);
  INFO(rng.describe());
  for (int i = 0; i < 2000; ++i) {
    AdmissionShape shape = random_shape(rng);
    if (i % 5 == 0) shape.tier_count = 1;
    const ByteCost& cost = shape.cost;
    LaterHead head;
    head.high = rng.below(120);
    head.low = shape.tier_count == 1 ? 0 : rng.below(120);
    const std::uint64_t full = cost.tokens_per_page[0];
    head.frozen_high = full * rng.below(1 + static_cast<std::uint32_t>(head.high / full));
    head.entering = rng.below(4) == 0 ? 0 : rng.below(120);
    const std::uint64_t had = cost.pages(0, head.high) + cost.pages(1, head.low);
    const std::uint64_t movable = head.high - head.frozen_high;
    std::uint64_t worst = 0;
    for (std::uint64_t down = 0; down <= (shape.tier_count == 1 ? 0 : movable); ++down) {
      worst = std::max(worst, cost.pages(1, head.low + down) - cost.pages(1, head.low));
      for (std::uint64_t in = 0; in <= (shape.tier_count == 1 ? 0 : head.entering); ++in) {
        const std::uint64_t after = cost.pages(0, head.high - down + head.entering - in) +
                                    cost.pages(1, head.low + down + in);
        worst = std::max(worst, after > had ? after - had : 0);
      }
    }
    const std::uint64_t bound = later_pages_bound(shape, head);
    REQUIRE(bound >= worst);
    REQUIRE(bound <= worst + 1);
    REQUIRE(later_head_pages(keep_all(), shape, head, 1000, 0) ==
            cost.pages(0, head.high + head.entering) - cost.pages(0, head.high));
    const Policy evicting = h2o(1 + rng.below(200));
    const std::uint64_t room = evict_tokens(evicting, shape, 1000, 0);
    const std::uint64_t kept =
        head.frozen_high +
        std::min(movable + head.entering, room > head.frozen_high ? room - head.frozen_high : 0);
    const std::uint64_t pages = cost.pages(0, kept);
    const std::uint64_t has = cost.pages(0, head.high);
    REQUIRE(later_head_pages(evicting, shape, head, 1000, 0) == (pages > has ? pages - has : 0));
  }
}

TEST_CASE("an empty head is bounded like a first prompt's", "[policy][admission]") {
  Rng rng(7440);
  INFO(rng.describe());
  for (int i = 0; i < 500; ++i) {
    const AdmissionShape shape = random_shape(rng);
    LaterHead head;
    head.entering = rng.below(2000);
    REQUIRE(later_pages_bound(shape, head) == head_pages_bound(shape, head.entering));
  }
}

}  // namespace
}  // namespace quire::test
