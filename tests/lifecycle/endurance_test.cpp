// 20,000 sequences through a small pool that is kept full. Oracles: pages that a call needs, from
// the closed form or by counting; pages that are free, from the statistics; frames before and after
// a refusal.
#include "support/drafts.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kSequences = 20000;
constexpr std::uint32_t kOpen = 100;
constexpr std::uint32_t kTokens = 90;
constexpr std::uint64_t kPages = 120;

class Crowd {
 public:
  explicit Crowd(std::uint32_t recipe)
      : rng(9991 + recipe), stream(shape(), rng), rig(spec(recipe)) {}

  static StreamShape shape() {
    StreamShape s;
    s.layers = 1;
    s.kv_heads = 2;
    s.group = 1;
    s.dim = 16;
    s.tokens = kTokens + 1;
    return s;
  }

  static RigSpec spec(std::uint32_t recipe) {
    RigSpec s(recipe, shape());
    s.set_ring(1, 8);
    s.sequences = kOpen;
    s.max_tokens = kTokens;
    s.pages = kPages;
    s.cache_flags = QUIRE_CACHE_SHARING;
    s.group.layout.expected_tokens = 16;
    if (s.policy.tail_queries > 4) s.policy.tail_queries = 4;
    if (s.policy.budget_tokens != 0) s.policy.budget_tokens = 40;
    return s;
  }

  void run() {
    INFO(rng.describe());
    while (born < kSequences) {
      operate();
      const quire_stats stats = rig.cache.stats();
      if (stats.live_pages > kPages || stats.promised_pages != 0) FAIL("pages that are not there");
      full += stats.live_pages * 20 >= kPages * 19 ? 1 : 0;
      ++operations;
    }
    while (!open.empty()) close(0);
    const quire_stats stats = rig.cache.stats();
    REQUIRE(stats.live_pages == 0);
    REQUIRE(stats.record_bytes == 0);
    REQUIRE(stats.sequences == 0);
    REQUIRE(stats.shortages == refused);
    REQUIRE(check_pool(rig.state()) == "");
  }

  std::uint64_t operations = 0, full = 0, refused = 0;
  std::uint32_t refusals[4] = {};  // of prompts, steps, forks, imports

 private:
  std::uint64_t free_pages() const {
    const quire_stats stats = rig.cache.stats();
    return stats.pages - stats.live_pages - stats.promised_pages;
  }

  void operate() {
    const std::uint32_t draw = rng.below(16);
    // A pool with room takes more; one that is short lets go of somebody.
    if (open.size() < kOpen && (open.empty() || draw < 7))
      return open.empty() || draw < 4 ? prompt() : fork_one();
    if (draw == 7) return swap();
    if (open.size() == kOpen) return close(rng.below(count()));
    step();
  }

  std::uint32_t count() const { return static_cast<std::uint32_t>(open.size()); }

  // A refusal tells the truth, is counted, and leaves what can be seen of one sequence alone.
  void require_short(const Result& result, int kind, std::uint64_t needed) {
    INFO(result.text());
    REQUIRE(result.status() == QUIRE_OUT_OF_PAGES);
    REQUIRE(result.needed() == needed);
    REQUIRE(result.given() == free_pages());
    REQUIRE(needed > result.given());
    ++refused;
    ++refusals[kind];
  }

  void prompt() {
    const std::uint32_t tokens = 1 + rng.below(60);
    std::uint64_t needed = 0, available = 0;
    REQUIRE(
        quire_pages_for(rig.cache.get(), &rig.spec.policy, tokens, &needed, &available, nullptr) ==
        QUIRE_OK);
    REQUIRE(available == free_pages());
    const std::int32_t slot = rig.open();
    const Result begun = rig.cache.prefill_begin(slot, tokens);
    REQUIRE(begun.ok() == (needed <= available));
    if (!begun.ok()) {
      require_short(begun, 0, needed);
      REQUIRE(rig.cache.close(slot).ok());
      return close(rng.below(count()));
    }
    REQUIRE(rig.cache.prefill_cancel(slot).ok());
    rig.prompt(slot, stream, tokens);
    open.push_back(slot);
    ++born;
  }

