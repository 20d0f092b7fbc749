// Truncation and removed spans. Oracles: what the heads held before, without the positions that
// went; a twin that never had them; query counts written down here; a walk over all pages.
#include "support/attention_snapshot.hpp"
#include "support/lifecycle.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kPrompt = 150;
constexpr std::uint32_t kSteps = 40;
constexpr std::uint32_t kLength = kPrompt + kSteps;

const std::uint32_t kRecipes[] = {QUIRE_RECIPE_KEEP_ALL,
                                  QUIRE_RECIPE_DIFFKV_PAPER,
                                  QUIRE_RECIPE_DIFFKV_UPSTREAM,
                                  QUIRE_RECIPE_STREAMING_LLM,
                                  QUIRE_RECIPE_H2O,
                                  QUIRE_RECIPE_SNAPKV,
                                  QUIRE_RECIPE_QUIRE_UNIFORM,
                                  QUIRE_RECIPE_QUIRE_BUDGET};

std::vector<Snapshot> snapshots(const Rig& rig, std::int32_t slot) {
  std::vector<Snapshot> all;
  for (std::uint32_t h = 0; h < 4; ++h) all.push_back(snapshot(rig.view(slot, h / 2, h % 2)));
  return all;
}

// `before` without positions [first, end), and without scores, which a truncation changes.
std::vector<Snapshot> without(std::vector<Snapshot> before, std::int32_t first, std::int32_t end) {
  for (Snapshot& head : before) {
    head.erase(head.lower_bound(first), head.lower_bound(end));
    for (auto& [position, token] : head) token.score = 0.0f;
  }
  return before;
}

void require_sound(const Rig& rig) {
  REQUIRE(check_pool(rig.state()) == "");
  REQUIRE(check_dense(rig.state()) == "");
}

struct Run {
  Run(std::uint32_t recipe, std::uint32_t sequences, std::uint64_t seed)
      : rng(seed), stream(fork_shape(kLength + 60), rng), rig(fork_spec(recipe, sequences)) {
    slot = rig.open();
    rig.prompt(slot, stream, kPrompt);
    for (std::uint32_t t = kPrompt; t < kLength; ++t) rig.step(slot, stream, t);
  }

  void require_steps(std::int32_t which, std::uint32_t first, std::uint32_t count) {
    AttentionScale scale = stream.attention_scale();
    scale.n = kLength + 60;
    for (std::uint32_t t = first; t < first + count; ++t) {
      const std::vector<float> out = rig.step(which, stream, t);
      require_sound(rig);
      for (std::uint32_t layer = 0; layer < 2; ++layer) {
        const std::size_t width = out.size() / 2;
        const std::vector<float> mine(
            out.begin() + static_cast<std::ptrdiff_t>(layer * width),
            out.begin() + static_cast<std::ptrdiff_t>((layer + 1) * width));
        require_attention(
            rig, which, {layer, stream.q(layer, t), stream.scale()}, mine, output_tolerance(scale));
      }
    }
  }

  Rng rng;
  Stream stream;
  Rig rig;
  std::int32_t slot = -1;
};

TEST_CASE("a truncation removes the positions behind a length and nothing else",
          "[lifecycle][truncate]") {
  for (const std::uint32_t recipe : kRecipes) {
    for (const std::uint32_t tokens : {190u, 189u, 180u, 173u, 160u, 100u, 17u, 1u}) {
      INFO("recipe " << recipe << " to " << tokens);
      Run run(recipe, 1, 9501);
      const std::vector<Snapshot> before = snapshots(run.rig, run.slot);
      std::uint32_t lossy = 7;
      REQUIRE(run.rig.cache.truncate(run.slot, tokens, &lossy).ok());
      const bool scored = run.rig.spec.policy.statistic != QUIRE_STATISTIC_NONE ||
                          recipe == QUIRE_RECIPE_STREAMING_LLM;
      const bool sink_alone = tokens == 1;  // which has never moved
      REQUIRE(lossy == (tokens < kLength && (scored || !sink_alone) ? 1 : 0));
      REQUIRE(run.rig.cache.info(run.slot).tokens == tokens);
      const auto all = static_cast<std::int32_t>(kLength);
      REQUIRE(without(snapshots(run.rig, run.slot), all, all) ==
              without(before, static_cast<std::int32_t>(tokens), all));
      require_sound(run.rig);
      run.require_steps(run.slot, tokens, 30);
      REQUIRE(run.rig.cache.close(run.slot).ok());
      REQUIRE(run.rig.cache.stats().live_pages == 0);
      REQUIRE(run.rig.cache.stats().record_bytes == 0);
    }
  }
}

