// One fork at a time. Oracles: the parent's records and contents at the fork, an unforked twin, the
// bytes of every shared page.
#include "support/lifecycle.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kPrompt = 150;
constexpr std::uint32_t kSteps = 60;

const std::uint32_t kRecipes[] = {QUIRE_RECIPE_KEEP_ALL,
                                  QUIRE_RECIPE_DIFFKV_PAPER,
                                  QUIRE_RECIPE_DIFFKV_UPSTREAM,
                                  QUIRE_RECIPE_STREAMING_LLM,
                                  QUIRE_RECIPE_H2O,
                                  QUIRE_RECIPE_SNAPKV,
                                  QUIRE_RECIPE_QUIRE_UNIFORM,
                                  QUIRE_RECIPE_QUIRE_BUDGET};

TEST_CASE("a fork holds what its parent holds, record by record", "[lifecycle][fork]") {
  for (const std::uint32_t recipe : kRecipes) {
    Rng rng(9001);
    INFO(rng.describe() << " recipe " << recipe);
    const Stream stream(fork_shape(kPrompt + kSteps), rng);
    Rig rig(fork_spec(recipe, 2));
    const std::int32_t parent = rig.open();
    rig.prompt(parent, stream, kPrompt);
    for (std::uint32_t t = kPrompt; t < kPrompt + 20; ++t) rig.step(parent, stream, t);
    const std::vector<std::uint8_t> before = rig.records(parent);
    const quire_stats stats = rig.cache.stats();
    const std::int32_t child = fork(rig, parent);
    REQUIRE(child == 1);
    REQUIRE(rig.records(parent) == before);
    REQUIRE(rig.records(child) == before);
    REQUIRE(check_pool(rig.state()) == "");
    // At most the open page of each tier was copied.
    const std::uint64_t copied = rig.cache.stats().live_pages - stats.live_pages;
    REQUIRE(copied <= rig.state().group.heads() * rig.state().group.layout.tier_count);
    const quire_seq_info info = rig.cache.info(child);
    REQUIRE(info.live_pages == rig.cache.info(parent).live_pages);
    REQUIRE(rig.cache.stats().shared_pages == info.live_pages - copied);
    REQUIRE(info.total_bytes == rig.cache.info(parent).total_bytes);
  }
}

// Policies without scores decide by position alone, so that freezing changes nothing.
TEST_CASE("both sides of a fork go on like a sequence that was never forked", "[lifecycle][fork]") {
  for (const std::uint32_t recipe : {QUIRE_RECIPE_KEEP_ALL, QUIRE_RECIPE_QUIRE_UNIFORM}) {
    Rng rng(9002);
    INFO(rng.describe() << " recipe " << recipe);
    const Stream stream(fork_shape(kPrompt + kSteps), rng);
    Rig rig(fork_spec(recipe, 2));
    Rig twin(fork_spec(recipe, 1));
    const std::int32_t parent = rig.open();
    const std::int32_t alone = twin.open();
    rig.prompt(parent, stream, kPrompt);
    twin.prompt(alone, stream, kPrompt);
    const std::int32_t child = fork(rig, parent);
    for (std::uint32_t t = kPrompt; t < kPrompt + kSteps; ++t) {
      const std::vector<float> want = twin.step(alone, stream, t);
      REQUIRE(rig.step(parent, stream, t) == want);
      REQUIRE(rig.step(child, stream, t) == want);
    }
    REQUIRE(rig.records(parent) == twin.records(alone));
    REQUIRE(rig.records(child) == twin.records(alone));
  }
}