  // The open pages of every tier and head, by what its tokens leave over.
  std::uint64_t pages_of_fork(std::int32_t slot) const {
    std::uint64_t pages = 0;
    for (std::uint32_t h = 0; h < 2; ++h) {
      const HeadView view = rig.view(slot, 0, h);
      for (std::uint32_t t = 0; t < view.tier_count; ++t)
        pages += view.tokens[t] % view.tiers[t].tokens != 0 ? 1 : 0;
    }
    return pages;
  }

  void fork_one() {
    const std::int32_t parent = open[rng.below(count())];
    const std::uint64_t needed = pages_of_fork(parent);
    const std::uint64_t free = free_pages();
    std::int32_t child = -1;
    const Result forked = rig.cache.fork(parent, &child);
    REQUIRE(forked.ok() == (needed <= free));
    if (!forked.ok()) {
      require_short(forked, 2, needed);
      return close(rng.below(count()));
    }
    open.push_back(child);
    ++born;
  }

  void close(std::uint32_t index) {
    if (open.empty()) return;
    REQUIRE(rig.cache.close(open[index]).ok());
    open[index] = open.back();
    open.pop_back();
  }

  // Out and in again, after another took its place if there is one to take it.
  void swap() {
    const std::uint32_t index = rng.below(count());
    const std::vector<std::uint8_t> frame = exported(rig, open[index]);
    const std::uint64_t needed = rig.cache.info(open[index]).live_pages;
    close(index);
    if (rng.below(2) == 0 && open.size() + 1 < kOpen) prompt();
    const std::uint64_t free = free_pages();
    std::int32_t slot = -1;
    const Result back = rig.cache.import_frame(frame.data(), frame.size(), &slot);
    REQUIRE(back.ok() == (needed <= free));
    if (!back.ok()) return require_short(back, 3, needed);
    REQUIRE((exported(rig, slot) == frame));
    open.push_back(slot);
    ++born;
  }

  // One step of all that have room for a token. What it needs is what it takes where it is granted;
  // a refusal is tried again one by one.
  void step() {
    std::vector<std::int32_t> batch;
    for (const std::int32_t slot : open)
      if (rig.cache.info(slot).tokens < kTokens) batch.push_back(slot);
    if (batch.empty()) return close(0);
    const std::uint64_t free = free_pages();
    const Result begun =
        rig.cache.step_begin(batch.data(), static_cast<std::uint32_t>(batch.size()));
    if (!begun.ok()) {
      require_short(begun, 1, pages_alone(batch, free));
      return close(rng.below(count()));
    }
    const std::size_t n = batch.size();
    const std::uint32_t t = rng.below(kTokens);
    std::vector<float> k, v, q;
    for (std::size_t i = 0; i < n; ++i) {
      k.insert(k.end(), stream.k(0, t), stream.k(0, t) + 32);
      v.insert(v.end(), stream.v(0, t), stream.v(0, t) + 32);
      q.insert(q.end(), stream.q(0, t), stream.q(0, t) + 32);
    }
    rig.append(0, k.data(), v.data());
    rig.attend(0, q.data(), static_cast<std::uint32_t>(n));
    REQUIRE(rig.cache.step_end().ok());
  }

  // Pages of the steps one at a time, each given up before its first append. One that does not fit
  // alone says itself what it needs.
  std::uint64_t pages_alone(const std::vector<std::int32_t>& batch, std::uint64_t free) {
    std::uint64_t pages = 0;
    for (const std::int32_t slot : batch) {
      const Result one = rig.cache.step_begin(&slot, 1);
      if (!one.ok()) {
        ++refused;
        pages += one.needed();
        continue;
      }
      pages += free - free_pages();
      REQUIRE(rig.cache.step_cancel().ok());
    }
    return pages;
  }

  Rng rng;
  Stream stream;
  Rig rig;
  std::vector<std::int32_t> open;
  std::uint32_t born = 0;
};

TEST_CASE("20,000 sequences pass through a full pool and leave it empty",
          "[lifecycle][endurance]") {
  for (const std::uint32_t recipe : {QUIRE_RECIPE_DIFFKV_UPSTREAM, QUIRE_RECIPE_KEEP_ALL}) {
    INFO("recipe " << recipe);
    Crowd crowd(recipe);
    crowd.run();
    REQUIRE(crowd.full * 2 > crowd.operations);  // at 95 % and more, most of the time
    for (const std::uint32_t n : crowd.refusals) REQUIRE(n > 50);
  }
}

}  // namespace
}  // namespace quire::test