// Nothing has left the ring of 1 + 16, so that the twin's ring is what is left.
TEST_CASE("a truncation within the ring is exact where no scores are kept",
          "[lifecycle][truncate]") {
  for (const std::uint32_t recipe : {QUIRE_RECIPE_KEEP_ALL, QUIRE_RECIPE_QUIRE_UNIFORM}) {
    INFO("recipe " << recipe);
    Rng rng(9502);
    const Stream stream(fork_shape(kLength), rng);
    Rig rig(fork_spec(recipe, 1));
    Rig twin(fork_spec(recipe, 1));
    const std::int32_t slot = rig.open();
    const std::int32_t alone = twin.open();
    for (std::uint32_t t = 0; t < 16; ++t) rig.step(slot, stream, t);
    for (std::uint32_t t = 0; t < 5; ++t) twin.step(alone, stream, t);
    quire_seq_truncate_args args = QUIRE_SEQ_TRUNCATE_ARGS_INIT;
    std::uint32_t lossy = 7;
    args.flags = QUIRE_TRUNCATE_STRICT;
    args.slot = slot;
    args.tokens = 5;
    args.lossy = &lossy;
    REQUIRE(rig.cache.truncate(args).ok());
    REQUIRE(lossy == 0);
    REQUIRE((rig.records(slot) == twin.records(alone)));
    for (std::uint32_t t = 5; t < 60; ++t)
      REQUIRE(rig.step(slot, stream, t) == twin.step(alone, stream, t));
    REQUIRE((rig.records(slot) == twin.records(alone)));
  }
}

TEST_CASE("a strict truncation that would lose something changes nothing",
          "[lifecycle][truncate]") {
  for (const std::uint32_t recipe : kRecipes) {
    INFO("recipe " << recipe);
    Run run(recipe, 1, 9503);
    const std::vector<std::uint8_t> before = exported(run.rig, run.slot);
    quire_seq_truncate_args args = QUIRE_SEQ_TRUNCATE_ARGS_INIT;
    std::uint32_t lossy = 7;
    args.flags = QUIRE_TRUNCATE_STRICT;
    args.slot = run.slot;
    args.tokens = kLength - 1;
    args.lossy = &lossy;
    const Result refused = run.rig.cache.truncate(args);
    REQUIRE(refused.status() == QUIRE_NOT_REVERSIBLE);
    REQUIRE(std::string(refused.field()) == "tokens");
    REQUIRE(lossy == 7);
    REQUIRE((exported(run.rig, run.slot) == before));
    args.tokens = kLength;
    REQUIRE(run.rig.cache.truncate(args).ok());
    REQUIRE((exported(run.rig, run.slot) == before));
  }
}

// Queries that a score is the sum of: those of the prompt's tail that come at or after the token,
// and all that follow the prompt.
std::int32_t queries(std::int32_t position,
                     std::int32_t prompt,
                     std::int32_t tail,
                     std::int32_t length) {
  const std::int32_t first = position < prompt ? std::max(position, prompt - tail) : position;
  return length - first;
}