TEST_CASE("shared pages do not change while anyone steps", "[lifecycle][fork]") {
  for (const std::uint32_t recipe : kRecipes) {
    Rng rng(9003);
    INFO(rng.describe() << " recipe " << recipe);
    const Stream stream(fork_shape(kPrompt + kSteps), rng);
    RigSpec spec = fork_spec(recipe, 3);
    if (spec.policy.byte_target > 0.0) spec.policy.byte_target = 0.4;  // something has to go
    Rig rig(spec);
    const std::int32_t parent = rig.open();
    rig.prompt(parent, stream, kPrompt);
    const std::int32_t child = fork(rig, parent);
    const PageCopies pages = shared_pages(rig);
    REQUIRE(!pages.empty());
    for (std::uint32_t t = kPrompt; t < kPrompt + kSteps; ++t) {
      rig.step(t % 3 == 0 ? parent : child, stream, t);
      REQUIRE(check_pool(rig.state()) == "");
    }
    REQUIRE(unchanged(rig, pages));
    REQUIRE(rig.cache.close(parent).ok());
    REQUIRE(unchanged(rig, pages));
    REQUIRE(rig.cache.stats().shared_pages == 0);
  }
}

// Position of the token of head 0 that the policy would part with first, by a look at all of them.
std::int32_t least_significant(const Rig& rig, std::int32_t slot) {
  const HeadView view = rig.view(slot, 0, 0);
  const TierRule rule = rig.state().rule(slot, 0, 0, view.length, 1.0f);
  Lowest lowest;
  for (std::uint32_t i = 0; i < view.tokens[0]; ++i) {
    const TokenPlace place = place_of(view, 0, i);
    lowest.consider(rule.significance_at(place.score(), place.position()),
                    place.position(),
                    static_cast<std::int32_t>(i));
  }
  return lowest.position;
}

TEST_CASE("the last holder of a page may change it again", "[lifecycle][fork]") {
  Rng rng(9004);
  INFO(rng.describe());
  const Stream stream(fork_shape(kPrompt + 2 * kSteps), rng);
  RigSpec spec = fork_spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, 2);
  spec.policy.alpha_high = 0.0f;  // all high until the child asks for more
  spec.policy.alpha_low = 0.0f;
  Rig rig(spec);
  const std::int32_t parent = rig.open();
  rig.prompt(parent, stream, kPrompt);
  const quire_threshold drop = {QUIRE_ALL, QUIRE_ALL, 50.0f, 40.0f};
  quire_seq_fork_args args = QUIRE_SEQ_FORK_ARGS_INIT;
  args.slot = parent;
  args.thresholds = &drop;
  args.threshold_count = 1;
  std::int32_t child = -1;
  REQUIRE(rig.cache.fork(args, &child).ok());
  const std::uint32_t frozen = rig.view(child, 0, 0).frozen[0];
  REQUIRE(frozen > 100);
  std::uint32_t t = kPrompt;
  for (; t < kPrompt + kSteps; ++t) rig.step(child, stream, t);
  REQUIRE(rig.cache.info(parent).high_tokens == 4 * (kPrompt - 17));  // its thresholds drop nothing
  const auto old_tokens = [&] {
    const std::vector<KeptToken> kept = rig.kept(child, 0, 0);
    return std::count_if(kept.begin(), kept.end(), [&](const KeptToken& k) {
      return k.position >= 1 && k.position <= static_cast<std::int32_t>(frozen);
    });
  };
  REQUIRE(old_tokens() == frozen);
  REQUIRE(rig.cache.close(parent).ok());
  const std::int32_t victim = least_significant(rig, child);
  REQUIRE(victim <= static_cast<std::int32_t>(frozen));  // or the next check shows nothing
  rig.step(child, stream, t++);
  for (const KeptToken& k : rig.kept(child, 0, 0)) REQUIRE(k.position != victim);
  for (; t < kPrompt + 2 * kSteps; ++t) rig.step(child, stream, t);
  REQUIRE(old_tokens() < frozen - 1);
  REQUIRE(check_pool(rig.state()) == "");
}

