// on_shortage = prefix. Oracle: pages that each sequence needs alone, by a step of its own.
#include "support/drafts.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kSequences = 6;

// Sequences of lengths that need 0 or 4 pages in the next step (2 layers x 2 heads), and a pool
// with `spare` free pages.
struct Crowd {
  explicit Crowd(std::uint64_t spare) : rng(9801), stream(fork_shape(200), rng), rig(spec()) {
    per_page = rig.state().group.layout.tier[0].tokens;
    for (std::uint32_t i = 0; i < kSequences; ++i) {
      const std::int32_t slot = rig.open();
      const std::uint32_t outside =
          2 * per_page - (i % 3 == 1 ? 1 : 0);  // the next one needs a page?
      rig.prompt(slot, stream, 17 + outside);
      slots.push_back(slot);
    }
    while (rig.state().free_pages.free_count() > spare)
      hoard.push_back(rig.state().free_pages.take());
  }

  static RigSpec spec() {
    RigSpec s = fork_spec(QUIRE_RECIPE_KEEP_ALL, kSequences);
    s.pages = 100;
    return s;
  }

  bool needs_pages(std::uint32_t i) const { return i % 3 != 1; }

  Result begin(std::uint8_t* admitted) const {
    quire_step_begin_args args = QUIRE_STEP_BEGIN_ARGS_INIT;
    args.slots = slots.data();
    args.batch = kSequences;
    args.on_shortage = QUIRE_SHORTAGE_PREFIX;
    args.admitted = admitted;
    return rig.cache.step_begin(args);
  }

  Rng rng;
  Stream stream;
  Rig rig;
  std::uint32_t per_page = 0;
  std::vector<std::int32_t> slots;
  std::vector<std::int32_t> hoard;
};

TEST_CASE("sequences step in the order of the batch as far as pages reach",
          "[lifecycle][shortage]") {
  for (std::uint64_t spare = 0; spare <= 17; ++spare) {
    INFO("spare pages " << spare);
    Crowd crowd(spare);
    const std::uint64_t shortages = crowd.rig.cache.stats().shortages;
    std::vector<std::uint8_t> admitted(kSequences, 7);
    REQUIRE(crowd.begin(admitted.data()).ok());
    std::uint64_t left = spare;
    std::vector<std::vector<std::uint8_t>> before;
    for (std::uint32_t i = 0; i < kSequences; ++i) {
      const std::uint64_t need = crowd.needs_pages(i) ? 4 : 0;
      const bool fits = need <= left;
      left -= fits ? need : 0;
      REQUIRE(admitted[i] == (fits ? 1 : 0));
      before.push_back(crowd.rig.records(crowd.slots[i]));
      REQUIRE(crowd.rig.cache.info(crowd.slots[i]).state ==
              (fits ? QUIRE_SEQ_STEP : QUIRE_SEQ_OPEN));
    }
    REQUIRE(crowd.rig.cache.stats().shortages == shortages + (spare < 16 ? 1 : 0));
    const std::vector<float> k(kSequences * 2 * 32, 0.5f);
    const std::vector<float> q(kSequences * 4 * 32, 0.25f);
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
      crowd.rig.append(layer, k.data(), k.data());
      const std::vector<float> out = crowd.rig.attend(layer, q.data(), kSequences);
      for (std::uint32_t i = 0; i < kSequences; ++i) {
        const bool zero = std::all_of(
            out.begin() + i * 128, out.begin() + (i + 1) * 128, [](float x) { return x == 0.0f; });
        REQUIRE(zero == (admitted[i] == 0));
      }
    }
    REQUIRE(crowd.rig.cache.step_end().ok());
    for (std::uint32_t i = 0; i < kSequences; ++i) {
      const std::uint32_t want =
          17 + 2 * crowd.per_page - (i % 3 == 1 ? 1 : 0) + (admitted[i] != 0 ? 1 : 0);
      REQUIRE(crowd.rig.cache.info(crowd.slots[i]).tokens == want);
      if (admitted[i] == 0) REQUIRE((crowd.rig.records(crowd.slots[i]) == before[i]));
    }
    REQUIRE(crowd.rig.cache.stats().live_pages + left + crowd.hoard.size() == 100);
  }
}

TEST_CASE("when no sequence fits, nothing happens and the numbers are those of the batch",
          "[lifecycle][shortage]") {
  Crowd crowd(3);
  crowd.slots = {crowd.slots[0], crowd.slots[2], crowd.slots[3], -1, crowd.slots[5], -1};
  std::vector<std::uint8_t> admitted(kSequences, 7);
  const Result refused = crowd.begin(admitted.data());
  REQUIRE(refused.status() == QUIRE_OUT_OF_PAGES);
  REQUIRE(refused.needed() == 16);
  REQUIRE(refused.given() == 3);
  for (const std::uint8_t a : admitted) REQUIRE(a == 7);
  for (const std::int32_t slot : crowd.slots)
    if (slot >= 0) REQUIRE(crowd.rig.cache.info(slot).state == QUIRE_SEQ_OPEN);
}

// Asked before and carried out after, on sequences with a past and without, in pools of any fill.
TEST_CASE("a round of a prompt can be asked about", "[lifecycle][shortage]") {
  std::uint32_t fits = 0;
  for (const std::uint32_t recipe : {QUIRE_RECIPE_DIFFKV_UPSTREAM, QUIRE_RECIPE_H2O}) {
    for (std::uint64_t spare = 0; spare < 40; ++spare) {
      INFO("recipe " << recipe << " spare pages " << spare);
      Rng rng(9802);
      const Stream stream(fork_shape(200), rng);
      RigSpec spec = fork_spec(recipe, 2);
      spec.pages = 120;
      Rig rig(spec);
      const std::int32_t slot = rig.open();
      if (spare % 4 != 0) rig.prompt(slot, stream, 60);
      while (rig.state().free_pages.free_count() > spare) (void)rig.state().free_pages.take();
      const std::vector<std::uint8_t> frame = exported(rig, slot);
      const quire_stats stats = rig.cache.stats();
      const std::uint32_t flags = spare % 3 == 0 ? QUIRE_PREFILL_MORE : 0;
      const Result asked = rig.cache.prefill_begin(slot, 80, flags | QUIRE_PREFILL_CHECK);
      const quire_stats after = rig.cache.stats();
      REQUIRE(std::memcmp(&stats, &after, sizeof(stats)) == 0);
      REQUIRE((exported(rig, slot) == frame));
      const Result begun = rig.cache.prefill_begin(slot, 80, flags);
      REQUIRE(asked.status() == begun.status());
      REQUIRE(asked.needed() == begun.needed());
      REQUIRE(asked.given() == begun.given());
      if (begun.ok()) ++fits;
    }
  }
  REQUIRE(fits > 10);
  REQUIRE(fits < 70);
}

}  // namespace
}  // namespace quire::test
