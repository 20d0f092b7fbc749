// Every reservation fails once. Oracle: a copy of all memory of the cache taken before the call,
// and the same run without a fault. In a refused call only the count of shortages, the counter of
// the injected fault and the plan of the step that did not begin (scratch) may change.
#include <functional>
#include <vector>

#include "support/catch.hpp"
#include "support/gen.hpp"
#include "support/pages_cache.hpp"
#include "support/pages_check.hpp"
#include "support/pages_contents.hpp"
#include "support/pages_memory.hpp"
#include "support/pages_policies.hpp"

namespace quire {
namespace {

using test::PoolCache;
using test::PoolSpec;

// A recorded run: equal seeds make equal calls. Reservation number `fault` fails (0: none).
class Recording {
 public:
  Recording(const PoolSpec& spec, std::uint64_t seed, std::uint64_t fault)
      : box_(spec), rng_(seed), fault_(fault), slots_(spec.sequences) {
    box_.state().fault_countdown = fault == 0 ? kNever : fault;
  }

  void run(std::uint32_t calls) {
    for (std::uint32_t i = 0; i < calls; ++i) {
      call();
      REQUIRE(test::check_pool(box_.state()) == "");
    }
  }

  std::uint64_t reservations() const { return kNever - box_.state().fault_countdown; }
  bool failed_once() const { return fired_; }
  const std::vector<quire_status>& statuses() const { return statuses_; }
  test::CacheContents contents() const { return test::cache_contents(box_); }
  quire_stats stats() const { return box_.cache.stats(); }

  // Ids of all pages: in rows, then in the free list.
  std::vector<std::int32_t> page_ids() const {
    const CacheState& cache = box_.state();
    std::vector<std::int32_t> ids;
    for (std::uint64_t row = 0; row < cache.max.rows(cache.group); ++row) {
      for (std::uint32_t t = 0; t < kMaxTiers; ++t) {
        for (std::uint32_t i = 0; i < cache.head_states[row].pages[t]; ++i)
          ids.push_back(cache.table.row(row).page(t, i).value);
      }
    }
    for (std::uint64_t i = 0; i < cache.free_pages.free_count(); ++i)
      ids.push_back(cache.free_pages.peek(i));
    return ids;
  }

 private:
  static constexpr std::uint64_t kNever = 1ull << 40;

  struct Sequence {
    bool open = false;
    std::uint32_t tokens = 0;
    std::uint32_t unfinished = 0;  // tokens of the rounds of a prompt that has no last one yet
  };

  void call() {
    const auto slot = static_cast<std::int32_t>(rng_.below(box_.spec.sequences));
    Sequence& s = slots_[static_cast<std::size_t>(slot)];
    const std::uint32_t draw = rng_.below(16);
    if (!s.open) {
      open();
    } else if (draw == 0) {
      PoolCache::need(box_.cache.close(slot));
      s = {};
    } else if (draw < (s.tokens == 0 || s.unfinished > 0 ? 14u : 3u)) {
      prompt(slot, s);
    } else if (draw < 5) {
      plan(slot, s);
    } else if (draw < 8) {
      logged_step(slot, s);
    } else {
      batched_step();
    }
  }

  void open() {
    const quire_policy policy = test::random_policy(box_.spec.group, rng_);
    slots_[static_cast<std::size_t>(box_.open(policy))].open = true;
  }

  // Runs a call that may reserve; when the fault hits it, all of the memory must be as before.
  Result attempt(const std::function<Result()>& reserve) {
    CacheState& cache = box_.state();
    if (cache.fault_countdown != 1) {
      const Result result = reserve();
      statuses_.push_back(result.status());
      return result;
    }
    const test::MemorySnapshot before(box_);
    const quire_stats stats = box_.cache.stats();
    Result result = reserve();
    if (cache.fault_countdown == 0) {
      REQUIRE_FALSE(fired_);
      fired_ = true;
      REQUIRE(result.status() == QUIRE_OUT_OF_PAGES);
      REQUIRE(result.given() == 0);
      REQUIRE(before.difference() == "");
      REQUIRE(box_.cache.stats().shortages == stats.shortages + 1);
      result = reserve();
    }
    statuses_.push_back(result.status());
    return result;
  }

  void prompt(std::int32_t slot, Sequence& s) {
    const std::uint32_t tokens = 1 + rng_.below(s.tokens == 0 ? 90 : 40);
    const std::uint64_t seed = rng_.bits();
    const bool more = rng_.below(4) == 0;
    if (s.tokens + tokens > box_.spec.max_tokens) return;
    const std::uint32_t flags = more ? QUIRE_PREFILL_MORE : 0;
    if (!attempt([&] { return box_.cache.prefill_begin(slot, tokens, flags); }).ok()) return;
    if (s.tokens > 0 && rng_.below(8) == 0) return PoolCache::need(box_.cache.prefill_cancel(slot));
    const std::uint32_t rows = s.unfinished + tokens;
    for (std::uint32_t layer = 0; layer < box_.spec.group.layers; ++layer) {
      PoolCache::need(box_.prefill_layer(slot, layer, tokens, seed, nullptr, rows));
      REQUIRE(test::check_pool(box_.state()) == "");
    }
    PoolCache::need(box_.cache.prefill_end(slot));
    s.tokens += tokens;
    s.unfinished = more ? rows : 0;
  }

