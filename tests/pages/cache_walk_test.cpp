// Random walks over whole caches: sequences open, fill, decode, are planned and close while the
// pool runs out. Oracle after every operation: the formulas of pages_accounting.hpp over what
// quire_query lists, and a walk over all rows that finds every page in exactly one place.
#include <algorithm>
#include <vector>

#include "support/catch.hpp"
#include "support/gen.hpp"
#include "support/pages_accounting.hpp"
#include "support/pages_cache.hpp"
#include "support/pages_check.hpp"
#include "support/pages_policies.hpp"

namespace quire {
namespace {

using test::PoolCache;
using test::PoolSpec;

// What the walk did, so that a test can say that it did everything.
struct Tally {
  std::uint32_t opened = 0;
  std::uint32_t prompts = 0;
  std::uint32_t steps = 0;
  std::uint32_t cancelled_prompts = 0;
  std::uint32_t cancelled_steps = 0;
  std::uint32_t broken = 0;
  std::uint32_t plans = 0;
  std::uint32_t shortages = 0;
};

class CacheWalk {
 public:
  CacheWalk(const PoolSpec& spec, std::uint64_t seed)
      : rng(seed), box(spec), sheet_(spec), slots_(spec.sequences) {}

  void operate() {
    const std::uint32_t draw = rng.below(32);
    if (draw < 4) {
      open();
    } else if (draw < 5) {
      close();
    } else if (draw < 12) {
      prompt();
    } else if (draw < 15) {
      apply_plan();
    } else {
      step();
    }
  }

  std::string problem() const {
    std::string text = test::check_pool(box.state());
    if (text.empty()) text = test::check_dense(box.state());
    std::vector<std::int32_t> open;
    for (std::uint32_t s = 0; s < slots_.size(); ++s) {
      const auto slot = static_cast<std::int32_t>(s);
      if (slots_[s].state == QUIRE_SEQ_CLOSED) continue;
      open.push_back(slot);
      const quire_seq_info info = box.cache.info(slot);
      if (text.empty() && info.state != slots_[s].state) text = "the state of a sequence";
      if (text.empty() && info.tokens != slots_[s].tokens) text = "tokens of a sequence";
      if (info.state == QUIRE_SEQ_BROKEN) continue;  // not readable
      if (text.empty()) text = test::check_info(box, sheet_, slot);
    }
    if (text.empty()) text = test::check_stats(box, sheet_, open);
    if (text.empty() && box.cache.stats().shortages != tally.shortages) text = "shortages";
    if (text.empty() && box.cache.stats().steps != tally.steps) text = "steps";
    return text;
  }

  void close_all() {
    for (std::uint32_t s = 0; s < slots_.size(); ++s) {
      if (slots_[s].state != QUIRE_SEQ_CLOSED) close_slot(s);
    }
  }

  test::Rng rng;
  PoolCache box;
  Tally tally;

 private:
  struct Sequence {
    std::uint32_t state = QUIRE_SEQ_CLOSED;
    std::uint32_t tokens = 0;
    std::uint32_t prompt = 0;
    std::uint32_t layers = 0;
    std::uint64_t seed = 0;
  };

  std::vector<std::uint32_t> in_state(std::uint32_t state) const {
    std::vector<std::uint32_t> out;
    for (std::uint32_t s = 0; s < slots_.size(); ++s) {
      if (slots_[s].state == state) out.push_back(s);
    }
    return out;
  }

  std::uint32_t any_of(const std::vector<std::uint32_t>& some) {
    return some[rng.below(static_cast<std::uint32_t>(some.size()))];
  }

  // A shortage is told with its numbers and counted.
  bool refused(const Result& result) {
    if (result.ok()) return false;
    INFO(result.text());
    REQUIRE(result.status() == QUIRE_OUT_OF_PAGES);
    const quire_stats stats = box.cache.stats();
    REQUIRE(result.given() == stats.pages - stats.live_pages - stats.promised_pages);
    REQUIRE(result.needed() > result.given());
    ++tally.shortages;
    return true;
  }

  void open() {
    const std::vector<std::uint32_t> closed = in_state(QUIRE_SEQ_CLOSED);
    const quire_policy policy = test::random_policy(box.spec.group, rng);
    std::int32_t slot = -1;
    const Result result = box.cache.open(policy, &slot);
    INFO(result.text());
    if (closed.empty()) {
      REQUIRE(result.status() == QUIRE_CAPACITY);
      return;
    }
    REQUIRE(result.ok());
    REQUIRE(slot == static_cast<std::int32_t>(closed[0]));  // the lowest free one
    slots_[closed[0]] = {QUIRE_SEQ_OPEN, 0, 0, 0, rng.bits()};
    ++tally.opened;
  }

