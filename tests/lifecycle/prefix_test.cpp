// Prefix handles. Oracles: a sequence that ran the same prompt itself, without sharing, bit for
// bit; names that differ in one ingredient; counts.
#include "support/prefix.hpp"

namespace quire::test {
namespace {

const std::uint32_t kRecipes[] = {QUIRE_RECIPE_KEEP_ALL,
                                  QUIRE_RECIPE_DIFFKV_UPSTREAM,
                                  QUIRE_RECIPE_SNAPKV,
                                  QUIRE_RECIPE_QUIRE_UNIFORM,
                                  QUIRE_RECIPE_QUIRE_BUDGET};

// Attention of three rows over what a sequence holds.
std::vector<float> look_at(const Prefix& p, std::int32_t slot, std::uint32_t layer) {
  std::vector<float> out(std::size_t{3} * p.stream.q_heads() * p.stream.shape.dim);
  quire_extend_args args = QUIRE_EXTEND_ARGS_INIT;
  args.slot = slot;
  args.layer = layer;
  args.rows = 3;
  args.first_position = kPrompt;
  args.splits = 1;
  args.q = rows_of(p.stream.q(layer, kPrompt));
  args.out = rows_of(out.data());
  REQUIRE(p.rig.cache.extend(args).ok());
  return out;
}

// A policy that drops or demotes must leave shared pages alone, so that under those only what is
// stored, and attention over it, is that of the twin.
TEST_CASE("a reader of a prefix holds what its own prompt would have left", "[lifecycle][prefix]") {
  for (const std::uint32_t recipe : kRecipes) {
    INFO("recipe " << recipe);
    Prefix p(recipe);
    Prefix twin(recipe);
    const std::int32_t handle = p.handle(kPrompt);
    const std::vector<std::uint8_t> records = p.rig.records(handle);
    const std::vector<std::uint8_t> frame = exported(p.rig, handle);
    const std::int32_t reader = fork(p.rig, handle);
    const std::int32_t alone = twin.rig.open();
    twin.rig.prompt(alone, twin.stream, kPrompt);
    REQUIRE((p.rig.records(reader) == twin.rig.records(alone)));
    REQUIRE((exported(p.rig, reader) == exported(twin.rig, alone)));
    const bool moves_nothing =
        recipe == QUIRE_RECIPE_KEEP_ALL || recipe == QUIRE_RECIPE_QUIRE_UNIFORM;
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
      const std::vector<float> want = look_at(twin, alone, layer);
      REQUIRE((look_at(p, reader, layer) == want));
      REQUIRE((look_at(p, handle, layer) == want));
    }
    const std::uint32_t steps = moves_nothing ? 60 : 0;
    for (std::uint32_t t = kPrompt; t < kPrompt + steps; ++t)
      REQUIRE((p.rig.step(reader, p.stream, t) == twin.rig.step(alone, twin.stream, t)));
    for (std::uint32_t t = kPrompt + steps; t < kPrompt + 80; ++t) p.rig.step(reader, p.stream, t);
    REQUIRE((p.rig.records(handle) == records));
    REQUIRE((exported(p.rig, handle) == frame));
    REQUIRE(check_pool(p.rig.state()) == "");
  }
}

TEST_CASE("many readers with thresholds of their own leave the handle alone",
          "[lifecycle][prefix]") {
  Prefix p(QUIRE_RECIPE_DIFFKV_UPSTREAM);
  const std::int32_t handle = p.handle(kPrompt);
  const std::vector<std::uint8_t> records = p.rig.records(handle);
  std::vector<std::int32_t> readers;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const quire_threshold own = {QUIRE_ALL, i % 2, 1.0f + static_cast<float>(i), 0.5f};
    quire_seq_fork_args args = QUIRE_SEQ_FORK_ARGS_INIT;
    args.slot = handle;
    args.thresholds = &own;
    args.threshold_count = 1;
    std::int32_t reader = -1;
    REQUIRE(p.rig.cache.fork(args, &reader).ok());
    readers.push_back(reader);
    REQUIRE(p.rig.cache.info(handle).readers == i + 1);
  }
  readers.push_back(fork(p.rig, readers[1]));
  REQUIRE(p.rig.cache.info(handle).readers == 5);
  REQUIRE(p.rig.cache.stats().handles == 1);
  for (std::uint32_t t = kPrompt; t < kPrompt + 60; ++t) p.rig.step(readers[t % 5], p.stream, t);
  REQUIRE((p.rig.records(handle) == records));
  for (const std::uint32_t i : {3u, 0u, 4u, 1u}) {
    REQUIRE(p.rig.cache.close(readers[i]).ok());
    REQUIRE(check_pool(p.rig.state()) == "");
  }
  REQUIRE(p.rig.cache.info(handle).readers == 1);
  REQUIRE(p.rig.cache.close(handle).ok());  // with a reader
  REQUIRE(p.rig.cache.stats().handles == 0);
  p.rig.step(readers[2], p.stream, kPrompt + 80);
  REQUIRE(p.rig.cache.stats().shared_pages == 0);
  REQUIRE(p.rig.cache.close(readers[2]).ok());
  REQUIRE(p.rig.cache.stats().live_pages == 0);
  REQUIRE(p.rig.cache.stats().record_bytes == 0);
}

