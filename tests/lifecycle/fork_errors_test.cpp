// Forks that are refused. Oracle: the status and field that quire.h names, and a copy of all
// memory.
#include "support/lifecycle.hpp"
#include "support/pages_memory.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kPrompt = 100;

struct Fixture {
  explicit Fixture(const RigSpec& spec)
      : rng(9101), stream(fork_shape(kPrompt + 8), rng), rig(spec), parent(rig.open()) {
    rig.prompt(parent, stream, kPrompt);
  }

  quire_seq_fork_args args() const {
    quire_seq_fork_args a = QUIRE_SEQ_FORK_ARGS_INIT;
    a.slot = parent;
    return a;
  }

  void refused(const quire_seq_fork_args& a, quire_status status, const char* field) {
    const std::vector<std::uint8_t> before = rig.records(parent);
    const quire_stats stats = rig.cache.stats();
    std::int32_t slot = 77;
    const Result result = rig.cache.fork(a, &slot);
    INFO(result.text());
    REQUIRE(result.status() == status);
    REQUIRE(std::string(result.field()) == field);
    REQUIRE(slot == 77);
    REQUIRE(rig.records(parent) == before);
    REQUIRE(rig.cache.stats().live_pages == stats.live_pages);
    REQUIRE(rig.cache.stats().sequences == stats.sequences);
    REQUIRE(check_pool(rig.state()) == "");
  }

  Rng rng;
  Stream stream;
  Rig rig;
  std::int32_t parent;
};

TEST_CASE("a fork is refused in any state but open", "[lifecycle][fork][errors]") {
  Fixture f(fork_spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, 3));
  quire_seq_fork_args a = f.args();
  for (const std::int32_t slot : {-1, 3, 1000}) {
    a.slot = slot;
    f.refused(a, QUIRE_INVALID_ARGUMENT, "slot");
  }
  a.slot = 1;
  f.refused(a, QUIRE_BAD_STATE, "slot");  // closed
  a.slot = f.parent;
  REQUIRE(f.rig.begin(f.parent).ok());
  f.refused(a, QUIRE_BAD_STATE, "slot");
  REQUIRE(f.rig.cache.step_cancel().ok());
  const std::int32_t other = f.rig.open();
  REQUIRE(f.rig.cache.prefill_begin(other, 8).ok());
  a.slot = other;
  f.refused(a, QUIRE_BAD_STATE, "slot");
}

TEST_CASE("a cache without sharing has no forks", "[lifecycle][fork][errors]") {
  RigSpec spec = fork_spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, 2);
  spec.cache_flags = 0;
  Fixture f(spec);
  f.refused(f.args(), QUIRE_UNSUPPORTED, "cache");
}

TEST_CASE("a fork without a free slot or with bad overrides is refused",
          "[lifecycle][fork][errors]") {
  Fixture f(fork_spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, 2));
  quire_seq_fork_args a = f.args();
  a.threshold_count = 1;
  f.refused(a, QUIRE_INVALID_ARGUMENT, "thresholds");
  quire_threshold t = {2, 0, 1.0f, 0.5f};
  a.thresholds = &t;
  f.refused(a, QUIRE_INVALID_ARGUMENT, "thresholds.layer");
  t = {0, 2, 1.0f, 0.5f};
  f.refused(a, QUIRE_INVALID_ARGUMENT, "thresholds.head");
  t = {0, 0, 0.5f, 1.0f};
  f.refused(a, QUIRE_INVALID_ARGUMENT, "alpha_low");
  a = f.args();
  a.flags = 1;
  f.refused(a, QUIRE_ABI_MISMATCH, "flags");
  REQUIRE(quire_seq_fork(f.rig.cache.get(), &a, nullptr) == QUIRE_ABI_MISMATCH);
  a.flags = 0;
  REQUIRE(quire_seq_fork(f.rig.cache.get(), &a, nullptr) == QUIRE_INVALID_ARGUMENT);
  REQUIRE(quire_seq_fork(nullptr, &a, &a.slot) == QUIRE_INVALID_ARGUMENT);
  REQUIRE(quire_seq_fork(f.rig.cache.get(), nullptr, &a.slot) == QUIRE_INVALID_ARGUMENT);
  fork(f.rig, f.parent);
  f.refused(f.args(), QUIRE_CAPACITY, "max_sequences");
}

TEST_CASE("a fork needs the open page of every tier, all or none", "[lifecycle][fork][errors]") {
  Rng rng(9102);
  const Stream stream(fork_shape(kPrompt), rng);
  RigSpec spec = fork_spec(QUIRE_RECIPE_KEEP_ALL, 8);
  Rig probe(spec);
  const std::int32_t first = probe.open();
  probe.prompt(first, stream, kPrompt);
  spec.pages = probe.cache.stats().live_pages + 6;  // 4 heads have an open page each
  Fixture f(spec);
  const std::int32_t child = fork(f.rig, f.parent);
  std::int32_t slot = 77;
  const Result result = f.rig.cache.fork(f.parent, &slot);
  REQUIRE(result.status() == QUIRE_OUT_OF_PAGES);
  REQUIRE(result.needed() == 4);
  REQUIRE(result.given() == 2);
  REQUIRE(slot == 77);
  REQUIRE(f.rig.cache.stats().shortages == 1);
  REQUIRE(check_pool(f.rig.state()) == "");
  REQUIRE(f.rig.cache.close(child).ok());
  fork(f.rig, f.parent);
}

TEST_CASE("a foreign plan leaves the tokens of shared pages alone", "[lifecycle][fork][errors]") {
  Fixture f(fork_spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, 2));
  const std::int32_t child = fork(f.rig, f.parent);
  const std::vector<KeptToken> kept = f.rig.kept(child, 0, 0);
  const HeadView view = f.rig.view(child, 0, 0);
  REQUIRE(view.frozen[0] > 0);
  const std::int32_t frozen = place_of(view, 0, 0).position();
  const std::int32_t own = place_of(view, 0, view.tokens[0] - 1).position();
  std::vector<std::uint8_t> tiers(2 * kPrompt, 255);
  quire_plan_apply_args args = QUIRE_PLAN_APPLY_ARGS_INIT;
  args.slot = child;
  args.layer_count = 1;
  args.tokens = kPrompt;
  args.tiers = tiers.data();
  tiers[static_cast<std::size_t>(frozen)] = 254;
  const Result refused = f.rig.cache.plan_apply(args);
  REQUIRE(refused.status() == QUIRE_INVALID_ARGUMENT);
  REQUIRE(std::string(refused.field()) == "tiers");
  REQUIRE(f.rig.kept(child, 0, 0) == kept);
  tiers[static_cast<std::size_t>(frozen)] = 0;  // its own
  tiers[static_cast<std::size_t>(own)] = 254;
  REQUIRE(f.rig.cache.plan_apply(args).ok());
  REQUIRE(f.rig.kept(child, 0, 0).size() == kept.size() - 1);
  MoveList moves = {{0, 0, frozen, 254, {0, 0, 0}}};
  const Result replayed = f.rig.begin(child, nullptr, &moves);
  REQUIRE(replayed.status() == QUIRE_INVALID_ARGUMENT);
  REQUIRE(std::string(replayed.field()) == "plan.position");
}

}  // namespace
}  // namespace quire::test
