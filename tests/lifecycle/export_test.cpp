// Frames: out of one cache, into another. Oracles: records by a walk over segments, a twin that
// never moved, counters.
#include "support/lifecycle.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kPrompt = 150;
constexpr std::uint32_t kSteps = 50;

const std::uint32_t kRecipes[] = {QUIRE_RECIPE_KEEP_ALL,
                                  QUIRE_RECIPE_DIFFKV_PAPER,
                                  QUIRE_RECIPE_DIFFKV_UPSTREAM,
                                  QUIRE_RECIPE_STREAMING_LLM,
                                  QUIRE_RECIPE_H2O,
                                  QUIRE_RECIPE_SNAPKV,
                                  QUIRE_RECIPE_QUIRE_UNIFORM,
                                  QUIRE_RECIPE_QUIRE_BUDGET};

// A prompt and `steps` steps in `rig` and in `twin`.
struct Pair {
  Pair(const RigSpec& rig_spec, const RigSpec& twin_spec, const Stream& stream, std::uint32_t steps)
      : rig(rig_spec), twin(twin_spec), slot(rig.open()), alone(twin.open()) {
    rig.prompt(slot, stream, kPrompt);
    twin.prompt(alone, stream, kPrompt);
    for (std::uint32_t t = kPrompt; t < kPrompt + steps; ++t) {
      rig.step(slot, stream, t);
      twin.step(alone, stream, t);
    }
  }

  Rig rig;
  Rig twin;
  std::int32_t slot;
  std::int32_t alone;
};

TEST_CASE("export, close, import goes on bit for bit", "[lifecycle][export]") {
  for (const std::uint32_t recipe : kRecipes) {
    Rng rng(9301);
    INFO(rng.describe() << " recipe " << recipe);
    const Stream stream(fork_shape(kPrompt + 2 * kSteps), rng);
    const RigSpec spec = fork_spec(recipe, 1);
    Pair pair(spec, spec, stream, kSteps);
    const std::vector<std::uint8_t> records = pair.rig.records(pair.slot);
    const std::vector<std::uint8_t> frame = exported(pair.rig, pair.slot);
    REQUIRE(pair.rig.records(pair.slot) == records);
    REQUIRE(pair.rig.cache.close(pair.slot).ok());
    std::int32_t slot = -1;
    REQUIRE(pair.rig.cache.import_frame(frame.data(), frame.size(), &slot).ok());
    REQUIRE(pair.rig.records(slot) == records);
    REQUIRE(check_pool(pair.rig.state()) == "");
    REQUIRE(check_dense(pair.rig.state()) == "");
    REQUIRE(exported(pair.rig, slot) == frame);
    for (std::uint32_t t = kPrompt + kSteps; t < kPrompt + 2 * kSteps; ++t) {
      INFO("length " << t);
      REQUIRE(pair.rig.step(slot, stream, t) == pair.twin.step(pair.alone, stream, t));
    }
    REQUIRE(pair.rig.records(slot) == pair.twin.records(pair.alone));
  }
}