TEST_CASE("a truncation keeps the mean of every score", "[lifecycle][truncate]") {
  for (const std::uint32_t recipe :
       {QUIRE_RECIPE_DIFFKV_UPSTREAM, QUIRE_RECIPE_H2O, QUIRE_RECIPE_QUIRE_BUDGET}) {
    for (const std::uint32_t tokens : {175u, 120u}) {  // behind the prompt's end, within it
      INFO("recipe " << recipe << " to " << tokens);
      Run run(recipe, 1, 9504);
      const auto tail =
          static_cast<std::int32_t>(run.rig.state().slots[run.slot].policy.tail_queries);
      const std::vector<Snapshot> before = snapshots(run.rig, run.slot);
      REQUIRE(run.rig.cache.truncate(run.slot, tokens, nullptr).ok());
      const std::vector<Snapshot> after = snapshots(run.rig, run.slot);
      const auto length = static_cast<std::int32_t>(tokens);
      for (std::size_t h = 0; h < after.size(); ++h) {
        for (const auto& [p, token] : after[h]) {
          const double was = queries(p, kPrompt, tail, kLength);
          const double is = queries(p, std::min<std::int32_t>(kPrompt, length), tail, length);
          const double old = before[h].at(p).score;
          const double want = old * is / was;
          REQUIRE(std::fabs(static_cast<double>(token.score) - want) <= 4.0 * kFloatEps * old);
        }
      }
    }
  }
}

TEST_CASE("a sequence cut to nothing takes a prompt like a new one", "[lifecycle][truncate]") {
  for (const std::uint32_t recipe : kRecipes) {
    INFO("recipe " << recipe);
    Run run(recipe, 1, 9505);
    Rig twin(fork_spec(recipe, 1));
    const std::int32_t alone = twin.open();
    std::uint32_t lossy = 7;
    REQUIRE(run.rig.cache.truncate(run.slot, 0, &lossy).ok());
    REQUIRE(lossy == 0);
    REQUIRE(run.rig.cache.stats().live_pages == 0);
    run.rig.prompt(run.slot, run.stream, kPrompt);
    twin.prompt(alone, run.stream, kPrompt);
    for (std::uint32_t t = kPrompt; t < kLength; ++t)
      REQUIRE(run.rig.step(run.slot, run.stream, t) == twin.step(alone, run.stream, t));
    REQUIRE((run.rig.records(run.slot) == twin.records(alone)));
    REQUIRE((exported(run.rig, run.slot) == exported(twin, alone)));
  }
}

TEST_CASE("a truncated fork copies what it writes into and leaves its parent alone",
          "[lifecycle][truncate][fork]") {
  for (const std::uint32_t recipe : kRecipes) {
    for (const std::uint32_t tokens : {185u, 140u, 60u, 3u, 0u}) {
      INFO("recipe " << recipe << " to " << tokens);
      Run run(recipe, 3, 9506);
      const std::int32_t child = fork(run.rig, run.slot);
      const std::int32_t other = fork(run.rig, child);
      const std::vector<std::uint8_t> records = run.rig.records(run.slot);
      REQUIRE(run.rig.cache.truncate(child, tokens, nullptr).ok());
      require_sound(run.rig);
      REQUIRE((run.rig.records(run.slot) == records));
      REQUIRE((run.rig.records(other) == records));
      run.require_steps(child, tokens, 25);
      REQUIRE((run.rig.records(other) == records));
      REQUIRE(run.rig.cache.truncate(run.slot, 100, nullptr).ok());
      require_sound(run.rig);
      REQUIRE((run.rig.records(other) == records));
      for (const std::int32_t slot : {other, run.slot, child}) {
        REQUIRE(run.rig.cache.close(slot).ok());
        require_sound(run.rig);
      }
      REQUIRE(run.rig.cache.stats().live_pages == 0);
      REQUIRE(run.rig.cache.stats().record_bytes == 0);
    }
  }
}

Result remove(const Rig& rig,
              std::int32_t slot,
              std::int32_t first,
              std::int32_t end,
              std::uint64_t* removed = nullptr) {
  quire_seq_remove_span_args args = QUIRE_SEQ_REMOVE_SPAN_ARGS_INIT;
  args.slot = slot;
  args.first = first;
  args.end = end;
  args.removed = removed;
  return rig.cache.remove_span(args);
}

