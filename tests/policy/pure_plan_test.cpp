// Oracle: the same sequence planned another way. Twice, with heads exchanged, in a batch, in pages
// of another size, from tracked or from scanned scores: the plans are equal.
#include <algorithm>
#include <vector>

#include "support/catch.hpp"
#include "support/policy_recipes.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kPrompt = 170;
constexpr std::uint32_t kTokens = 260;
constexpr std::size_t kRecipes = 10;

StreamShape pure_shape(std::uint32_t kv_heads = 2) {
  StreamShape shape;
  shape.kv_heads = kv_heads;
  shape.tokens = kTokens;
  return shape;
}

bool same(const MoveList& a, const MoveList& b) {
  return std::equal(a.begin(),
                    a.end(),
                    b.begin(),
                    b.end(),
                    [](const quire_plan_move& x, const quire_plan_move& y) {
                      return x.layer == y.layer && x.head == y.head && x.position == y.position &&
                             x.to == y.to;
                    });
}

TEST_CASE("the same inputs give the same plans", "[policy][pure]") {
  const std::size_t which = GENERATE(range(std::size_t{0}, kRecipes));
  const NamedSpec named = small_recipes(pure_shape())[which];
  Rng rng(8001);
  INFO(rng.describe() << " " << named.name);
  const Stream stream(pure_shape(), rng);
  Rig a(named.spec);
  Rig b(named.spec);
  const std::int32_t slot = a.open();
  REQUIRE(b.open() == slot);
  std::vector<std::uint8_t> plan_a, plan_b;
  a.prompt(slot, stream, kPrompt, nullptr, &plan_a);
  b.prompt(slot, stream, kPrompt, nullptr, &plan_b);
  REQUIRE(plan_a == plan_b);
  for (std::uint32_t t = kPrompt; t < kTokens; ++t) {
    INFO("token " << t);
    MoveList log_a, log_b, again;
    REQUIRE(a.begin(slot, &again).ok());  // planning is not committing
    REQUIRE(a.cache.step_cancel().ok());
    a.step(slot, stream, t, &log_a);
    b.step(slot, stream, t, &log_b);
    REQUIRE(same(log_a, again));
    REQUIRE(same(log_a, log_b));
  }
  const bool equal = a.records(slot) == b.records(slot);
  REQUIRE(equal);
}

TEST_CASE("exchanged heads get exchanged plans", "[policy][pure]") {
  const std::size_t which = GENERATE(range(std::size_t{0}, kRecipes));
  const NamedSpec named = small_recipes(pure_shape(3))[which];
  const std::vector<std::uint32_t> order = {2, 0, 1};
  Rng rng(8002);
  INFO(rng.describe() << " " << named.name);
  const Stream stream(pure_shape(3), rng);
  const Stream exchanged = stream.permuted(order);
  Rig a(named.spec);
  Rig b(named.spec);
  const std::int32_t slot = a.open();
  REQUIRE(b.open() == slot);
  a.prompt(slot, stream, kPrompt);
  b.prompt(slot, exchanged, kPrompt);
  for (std::uint32_t t = kPrompt; t < kTokens; ++t) {
    a.step(slot, stream, t);
    b.step(slot, exchanged, t);
  }
  for (std::uint32_t layer = 0; layer < 2; ++layer)
    for (std::uint32_t head = 0; head < 3; ++head)
      REQUIRE(a.kept(slot, layer, head) == b.kept(slot, layer, order[head]));
}

// Three sequences of different length and recipe-equal policy in one batch, with padding.
TEST_CASE("a batch plans like each of its sequences alone", "[policy][pure]") {
  const std::size_t which = GENERATE(range(std::size_t{0}, kRecipes));
  NamedSpec named = small_recipes(pure_shape())[which];
  named.spec.sequences = 4;
  Rng rng(8003);
  INFO(rng.describe() << " " << named.name);
  std::vector<Stream> streams;
  for (int i = 0; i < 3; ++i) streams.emplace_back(pure_shape(), rng);
  const std::uint32_t prompts[3] = {90, 170, 131};
  Rig batch(named.spec);
  std::vector<std::unique_ptr<Rig>> alone;
  for (std::uint32_t i = 0; i < 3; ++i) {
    batch.prompt(batch.open(), streams[i], prompts[i]);
    alone.push_back(std::make_unique<Rig>(named.spec));
    alone[i]->prompt(alone[i]->open(), streams[i], prompts[i]);
  }
  const std::int32_t slots[4] = {2, -1, 0, 1};
  const std::size_t kv = 2 * 32;
  const std::size_t q = 4 * 32;
  for (std::uint32_t step = 0; step < 80; ++step) {
    REQUIRE(batch.cache.step_begin(slots, 4).ok());
    std::vector<std::vector<float>> single(3);
    for (std::uint32_t i = 0; i < 3; ++i)
      single[i] = alone[i]->step(0, streams[i], prompts[i] + step);
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
      std::vector<float> keys(4 * kv), values(4 * kv), queries(4 * q);
      for (std::size_t row = 0; row < 4; ++row) {
        if (slots[row] < 0) continue;
        const auto s = static_cast<std::size_t>(slots[row]);
        std::copy_n(streams[s].k(layer, prompts[s] + step), kv, keys.data() + row * kv);
        std::copy_n(streams[s].v(layer, prompts[s] + step), kv, values.data() + row * kv);
        std::copy_n(streams[s].q(layer, prompts[s] + step), q, queries.data() + row * q);
      }
      batch.append(layer, keys.data(), values.data());
      const std::vector<float> out = batch.attend(layer, queries.data(), 4);
      for (std::size_t row = 0; row < 4; ++row) {
        if (slots[row] < 0) continue;
        const std::vector<float>& want = single[static_cast<std::size_t>(slots[row])];
        REQUIRE(std::equal(want.begin() + static_cast<std::ptrdiff_t>(layer * q),
                           want.begin() + static_cast<std::ptrdiff_t>((layer + 1) * q),
                           out.begin() + static_cast<std::ptrdiff_t>(row * q)));
      }
    }
    REQUIRE(batch.cache.step_end().ok());
  }
  for (std::uint32_t i = 0; i < 3; ++i)
    for (std::uint32_t head = 0; head < 4; ++head)
      REQUIRE(batch.kept(static_cast<std::int32_t>(i), head / 2, head % 2) ==
              alone[i]->kept(0, head / 2, head % 2));
}

