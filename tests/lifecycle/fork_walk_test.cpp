// Trees of forks, deep and wide, in a small pool. Oracle: for each sequence the tokens (position
// and tier) that it held at its fork, followed by what its own steps did, as plain arrays; every
// page and counter by a walk over all rows; the bytes of every page at the moment it became shared.
#include <set>

#include "support/lifecycle.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kSequences = 9;
constexpr std::uint32_t kTokens = 260;

class Walk {
 public:
  Walk(std::uint32_t recipe, std::uint64_t seed)
      : rng_(seed), stream_(fork_shape(kTokens), rng_), rig_(spec(recipe)) {}

  void run(std::uint32_t calls) {
    INFO(rng_.describe());
    for (std::uint32_t i = 0; i < calls; ++i) {
      INFO("call " << i);
      call();
      REQUIRE(check_pool(rig_.state()) == "");
      REQUIRE(check_dense(rig_.state()) == "");
      check_shared();
    }
    for (const auto& [slot, tokens] : open_) REQUIRE(rig_.cache.close(slot).ok());
    REQUIRE(rig_.cache.stats().live_pages == 0);
    REQUIRE(rig_.cache.stats().shared_pages == 0);
    REQUIRE(rig_.cache.stats().record_bytes == 0);
    REQUIRE(forks_ > calls / 20);
    REQUIRE(steps_ > calls / 8);
  }

 private:
  static RigSpec spec(std::uint32_t recipe) {
    RigSpec s = fork_spec(recipe, kSequences);
    s.pages = 260;
    return s;
  }

  void call() {
    const std::uint32_t draw = rng_.below(20);
    if (open_.empty() || (draw == 0 && open_.size() < kSequences)) return open();
    const std::int32_t slot = any();
    if (draw < 4) return fork_one(slot);
    if (draw < 6 && open_.size() > 2) return close(slot);
    step(slot);
  }

  std::int32_t any() {
    auto at = open_.begin();
    std::advance(at, rng_.below(static_cast<std::uint32_t>(open_.size())));
    return at->first;
  }

  void open() {
    const std::int32_t slot = rig_.open();
    const std::uint32_t tokens = 20 + rng_.below(140);
    open_[slot] = 0;
    if (rig_.cache.prefill_begin(slot, tokens).status() == QUIRE_OUT_OF_PAGES) return close(slot);
    REQUIRE(rig_.cache.prefill_cancel(slot).ok());
    rig_.prompt(slot, stream_, tokens);
    open_[slot] = tokens;
  }

  void close(std::int32_t slot) {
    REQUIRE(rig_.cache.close(slot).ok());
    open_.erase(slot);
  }

  void fork_one(std::int32_t parent) {
    const std::vector<std::uint8_t> before = rig_.records(parent);
    std::int32_t child = -1;
    const Result forked = rig_.cache.fork(parent, &child);
    if (open_.size() == kSequences) {
      REQUIRE(forked.status() == QUIRE_CAPACITY);
    } else if (!forked.ok()) {
      REQUIRE(forked.status() == QUIRE_OUT_OF_PAGES);
    } else {
      REQUIRE(rig_.records(child) == before);
      open_[child] = open_.at(parent);
      ++forks_;
    }
    REQUIRE(rig_.records(parent) == before);
  }

  // Others hold what they held; the sequence itself has lost nothing that is frozen.
  void step(std::int32_t slot) {
    std::uint32_t& tokens = open_.at(slot);
    if (tokens >= kTokens) return close(slot);
    const std::int32_t other = any();
    const std::vector<std::uint8_t> records = rig_.records(other);
    std::vector<std::set<std::int32_t>> protected_;
    rig_.state().refresh_shared(slot);
    for (std::uint32_t h = 0; h < 4; ++h) {
      const HeadView view = rig_.view(slot, h / 2, h % 2);
      protected_.emplace_back();
      for (std::uint32_t t = 0; t < view.tier_count; ++t)
        for (std::uint32_t i = 0; i < view.frozen[t]; ++i)
          protected_.back().insert(place_of(view, t, i).position());
    }
    const Result done = rng_.below(8) == 0 ? prompt(slot, tokens) : one_token(slot, tokens);
    if (!done.ok()) {
      REQUIRE(done.status() == QUIRE_OUT_OF_PAGES);
      return close(slot);
    }
    ++steps_;
    if (other != slot && open_.count(other) != 0) REQUIRE(rig_.records(other) == records);
    for (std::uint32_t h = 0; h < 4; ++h) check_kept(slot, h, protected_[h]);
  }