TEST_CASE("a closed handle's slot, used again, is not taken for it", "[lifecycle][prefix]") {
  Prefix p(QUIRE_RECIPE_KEEP_ALL);
  const std::int32_t first = p.handle(kPrompt);
  const std::int32_t reader = fork(p.rig, first);
  REQUIRE(p.rig.cache.close(first).ok());
  const std::int32_t second = p.handle(50);
  REQUIRE(second == first);
  REQUIRE(p.rig.cache.close(reader).ok());
  REQUIRE(p.rig.cache.info(second).readers == 0);
  REQUIRE(fork(p.rig, second) == reader);
  REQUIRE(p.rig.cache.info(second).readers == 1);
}

TEST_CASE("a prefix has one name in all caches of its layers", "[lifecycle][prefix]") {
  for (const std::uint32_t recipe : kRecipes) {
    INFO("recipe " << recipe);
    RigSpec other = fork_spec(recipe, 3);
    other.pages = 777;
    other.group.layout.expected_tokens = 0;
    Prefix a(recipe);
    Prefix b(other);
    Name names[3];
    const std::int32_t handle = a.handle(kPrompt, &names[0]);
    b.handle(kPrompt, &names[1]);
    REQUIRE(names[0] == names[1]);
    const std::vector<std::uint8_t> frame = exported(a.rig, handle);
    std::int32_t moved = -1;
    REQUIRE(b.rig.cache.import_frame(frame.data(), frame.size(), &moved).ok());
    REQUIRE(b.rig.cache.freeze(moved, b.ids.data(), kPrompt, names[2].word).ok());
    REQUIRE(names[0] == names[2]);
  }
}

TEST_CASE("every ingredient of a prefix is in its name", "[lifecycle][prefix]") {
  const RigSpec base = fork_spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, 2);
  Name plain;
  Prefix(base).handle(kPrompt, &plain);
  std::vector<RigSpec> others;
  const auto vary = [&](auto&& change) {
    RigSpec spec = base;
    change(spec);
    others.push_back(spec);
  };
  vary([](RigSpec& s) { s.policy.alpha_high = 1.5f; });
  vary([](RigSpec& s) { s.policy.tail_queries = 16; });
  vary([](RigSpec& s) { s.policy.recent_window = 12; });
  vary([](RigSpec& s) { s.policy.sink_tokens = QUIRE_NONE; });
  vary([](RigSpec& s) { s.thresholds = {{1, 1, 2.0f, 0.5f}}; });
  vary([](RigSpec& s) { s.thresholds = {{1, 0, 2.0f, 0.5f}}; });
  vary([](RigSpec& s) { s.group.transform_seed = 3; });
  vary([](RigSpec& s) { s.group.ring_format = QUIRE_RING_K8V8; });
  vary([](RigSpec& s) { s.group.layout.tier[1].v.bits = 4; });
  vary([](RigSpec& s) {
    s.group.layout.tier[0].k.transform = s.group.layout.tier[1].k.transform =
        QUIRE_TRANSFORM_HADAMARD;
  });
  std::vector<Name> names = {plain};
  for (const RigSpec& spec : others) {
    names.emplace_back();
    Prefix(spec).handle(kPrompt, &names.back());
  }
  Prefix p(base);
  names.emplace_back();
  p.handle(kPrompt - 1, &names.back());
  p.ids[17] += 1;
  names.emplace_back();
  p.handle(kPrompt, &names.back());
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      INFO(i << " and " << j);
      REQUIRE(!(names[i] == names[j]));
    }
  }
}