TEST_CASE("a frame fits into a cache of other pages, slots and ring", "[lifecycle][export]") {
  for (const std::uint32_t recipe : kRecipes) {
    Rng rng(9302);
    INFO(rng.describe() << " recipe " << recipe);
    const Stream stream(fork_shape(kPrompt + 2 * kSteps), rng);
    const RigSpec spec = fork_spec(recipe, 1);
    RigSpec other = spec;
    other.cache_flags = 0;
    other.sequences = 5;
    other.pages = 900;
    other.max_tokens = 700;
    other.group.layout.expected_tokens = 0;  // the largest pages
    other.group.max_draft = 7;
    other.group.recent_window = 40;
    Pair pair(spec, spec, stream, kSteps);
    Rig target(other);
    REQUIRE(target.state().group.layout.page_bytes != pair.rig.state().group.layout.page_bytes);
    target.open();
    const std::vector<std::uint8_t> frame = exported(pair.rig, pair.slot);
    std::int32_t slot = -1;
    const Result imported = target.cache.import_frame(frame.data(), frame.size(), &slot);
    INFO(imported.text());
    REQUIRE(imported.ok());
    REQUIRE(slot == 1);
    REQUIRE(check_pool(target.state()) == "");
    REQUIRE(exported(target, slot) == frame);
    if (spec.policy.byte_target > 0.0) continue;  // other pages, other bytes, another factor
    for (std::uint32_t t = kPrompt + kSteps; t < kPrompt + 2 * kSteps; ++t) {
      target.step(slot, stream, t);
      pair.twin.step(pair.alone, stream, t);
    }
    for (std::uint32_t h = 0; h < 4; ++h) {
      const std::vector<KeptToken> want = pair.twin.kept(pair.alone, h / 2, h % 2);
      const std::vector<KeptToken> got = target.kept(slot, h / 2, h % 2);
      REQUIRE(got.size() == want.size());
      for (std::size_t i = 0; i < want.size(); ++i) {
        REQUIRE(got[i].position == want[i].position);
        REQUIRE(got[i].tier == want[i].tier);
      }
    }
  }
}

TEST_CASE("a frame has the bytes of its records and headers, no padding", "[lifecycle][export]") {
  Rng rng(9303);
  const Stream stream(fork_shape(kPrompt), rng);
  Rig rig(fork_spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, 1));
  const std::int32_t slot = rig.open();
  const std::size_t empty = exported(rig, slot).size();
  rig.prompt(slot, stream, kPrompt);
  const quire_seq_info info = rig.cache.info(slot);
  const std::uint64_t ring = info.ring_tokens * rig.state().group.ring.tokens.record_bytes;
  REQUIRE(exported(rig, slot).size() == empty + info.record_bytes + ring);
}

TEST_CASE("an empty sequence takes its given offsets along", "[lifecycle][export]") {
  Rng rng(9305);
  INFO(rng.describe());
  const Stream stream(fork_shape(kPrompt), rng);
  Rig rig(fork_spec(QUIRE_RECIPE_QUIRE_UNIFORM, 2));
  const std::vector<float> offset = rng.normals(4 * 32);
  quire_seq_open_args args = QUIRE_SEQ_OPEN_ARGS_INIT;
  args.policy = &rig.spec.policy;
  args.k_offset = offset.data();
  std::int32_t slot = -1;
  REQUIRE(rig.cache.open(args, &slot).ok());
  const std::vector<std::uint8_t> frame = exported(rig, slot);
  std::int32_t copy = -1;
  REQUIRE(rig.cache.import_frame(frame.data(), frame.size(), &copy).ok());
  rig.prompt(slot, stream, kPrompt);
  rig.prompt(copy, stream, kPrompt);
  REQUIRE(exported(rig, copy) == exported(rig, slot));
}

TEST_CASE("forks and their parents export alike", "[lifecycle][export]") {
  Rng rng(9304);
  const Stream stream(fork_shape(kPrompt), rng);
  Rig rig(fork_spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, 4));
  const std::int32_t parent = rig.open();
  rig.prompt(parent, stream, kPrompt);
  const std::vector<std::uint8_t> frame = exported(rig, parent);
  const std::int32_t child = fork(rig, parent);
  REQUIRE(exported(rig, parent) == frame);
  REQUIRE(exported(rig, child) == frame);
  std::int32_t copy = -1;
  REQUIRE(rig.cache.import_frame(frame.data(), frame.size(), &copy).ok());
  REQUIRE(rig.records(copy) == rig.records(parent));
  REQUIRE(rig.state().head_state(copy, 0, 0).shared_pages[0] == 0);
  REQUIRE(check_pool(rig.state()) == "");
  for (const std::int32_t slot : {parent, copy, child}) REQUIRE(rig.cache.close(slot).ok());
  REQUIRE(rig.cache.stats().live_pages == 0);
}

}  // namespace
}  // namespace quire::test