// Scores by a hash of (step, layer, head, position), in few steps so that many are equal.
float hashed_score(std::uint64_t step, std::uint32_t layer, std::uint32_t head, std::int32_t p) {
  std::uint64_t z = step * 977 + layer * 131 + head * 31 + static_cast<std::uint64_t>(p) * 7919;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return static_cast<float>((z >> 40) % 64) / 16.0f;
}

// Recipes whose budget does not count pages: all but those with a byte target.
TEST_CASE("pages of any size give the same plans", "[policy][pure]") {
  const std::size_t which = GENERATE(2u, 3u, 4u, 5u, 6u, 8u);
  const std::uint64_t step_bytes = 64;
  NamedSpec named = small_recipes(pure_shape())[which];
  Rng rng(8004);
  INFO(rng.describe() << " " << named.name);
  const Stream stream(pure_shape(), rng);
  std::vector<std::unique_ptr<Rig>> rigs;
  for (const std::uint64_t page : {4096u, 6144u, 16384u}) {
    RigSpec spec = named.spec;
    spec.group.layout.page_bytes = page + step_bytes;
    rigs.push_back(std::make_unique<Rig>(spec));
    rigs.back()->prompt(rigs.back()->open(), stream, kPrompt);
  }
  const std::uint32_t few = rigs.front()->state().group.layout.tier[0].tokens;
  REQUIRE(rigs.back()->state().group.layout.tier[0].tokens > few);
  for (std::uint32_t t = kPrompt; t < kTokens; ++t) {
    std::vector<MoveList> logs(rigs.size());
    for (std::size_t i = 0; i < rigs.size(); ++i) {
      rigs[i]->plant_scores(
          0, [&](std::uint32_t layer, std::uint32_t head, std::int32_t p, std::uint32_t) {
            return hashed_score(t, layer, head, p);
          });
      REQUIRE(rigs[i]->begin(0, &logs[i]).ok());
      for (std::uint32_t layer = 0; layer < 2; ++layer)
        rigs[i]->append(layer, stream.k(layer, t), stream.v(layer, t));
      REQUIRE(rigs[i]->cache.step_end().ok());
      INFO("token " << t << " page size " << i);
      REQUIRE(same(logs[i], logs[0]));
    }
  }
}

TEST_CASE("least significant tokens left by attention are those of a scan", "[policy][pure]") {
  const std::size_t which = GENERATE(2u, 3u, 4u, 5u, 6u);
  const std::uint32_t splits = GENERATE(0u, 1u, 3u);
  NamedSpec named = small_recipes(pure_shape())[which];
  Rng rng(8005);
  INFO(rng.describe() << " " << named.name << " splits " << splits);
  const Stream stream(pure_shape(), rng);
  Rig rig(named.spec);
  const std::int32_t slot = rig.open();
  rig.prompt(slot, stream, kPrompt);
  int tracked_heads = 0;
  for (std::uint32_t t = kPrompt; t < kTokens; ++t) {
    MoveList tracked, scanned;
    REQUIRE(rig.begin(slot, &tracked).ok());
    REQUIRE(rig.cache.step_cancel().ok());
    for (std::uint32_t i = 0; i < 4; ++i) {
      HeadState& state = rig.state().head_state(slot, i / 2, i % 2);
      tracked_heads += state.lowest_length == static_cast<std::int32_t>(t) ? 1 : 0;
      state.lowest_length = -1;
    }
    REQUIRE(rig.begin(slot, &scanned).ok());
    INFO("token " << t);
    REQUIRE(same(tracked, scanned));
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
      rig.append(layer, stream.k(layer, t), stream.v(layer, t));
      // Now and then a layer goes without attention: the next plan scans it.
      if ((t + layer) % 7 != 0) rig.attend(layer, stream.q(layer, t), 1, splits);
    }
    REQUIRE(rig.cache.step_end().ok());
  }
  REQUIRE(tracked_heads > 200);
}

}  // namespace
}  // namespace quire::test