TEST_CASE("a find gives the longest prefix of the same policy", "[lifecycle][prefix]") {
  Prefix p(QUIRE_RECIPE_DIFFKV_UPSTREAM);
  std::uint32_t held = 77;
  REQUIRE(p.find(kTokens, &held) == -1);
  REQUIRE(held == 0);
  const std::int32_t middle = p.handle(100);
  const std::int32_t shorter = p.handle(40);
  const std::int32_t longer = p.handle(180);
  REQUIRE(p.find(kTokens, &held) == longer);
  REQUIRE(held == 180);
  REQUIRE(p.find(180) == longer);
  REQUIRE(p.find(179, &held) == middle);
  REQUIRE(held == 100);
  REQUIRE(p.find(41) == shorter);
  REQUIRE(p.find(39) == -1);
  REQUIRE(p.find(0) == -1);
  p.ids[120] += 1;  // another text from there on
  REQUIRE(p.find(kTokens) == middle);
  p.ids[0] += 1;
  REQUIRE(p.find(kTokens) == -1);
  p.ids[0] -= 1;
  p.rig.spec.policy.alpha_low *= 0.5f;
  REQUIRE(p.find(kTokens) == -1);
  p.rig.spec.policy.alpha_low *= 2.0f;
  REQUIRE(p.rig.cache.close(middle).ok());
  REQUIRE(p.find(kTokens) == shorter);
}

TEST_CASE("given offsets are part of a prefix, means of its prompt are not",
          "[lifecycle][prefix]") {
  Prefix p(QUIRE_RECIPE_QUIRE_UNIFORM);
  const std::int32_t own_mean = p.handle(kPrompt);
  REQUIRE(p.find(kTokens) == own_mean);
  const std::vector<float> offset(std::size_t{2} * 2 * 32, 0.25f);
  quire_seq_open_args open = QUIRE_SEQ_OPEN_ARGS_INIT;
  open.policy = &p.rig.spec.policy;
  open.k_offset = offset.data();
  quire_prefix_find_args args = QUIRE_PREFIX_FIND_ARGS_INIT;
  std::int32_t found = -7;
  args.token_ids = p.ids.data();
  args.token_count = kTokens;
  args.open = &open;
  args.slot = &found;
  REQUIRE(p.rig.cache.find_prefix(args).ok());
  REQUIRE(found == -1);
  std::int32_t given = -1;
  REQUIRE(p.rig.cache.open(open, &given).ok());
  p.rig.prompt(given, p.stream, kPrompt);
  REQUIRE(p.rig.cache.freeze(given, p.ids.data(), kPrompt, nullptr).ok());
  REQUIRE(p.rig.cache.find_prefix(args).ok());
  REQUIRE(found == given);
  REQUIRE(p.find(kTokens) == own_mean);
}