  void close_slot(std::uint32_t s) {
    PoolCache::need(box.cache.close(static_cast<std::int32_t>(s)));
    slots_[s] = {};
  }

  void close() {
    const std::uint32_t s = rng.below(static_cast<std::uint32_t>(slots_.size()));
    if (slots_[s].state != QUIRE_SEQ_CLOSED) close_slot(s);
  }

  // One more call of a prompt: begin, a layer, end, or giving it up.
  void prompt() {
    const std::vector<std::uint32_t> running = in_state(QUIRE_SEQ_PREFILL);
    if (running.empty() || rng.below(8) == 0) {
      begin_prompt();
      return;
    }
    const std::uint32_t s = any_of(running);
    const auto slot = static_cast<std::int32_t>(s);
    if (rng.below(24) == 0) {
      PoolCache::need(box.cache.prefill_cancel(slot));
      const bool moved = slots_[s].tokens > 0 && slots_[s].layers > 0;
      slots_[s].state = moved ? QUIRE_SEQ_BROKEN : QUIRE_SEQ_OPEN;
      ++tally.cancelled_prompts;
    } else if (slots_[s].layers < box.spec.group.layers) {
      PoolCache::need(box.prefill_layer(slot, slots_[s].layers, slots_[s].prompt, slots_[s].seed));
      ++slots_[s].layers;
    } else {
      PoolCache::need(box.cache.prefill_end(slot));
      slots_[s].state = QUIRE_SEQ_OPEN;
      slots_[s].tokens += slots_[s].prompt;
      ++tally.prompts;
    }
  }

  void begin_prompt() {
    std::vector<std::uint32_t> ready;
    for (const std::uint32_t s : in_state(QUIRE_SEQ_OPEN)) {
      if (slots_[s].tokens == 0 || rng.below(6) == 0) ready.push_back(s);
    }
    if (ready.empty()) return;
    const std::uint32_t s = any_of(ready);
    const std::uint32_t most = box.spec.max_tokens;
    const std::uint32_t tokens = 1 + rng.below(rng.below(2) == 0 ? 40 : most - 40);
    if (slots_[s].tokens + tokens > most) return;
    if (refused(box.cache.prefill_begin(static_cast<std::int32_t>(s), tokens))) return;
    slots_[s].state = QUIRE_SEQ_PREFILL;
    slots_[s].prompt = tokens;
    slots_[s].layers = 0;
  }

  // Slots of a step: some of those that can go on, in any order, with padding between.
  std::vector<std::int32_t> random_batch() {
    std::vector<std::int32_t> batch;
    for (const std::uint32_t s : in_state(QUIRE_SEQ_OPEN)) {
      if (slots_[s].tokens < box.spec.max_tokens && rng.below(4) != 0)
        batch.push_back(static_cast<std::int32_t>(s));
    }
    while (batch.size() < slots_.size() && rng.below(3) == 0) batch.push_back(-1);
    for (std::size_t i = batch.size(); i > 1; --i)
      std::swap(batch[i - 1], batch[rng.below(static_cast<std::uint32_t>(i))]);
    return batch;
  }

  void step() {
    const std::vector<std::int32_t> batch = random_batch();
    if (batch.empty()) return;
    std::uint64_t bound = 0, available = 0;
    const auto count = static_cast<std::uint32_t>(batch.size());
    REQUIRE(quire_headroom_pages(
                box.cache.get(), batch.data(), count, 1, &bound, &available, nullptr) == QUIRE_OK);
    const quire_stats before = box.cache.stats();
    REQUIRE(available == before.pages - before.live_pages - before.promised_pages);
    const Result begun = box.begin(batch);
    if (refused(begun)) {
      REQUIRE(bound > available);
      REQUIRE(begun.needed() <= bound);
      return;
    }
    REQUIRE(box.cache.stats().live_pages - before.live_pages <= bound);
    REQUIRE(test::check_pool(box.state()) == "");
    const std::uint32_t draw = rng.below(20);
    if (draw == 0) {
      PoolCache::need(box.cache.step_cancel());
      REQUIRE(box.cache.stats().live_pages == before.live_pages);
      ++tally.cancelled_steps;
      return;
    }
    run_step(batch, draw == 1 && rng.below(3) == 0);
  }