TEST_CASE("a plan for all tokens passes over the frozen ones", "[lifecycle][fork]") {
  Rng rng(9007);
  INFO(rng.describe());
  const Stream stream(fork_shape(kPrompt), rng);
  Rig rig(fork_spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, 1));
  const std::int32_t slot = rig.open();
  std::vector<std::uint8_t> plan(4 * kPrompt);
  for (std::size_t i = 0; i < plan.size(); ++i) plan[i] = i % 2;
  rig.prompt(slot, stream, kPrompt, plan.data());
  HeadView view = rig.view(slot, 1, 1);
  std::vector<std::int32_t> frozen;
  for (std::uint32_t t = 0; t < 2; ++t) {
    view.frozen[t] = view.tiers[t].tokens;
    REQUIRE(view.frozen[t] < view.tokens[t]);
    for (std::uint32_t i = 0; i < view.frozen[t]; ++i)
      frozen.push_back(place_of(view, t, i).position());
  }
  const auto drop = [](float, std::int32_t, Tier) { return Tier::kDropped; };
  const RetierCounts counted = count_retier(view, drop);
  CodecEvents events;
  const RetierCounts done = retier(view, drop, events);
  for (std::uint32_t t = 0; t < 2; ++t) {
    REQUIRE(counted.tokens[t] == view.frozen[t]);
    REQUIRE(done.tokens[t] == view.frozen[t]);
    for (std::uint32_t i = 0; i < view.frozen[t]; ++i)
      REQUIRE(place_of(view, t, i).position() == frozen[t * view.frozen[0] + i]);
  }
  REQUIRE(done.dropped == counted.dropped);
}

// Each of two holders answers for half of a page, so that the tokens of an answer find room.
TEST_CASE("a byte target counts shared pages by their holders", "[lifecycle][fork]") {
  const std::uint32_t recipe = GENERATE(QUIRE_RECIPE_QUIRE_BUDGET, QUIRE_RECIPE_DIFFKV_UPSTREAM);
  Rng rng(9006);
  INFO(rng.describe() << " recipe " << recipe);
  const Stream stream(fork_shape(500 + kSteps), rng);
  RigSpec spec = fork_spec(recipe, 2);
  spec.group.ring_format = QUIRE_RING_K8V8;
  spec.policy.byte_target = recipe == QUIRE_RECIPE_QUIRE_BUDGET ? 0.34 : 0.42;
  Rig rig(spec);
  const std::int32_t parent = rig.open();
  rig.prompt(parent, stream, 500);
  const std::int32_t child = fork(rig, parent);
  const std::uint64_t shared = rig.cache.stats().shared_pages;
  REQUIRE(shared > 20);
  bool above = false;  // with whole pages
  for (std::uint32_t t = 500; t < 500 + kSteps; ++t) {
    rig.step(child, stream, t);
    const quire_seq_info info = rig.cache.info(child);
    const std::uint64_t half = shared * rig.state().group.layout.page_bytes / 2;
    INFO("length " << t + 1);
    const double target = spec.policy.byte_target * static_cast<double>(info.fp16_bytes);
    REQUIRE(static_cast<double>(info.total_bytes - half) <= target);
    above = above || static_cast<double>(info.total_bytes) > target;
  }
  REQUIRE(above);
}

// What is stored is all that counts: outputs equal attention over what quire_gather returns.
TEST_CASE("outputs of a fork are attention over what it holds", "[lifecycle][fork]") {
  for (const std::uint32_t recipe : kRecipes) {
    Rng rng(9005);
    INFO(rng.describe() << " recipe " << recipe);
    const Stream stream(fork_shape(kPrompt + kSteps), rng);
    const double bound = output_tolerance(stream.attention_scale());
    Rig rig(fork_spec(recipe, 2));
    const std::int32_t parent = rig.open();
    rig.prompt(parent, stream, kPrompt);
    const std::int32_t child = fork(rig, parent);
    for (std::uint32_t t = kPrompt; t < kPrompt + 30; ++t) {
      REQUIRE(rig.begin(child).ok());
      for (std::uint32_t layer = 0; layer < 2; ++layer) {
        rig.append(layer, stream.k(layer, t), stream.v(layer, t));
        const std::vector<float> out = rig.attend(layer, stream.q(layer, t));
        require_attention(rig, child, {layer, stream.q(layer, t), stream.scale()}, out, bound);
      }
      REQUIRE(rig.cache.step_end().ok());
    }
  }
}

}  // namespace
}  // namespace quire::test