TEST_CASE("eviction takes what nobody reads, the longest unused first", "[lifecycle][prefix]") {
  Prefix p(QUIRE_RECIPE_KEEP_ALL);
  const std::int32_t a = p.handle(60);
  const std::int32_t b = p.handle(80);
  const std::int32_t c = p.handle(100);
  const std::int32_t d = p.handle(90);
  const std::int32_t reader = fork(p.rig, b);
  REQUIRE(p.find(60) == a);  // used again: c is the oldest now
  const auto pages = [&](std::int32_t slot) { return p.rig.cache.info(slot).live_pages; };
  const quire_stats stats = p.rig.cache.stats();
  const std::uint64_t free = stats.pages - stats.live_pages;
  const std::uint64_t of_c = pages(c), of_d = pages(d), of_a = pages(a);
  std::uint64_t freed = 77;
  std::uint32_t closed = 77;
  REQUIRE(p.rig.cache.evict_prefixes(free, &freed, &closed).ok());
  REQUIRE((freed == 0 && closed == 0));
  REQUIRE(p.rig.cache.evict_prefixes(free + of_c, &freed, &closed).ok());
  REQUIRE((freed == of_c && closed == 1));
  REQUIRE(p.rig.cache.info(c).state == QUIRE_SEQ_CLOSED);
  REQUIRE(p.rig.cache.evict_prefixes(free + of_c + of_d + 1, &freed, &closed).ok());
  REQUIRE((freed == of_d + of_a && closed == 2));
  REQUIRE(p.rig.cache.info(b).state == QUIRE_SEQ_FROZEN);
  REQUIRE(p.rig.cache.evict_prefixes(stats.pages, &freed, &closed).ok());
  REQUIRE((freed == 0 && closed == 0));
  REQUIRE(p.rig.cache.close(reader).ok());
  REQUIRE(p.rig.cache.evict_prefixes(stats.pages, &freed, &closed).ok());
  REQUIRE(closed == 1);
  REQUIRE(p.rig.cache.stats().live_pages == 0);
}

TEST_CASE("only a prompt alone can be frozen", "[lifecycle][prefix]") {
  Prefix p(QUIRE_RECIPE_DIFFKV_UPSTREAM);
  const auto refused =
      [&](std::int32_t slot, std::uint32_t tokens, quire_status status, const char* field) {
        const std::vector<std::uint8_t> before = exported(p.rig, slot);
        require_refused(p.rig.cache.freeze(slot, p.ids.data(), tokens, nullptr), status, field);
        REQUIRE((exported(p.rig, slot) == before));
        REQUIRE(p.rig.cache.info(slot).state == QUIRE_SEQ_OPEN);
        REQUIRE(p.rig.cache.stats().handles == 0);
      };
  const std::int32_t slot = p.rig.open();
  refused(slot, 0, QUIRE_BAD_STATE, "slot");
  p.rig.prompt(slot, p.stream, kPrompt);
  refused(slot, kPrompt - 1, QUIRE_INVALID_ARGUMENT, "token_count");
  require_refused(
      p.rig.cache.freeze(slot, nullptr, kPrompt, nullptr), QUIRE_INVALID_ARGUMENT, "token_ids");
  const std::int32_t cut = fork(p.rig, slot);
  REQUIRE(p.rig.cache.truncate(cut, 100, nullptr).ok());
  refused(cut, 100, QUIRE_BAD_STATE, "slot");
  p.rig.step(slot, p.stream, kPrompt);
  refused(slot, kPrompt + 1, QUIRE_BAD_STATE, "slot");
  REQUIRE(p.rig.cache.truncate(slot, kPrompt, nullptr).ok());
  refused(slot, kPrompt, QUIRE_BAD_STATE, "slot");
  RigSpec lone = fork_spec(QUIRE_RECIPE_KEEP_ALL, 1);
  lone.cache_flags = 0;
  Prefix without(lone);
  const std::int32_t own = without.rig.open();
  without.rig.prompt(own, without.stream, 20);
  require_refused(
      without.rig.cache.freeze(own, without.ids.data(), 20, nullptr), QUIRE_UNSUPPORTED, "cache");
}

}  // namespace
}  // namespace quire::test