  void run_step(const std::vector<std::int32_t>& batch, bool breaks) {
    const auto count = static_cast<std::uint32_t>(batch.size());
    const std::uint64_t seed = rng.bits();
    const bool attend = rng.below(6) != 0;
    for (std::uint32_t layer = 0; layer < box.spec.group.layers; ++layer) {
      PoolCache::need(box.append(layer, count, seed));
      if (attend) PoolCache::need(box.attention(layer, count, seed));
      if (breaks) break;
    }
    PoolCache::need(breaks ? box.cache.step_cancel() : box.cache.step_end());
    for (const std::int32_t slot : batch) {
      if (slot < 0) continue;
      Sequence& s = slots_[static_cast<std::size_t>(slot)];
      if (breaks) s.state = QUIRE_SEQ_BROKEN;
      if (!breaks) ++s.tokens;
    }
    ++(breaks ? tally.broken : tally.steps);
  }

  // A foreign plan of random tiers for some layers; the pages it takes are counted by hand.
  void apply_plan() {
    const quire_layout_desc& layout = box.spec.group.layout;
    const std::vector<std::uint32_t> open = in_state(QUIRE_SEQ_OPEN);
    if (open.empty() || (layout.flags & QUIRE_LAYOUT_NO_POSITION) != 0) return;
    const std::uint32_t s = any_of(open);
    test::RandomPlan plan(box, static_cast<std::int32_t>(s), slots_[s].tokens, rng);
    const quire_stats before = box.cache.stats();
    const Result result = box.cache.plan_apply(plan.args());
    const std::uint64_t available = before.pages - before.live_pages - before.promised_pages;
    REQUIRE(result.ok() == (plan.low_pages_taken() <= available));
    if (refused(result)) {
      REQUIRE(result.needed() == plan.low_pages_taken());
      return;
    }
    REQUIRE(plan.carried_out());
    ++tally.plans;
  }

  test::CostSheet sheet_;
  std::vector<Sequence> slots_;
};

void run_walk(PoolSpec spec, std::uint64_t seed, std::uint32_t operations, bool short_of_pages) {
  spec.sequences = 5;
  spec.max_tokens = 200;
  CacheWalk walk(spec, seed);
  INFO(walk.rng.describe());
  for (std::uint32_t i = 0; i < operations; ++i) {
    walk.operate();
    const std::string problem = walk.problem();
    if (!problem.empty()) FAIL(problem << " after operation " << i);
  }
  const Tally& t = walk.tally;
  REQUIRE(t.opened > 10);
  REQUIRE(t.prompts > 5);
  REQUIRE(t.steps > operations / 8);
  REQUIRE(t.cancelled_steps > 5);
  REQUIRE(t.broken + t.cancelled_prompts > 0);
  REQUIRE((t.shortages > 0) == short_of_pages);
  REQUIRE((t.plans > 100) == ((spec.group.layout.flags & QUIRE_LAYOUT_NO_POSITION) == 0));
  walk.close_all();
  REQUIRE(walk.problem() == "");
  REQUIRE(walk.box.cache.stats().live_pages == 0);
  REQUIRE(walk.box.cache.stats().promised_pages == 0);
  REQUIRE(walk.box.cache.stats().sequences == 0);
}

constexpr std::uint32_t kOperations = 4000;

TEST_CASE("a cache of two tiers accounts for every page under random calls", "[pages][walk]") {
  PoolSpec spec(QUIRE_RECIPE_DIFFKV_PAPER, 2, 2, 32);
  spec.set_ring(4, 12);
  for (const std::uint64_t pages : {40u, 70u, 400u}) {
    spec.pages = pages;
    run_walk(spec, 60 + pages, kOperations, pages < 400);
  }
}

TEST_CASE("a cache with offsets and a byte controller accounts for every page", "[pages][walk]") {
  PoolSpec spec(QUIRE_RECIPE_QUIRE_BUDGET, 3, 2, 64);
  spec.set_ring(2, 6);
  for (const std::uint64_t pages : {60u, 600u}) {
    spec.pages = pages;
    run_walk(spec, 70 + pages, kOperations, pages < 600);
  }
}

TEST_CASE("a cache of one tier without positions accounts for every page", "[pages][walk]") {
  PoolSpec spec(QUIRE_RECIPE_QUIRE_UNIFORM, 2, 3, 32);
  spec.set_ring(1, 9);
  for (const std::uint64_t pages : {40u, 400u}) {
    spec.pages = pages;
    run_walk(spec, 80 + pages, kOperations, pages < 400);
  }
}

TEST_CASE("a cache of evicting policies accounts for every page", "[pages][walk]") {
  PoolSpec spec(QUIRE_RECIPE_H2O, 1, 4, 32);
  spec.set_ring(0, 5);
  for (const std::uint64_t pages : {30u, 300u}) {
    spec.pages = pages;
    run_walk(spec, 90 + pages, kOperations, pages < 300);
  }
}

}  // namespace
}  // namespace quire