  Result one_token(std::int32_t slot, std::uint32_t& tokens) {
    const Result begun = rig_.begin(slot);
    if (!begun.ok()) return begun;
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
      rig_.append(layer, stream_.k(layer, tokens), stream_.v(layer, tokens));
      rig_.attend(layer, stream_.q(layer, tokens));
    }
    ++tokens;
    return rig_.cache.step_end();
  }

  // A prompt on the past, while others that share it may close.
  Result prompt(std::int32_t slot, std::uint32_t& tokens) {
    const std::uint32_t count = 1 + rng_.below(std::min(60u, kTokens - tokens));
    const Result begun = rig_.cache.prefill_begin(slot, count);
    if (!begun.ok()) return begun;
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
      const std::int32_t other = any();
      if (other != slot && rng_.below(4) == 0) close(other);
      quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
      args.slot = slot;
      args.layer = layer;
      args.k = rows_of(stream_.k(layer, tokens));
      args.v = rows_of(stream_.v(layer, tokens));
      args.q_rows = std::min(rig_.spec.policy.tail_queries, count);
      if (args.q_rows > 0) args.q = rows_of(stream_.q(layer, tokens + count - args.q_rows));
      const Result stored = rig_.cache.prefill_layer(args);
      INFO(stored.text());
      REQUIRE(stored.ok());
      REQUIRE(check_pool(rig_.state()) == "");
    }
    tokens += count;
    return rig_.cache.prefill_end(slot);
  }

  void check_kept(std::int32_t slot, std::uint32_t h, const std::set<std::int32_t>& frozen) {
    std::set<std::int32_t> seen;
    for (const KeptToken& t : rig_.kept(slot, h / 2, h % 2))
      REQUIRE(seen.insert(t.position).second);
    if (!rig_.state().group.layout.tier[0].fields.position) return;  // implied: -1 in frozen
    for (const std::int32_t p : frozen) REQUIRE(seen.count(p) == 1);
  }

  void check_shared() {
    const PageCopies now = shared_pages(rig_);
    PageCopies still;
    for (const auto& [id, bytes] : copies_)
      if (now.count(id) != 0) still[id] = bytes;
    REQUIRE(unchanged(rig_, still));
    copies_ = now;
  }

  Rng rng_;
  Stream stream_;
  Rig rig_;
  std::map<std::int32_t, std::uint32_t> open_;  // slot -> tokens
  PageCopies copies_;
  std::uint32_t forks_ = 0;
  std::uint32_t steps_ = 0;
};

TEST_CASE("a random tree of forks keeps every promise of sharing", "[lifecycle][fork][walk]") {
  const std::uint32_t recipe = GENERATE(QUIRE_RECIPE_KEEP_ALL,
                                        QUIRE_RECIPE_DIFFKV_UPSTREAM,
                                        QUIRE_RECIPE_H2O,
                                        QUIRE_RECIPE_QUIRE_UNIFORM,
                                        QUIRE_RECIPE_QUIRE_BUDGET);
  INFO("recipe " << recipe);
  Walk(recipe, 9201).run(700);
}

// Page ids stand in several rows: what bounds the tables of a cache without sharing does not hold.
TEST_CASE("a wide fan of long forks finds room in the page tables", "[lifecycle][fork]") {
  constexpr std::uint32_t kLong = 2500;
  Rng rng(9203);
  INFO(rng.describe());
  const Stream stream(fork_shape(kLong), rng);
  RigSpec spec = fork_spec(QUIRE_RECIPE_KEEP_ALL, 12);
  spec.max_tokens = kLong;
  spec.pages = 800;
  Rig rig(spec);
  const std::int32_t parent = rig.open();
  rig.prompt(parent, stream, kLong);
  const std::vector<std::uint8_t> records = rig.records(parent);
  for (std::int32_t child = 1; child < 12; ++child) REQUIRE(fork(rig, parent) == child);
  REQUIRE(check_pool(rig.state()) == "");
  REQUIRE(rig.records(11) == records);
  for (std::int32_t slot = 0; slot < 12; ++slot) REQUIRE(rig.cache.close(slot).ok());
  REQUIRE(rig.cache.stats().live_pages == 0);
}

TEST_CASE("a chain of forks whose parents close is one sequence", "[lifecycle][fork]") {
  Rng rng(9202);
  INFO(rng.describe());
  const Stream stream(fork_shape(kTokens), rng);
  Rig rig(fork_spec(QUIRE_RECIPE_KEEP_ALL, 2));
  Rig twin(fork_spec(QUIRE_RECIPE_KEEP_ALL, 1));
  std::int32_t slot = rig.open();
  const std::int32_t alone = twin.open();
  for (std::uint32_t t = 0; t < kTokens; ++t) {
    const std::vector<float> want = twin.step(alone, stream, t);
    REQUIRE(rig.step(slot, stream, t) == want);
    const std::int32_t child = fork(rig, slot);
    REQUIRE(rig.cache.close(slot).ok());
    slot = child;
  }
  REQUIRE(rig.records(slot) == twin.records(alone));
  REQUIRE(rig.cache.stats().live_pages == twin.cache.stats().live_pages);
  REQUIRE(rig.cache.stats().shared_pages == 0);
}

}  // namespace
}  // namespace quire::test