  void plan(std::int32_t slot, const Sequence& s) {
    if (s.tokens == 0) return;
    const test::RandomPlan plan(box_, slot, s.tokens, rng_);
    (void)attempt([&] { return box_.cache.plan_apply(plan.args()); });
  }

  // A step of one sequence that writes a log: outputs of a refused call are untouched.
  void logged_step(std::int32_t slot, Sequence& s) {
    if (s.tokens + 1 >= box_.spec.max_tokens || s.unfinished > 0) return;
    std::vector<quire_plan_move> log(2000, quire_plan_move{7, 7, 7, 7, {7, 7, 7}});
    std::uint64_t count = 12345;
    quire_step_begin_args args = QUIRE_STEP_BEGIN_ARGS_INIT;
    args.slots = &slot;
    args.batch = 1;
    args.plan_out = log.data();
    args.plan_capacity = log.size();
    args.plan_out_count = &count;
    const Result result = attempt([&] {
      const Result begun = box_.cache.step_begin(args);
      const bool untouched = count == 12345 && log[0].position == 7 && log[0].pad[2] == 7;
      REQUIRE(begun.ok() != untouched);
      return begun;
    });
    if (result.ok()) finish({slot});
  }

  void batched_step() {
    std::vector<std::int32_t> batch;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const bool can = slots_[i].open && slots_[i].unfinished == 0 &&
                       slots_[i].tokens + 1 < box_.spec.max_tokens;
      if (can && rng_.below(4) != 0) batch.push_back(static_cast<std::int32_t>(i));
    }
    if (batch.size() < slots_.size()) batch.push_back(-1);
    if (attempt([&] { return box_.begin(batch); }).ok()) finish(batch);
  }

  void finish(const std::vector<std::int32_t>& batch) {
    box_.run_layers(static_cast<std::uint32_t>(batch.size()), rng_.bits());
    PoolCache::need(box_.cache.step_end());
    for (const std::int32_t slot : batch) {
      if (slot >= 0) ++slots_[static_cast<std::size_t>(slot)].tokens;
    }
  }

  PoolCache box_;
  test::Rng rng_;
  std::uint64_t fault_;
  bool fired_ = false;
  std::vector<Sequence> slots_;
  std::vector<quire_status> statuses_;
};

void fail_everywhere(PoolSpec spec, std::uint64_t seed) {
  constexpr std::uint32_t kCalls = 120;
  spec.sequences = 3;
  spec.max_tokens = 120;
  INFO(test::Rng(seed).describe());
  Recording whole(spec, seed, 0);
  whole.run(kCalls);
  const std::uint64_t reservations = whole.reservations();
  REQUIRE(reservations > 50);
  REQUIRE(whole.stats().shortages > 0);  // real ones as well
  const test::CacheContents contents = whole.contents();
  for (std::uint64_t n = 1; n <= reservations; ++n) {
    INFO("reservation " << n << " of " << reservations);
    Recording broken(spec, seed, n);
    broken.run(kCalls);
    REQUIRE(broken.failed_once());
    REQUIRE(broken.statuses() == whole.statuses());
    const bool equal = broken.contents() == contents;
    REQUIRE(equal);
    REQUIRE(broken.page_ids() == whole.page_ids());
    REQUIRE(broken.stats().shortages == whole.stats().shortages + 1);
    REQUIRE(broken.stats().tokens_demoted == whole.stats().tokens_demoted);
    REQUIRE(broken.stats().tokens_dropped == whole.stats().tokens_dropped);
    REQUIRE(broken.stats().steps == whole.stats().steps);
  }
}

// The library asserts that no prompt takes a page that it did not reserve.
TEST_CASE("prompts and rounds of any policy stay within what they reserved", "[pages][fault]") {
  for (std::uint32_t seed = 1; seed <= 60; ++seed) {
    const bool two = seed % 4 != 0;
    PoolSpec spec(two ? QUIRE_RECIPE_QUIRE_BUDGET : QUIRE_RECIPE_SNAPKV, 2, 2, 32);
    spec.set_ring(seed % 3, 4 + seed % 9);
    spec.sequences = 3;
    spec.max_tokens = 250;
    spec.pages = 30 + seed % 7 * 10;
    INFO(test::Rng(seed).describe());
    Recording run(spec, seed, 0);
    run.run(150);
  }
}

TEST_CASE("any failing reservation of a two-tier cache changes nothing and can be repeated",
          "[pages][fault]") {
  PoolSpec spec(QUIRE_RECIPE_DIFFKV_PAPER, 2, 2, 32);
  spec.set_ring(1, 8);
  spec.pages = 22;
  fail_everywhere(spec, 101);
}

TEST_CASE("any failing reservation under byte controllers changes nothing and can be repeated",
          "[pages][fault]") {
  PoolSpec spec(QUIRE_RECIPE_QUIRE_BUDGET, 2, 3, 32);
  spec.set_ring(2, 6);
  spec.pages = 40;
  fail_everywhere(spec, 102);
}

TEST_CASE("any failing reservation of evicting policies changes nothing and can be repeated",
          "[pages][fault]") {
  PoolSpec spec(QUIRE_RECIPE_SNAPKV, 3, 1, 32);
  spec.set_ring(0, 4);
  spec.pages = 9;
  fail_everywhere(spec, 103);
}

}  // namespace
}  // namespace quire
