// What may not become a prefix handle: tokens that another plan than their policy's has placed.
// Oracle: the states that quire.h names, and a handle of the same prompt.
#include "support/prefix.hpp"

namespace quire::test {
namespace {

// One layer of a prompt of kPrompt tokens, by a plan or by the policy.
void store_layer(const Prefix& p,
                 std::int32_t slot,
                 std::uint32_t layer,
                 const std::uint8_t* plan) {
  quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
  args.slot = slot;
  args.layer = layer;
  args.k = rows_of(p.stream.k(layer, 0));
  args.v = rows_of(p.stream.v(layer, 0));
  args.q_rows = p.rig.spec.policy.tail_queries;
  args.q = rows_of(p.stream.q(layer, kPrompt - args.q_rows));
  args.plan = plan;
  const Result stored = p.rig.cache.prefill_layer(args);
  INFO(stored.text());
  REQUIRE(stored.ok());
}

// The name says policy and thresholds: what they did not plan must not bear it.
TEST_CASE("a prompt under a plan of the caller's cannot be frozen", "[lifecycle][prefix]") {
  for (const std::uint32_t planned : {0u, 1u}) {  // the layer whose plan is given
    INFO("layer " << planned);
    Prefix p(QUIRE_RECIPE_DIFFKV_UPSTREAM);
    const std::int32_t slot = p.rig.open();
    const std::vector<std::uint8_t> plan(std::size_t{2} * kPrompt, 1);
    REQUIRE(p.rig.cache.prefill_begin(slot, kPrompt).ok());
    for (std::uint32_t layer = 0; layer < 2; ++layer)
      store_layer(p, slot, layer, layer == planned ? plan.data() : nullptr);
    REQUIRE(p.rig.cache.prefill_end(slot).ok());
    const Result refused = p.rig.cache.freeze(slot, p.ids.data(), kPrompt, nullptr);
    require_refused(refused, QUIRE_BAD_STATE, "slot");
    const std::int32_t copy = fork(p.rig, slot);
    require_refused(
        p.rig.cache.freeze(copy, p.ids.data(), kPrompt, nullptr), QUIRE_BAD_STATE, "slot");
    const std::vector<std::uint8_t> frame = exported(p.rig, slot);
    std::int32_t moved = -1;
    REQUIRE(p.rig.cache.import_frame(frame.data(), frame.size(), &moved).ok());
    require_refused(
        p.rig.cache.freeze(moved, p.ids.data(), kPrompt, nullptr), QUIRE_BAD_STATE, "slot");
    REQUIRE(p.find(kTokens) == -1);
  }
}

TEST_CASE("a plan that was given up with its prompt is forgotten", "[lifecycle][prefix]") {
  Prefix p(QUIRE_RECIPE_DIFFKV_UPSTREAM);
  const std::int32_t slot = p.rig.open();
  const std::vector<std::uint8_t> plan(std::size_t{2} * kPrompt, 1);
  REQUIRE(p.rig.cache.prefill_begin(slot, kPrompt).ok());
  store_layer(p, slot, 0, plan.data());
  REQUIRE(p.rig.cache.prefill_cancel(slot).ok());
  p.rig.prompt(slot, p.stream, kPrompt);
  Name name, want;
  REQUIRE(p.rig.cache.freeze(slot, p.ids.data(), kPrompt, name.word).ok());
  const std::int32_t other = p.handle(kPrompt, &want);
  REQUIRE(name == want);
  REQUIRE((p.rig.records(slot) == p.rig.records(other)));
}

TEST_CASE("a fork under other thresholds cannot be frozen with its parent's tokens",
          "[lifecycle][prefix]") {
  const quire_threshold own = {1, 1, 5.0f, 3.0f};  // one head of one layer
  Prefix p(QUIRE_RECIPE_DIFFKV_UPSTREAM);
  quire_seq_fork_args args = QUIRE_SEQ_FORK_ARGS_INIT;
  args.thresholds = &own;
  args.threshold_count = 1;
  const std::int32_t empty = p.rig.open();
  args.slot = empty;
  std::int32_t planned = -1;
  REQUIRE(p.rig.cache.fork(args, &planned).ok());
  const std::int32_t parent = p.handle(kPrompt);
  args.slot = parent;
  std::int32_t child = -1;
  REQUIRE(p.rig.cache.fork(args, &child).ok());
  require_refused(
      p.rig.cache.freeze(child, p.ids.data(), kPrompt, nullptr), QUIRE_BAD_STATE, "slot");
  p.rig.spec.thresholds = {own};
  REQUIRE(p.find(kTokens) == -1);
  // Forked before it had any tokens, it plans its prompt by them.
  p.rig.prompt(planned, p.stream, kPrompt);
  REQUIRE((p.rig.records(planned) != p.rig.records(parent)));
  REQUIRE(p.rig.cache.freeze(planned, p.ids.data(), kPrompt, nullptr).ok());
  REQUIRE(p.find(kTokens) == planned);
}

}  // namespace
}  // namespace quire::test