TEST_CASE("a removed span leaves a hole, all else, and the positions behind it",
          "[lifecycle][remove_span]") {
  for (const std::uint32_t recipe : kRecipes) {
    if (recipe == QUIRE_RECIPE_QUIRE_UNIFORM) continue;  // positions are not stored
    for (const auto& [first, end] :
         std::vector<std::pair<int, int>>{{1, 174}, {1, 2}, {30, 90}, {100, 174}, {50, 50}}) {
      INFO("recipe " << recipe << " span " << first << " to " << end);
      Run run(recipe, 2, 9507);
      const std::int32_t child = fork(run.rig, run.slot);
      const std::vector<Snapshot> before = snapshots(run.rig, child);
      std::uint64_t removed = 7;
      REQUIRE(remove(run.rig, child, first, end, &removed).ok());
      std::uint64_t gone = 0;
      for (const Snapshot& head : before)
        gone += static_cast<std::uint64_t>(
            std::distance(head.lower_bound(first), head.lower_bound(end)));
      REQUIRE(removed == gone);
      REQUIRE(run.rig.cache.info(child).tokens == kLength);
      REQUIRE(without(snapshots(run.rig, child), 0, 0) == without(before, first, end));
      REQUIRE(snapshots(run.rig, run.slot) == before);
      require_sound(run.rig);
      run.require_steps(child, kLength, 20);
    }
  }
}

TEST_CASE("a span that overlaps the ring, or lies the wrong way round, is refused",
          "[lifecycle][remove_span]") {
  Run run(QUIRE_RECIPE_DIFFKV_UPSTREAM, 1, 9508);
  const std::vector<std::uint8_t> before = exported(run.rig, run.slot);
  const auto refused = [&](int first, int end, const char* field) {
    INFO(first << " to " << end);
    const Result result = remove(run.rig, run.slot, first, end);
    REQUIRE(result.status() == QUIRE_INVALID_ARGUMENT);
    REQUIRE(std::string(result.field()) == field);
    REQUIRE((exported(run.rig, run.slot) == before));
  };
  refused(0, 5, "first");  // the sink
  refused(20, 10, "first");
  refused(-1, 4, "first");
  refused(20, 175, "end");  // the window begins at 174
  refused(180, 185, "end");
  refused(20, 4000, "end");
  Run uniform(QUIRE_RECIPE_QUIRE_UNIFORM, 1, 9508);
  REQUIRE(remove(uniform.rig, uniform.slot, 20, 30).status() == QUIRE_UNSUPPORTED);
}

TEST_CASE("a truncation beyond the end is refused", "[lifecycle][truncate]") {
  Run run(QUIRE_RECIPE_KEEP_ALL, 1, 9509);
  const std::vector<std::uint8_t> before = exported(run.rig, run.slot);
  const Result result = run.rig.cache.truncate(run.slot, kLength + 1, nullptr);
  REQUIRE(result.status() == QUIRE_INVALID_ARGUMENT);
  REQUIRE(std::string(result.field()) == "tokens");
  REQUIRE(result.needed() == kLength);
  REQUIRE(result.given() == kLength + 1);
  REQUIRE((exported(run.rig, run.slot) == before));
}

// Copies of shared pages need room; without it nothing happens.
TEST_CASE("a truncation in a full pool says what it needs", "[lifecycle][truncate][fork]") {
  Rng rng(9510);
  INFO(rng.describe());
  const Stream stream(fork_shape(kLength), rng);
  RigSpec spec = fork_spec(QUIRE_RECIPE_KEEP_ALL, 2);
  spec.pages = 60;
  Rig rig(spec);
  const std::int32_t parent = rig.open();
  rig.prompt(parent, stream, kPrompt);
  const std::int32_t child = fork(rig, parent);
  const std::uint64_t free = rig.cache.stats().pages - rig.cache.stats().live_pages;
  std::vector<std::int32_t> hoard(free);
  CacheState& cache = rig.state();
  for (std::int32_t& page : hoard) page = cache.free_pages.take();
  const std::vector<std::uint8_t> before = rig.records(child);
  const Result refused = rig.cache.truncate(child, 50, nullptr);
  REQUIRE(refused.status() == QUIRE_OUT_OF_PAGES);
  REQUIRE(refused.needed() == 4);  // the page that is open at 50, in each of four heads
  REQUIRE(refused.given() == 0);
  REQUIRE((rig.records(child) == before));
  for (const std::int32_t page : hoard) cache.free_pages.put(page);
  REQUIRE(rig.cache.truncate(child, 50, nullptr).ok());
  require_sound(rig);
}

}  // namespace
}  // namespace quire::test
