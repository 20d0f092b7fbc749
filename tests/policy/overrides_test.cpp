// Oracle: support/policy_run.hpp with thresholds per head, and the rule that later entries win.
#include <vector>

#include "support/catch.hpp"
#include "support/policy_run.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kPrompt = 200;
constexpr std::uint32_t kSteps = 80;

StreamShape override_shape() {
  StreamShape shape;
  shape.layers = 3;
  shape.tokens = kPrompt + kSteps;
  return shape;
}

RigSpec override_spec(std::uint32_t recipe) {
  RigSpec spec(recipe, override_shape());
  spec.set_ring(1, 24);
  spec.policy.alpha_high = 1.0f;
  spec.policy.alpha_low = 0.3f;
  return spec;
}

void apply_overrides(const RigSpec& spec, ReferenceRun& run) {
  for (std::uint32_t layer = 0; layer < spec.group.layers; ++layer) {
    for (std::uint32_t head = 0; head < spec.group.kv_heads; ++head) {
      for (const quire_threshold& t : spec.thresholds) {
        const bool here =
            (t.layer == QUIRE_ALL || t.layer == layer) && (t.head == QUIRE_ALL || t.head == head);
        if (!here) continue;
        run.head(layer, head).alpha_high = t.alpha_high;
        run.head(layer, head).alpha_low = t.alpha_low;
      }
    }
  }
}

void follow(const RigSpec& spec, std::uint64_t seed) {
  Rng rng(seed);
  INFO(rng.describe());
  const Stream stream(override_shape(), rng);
  Rig rig(spec);
  ReferenceRun run(rig, rig.open(), stream);
  apply_overrides(spec, run);
  run.prompt(kPrompt);
  for (std::uint32_t i = 0; i < kSteps; ++i) run.step();
  INFO(run.describe());
  REQUIRE(run.turned * 100 <= run.decisions);
}

TEST_CASE("thresholds per layer and head override the policy's, later ones win",
          "[policy][thresholds]") {
  const std::uint32_t recipe = GENERATE(QUIRE_RECIPE_DIFFKV_UPSTREAM, QUIRE_RECIPE_DIFFKV_PAPER);
  RigSpec spec = override_spec(recipe);
  spec.thresholds = {{QUIRE_ALL, 1, 2.0f, 0.5f},
                     {0, QUIRE_ALL, 0.6f, 0.6f},
                     {2, 0, 9.0f, 9.0f},
                     {2, 0, 0.0f, 0.0f}};
  follow(spec, 8501);
}

TEST_CASE("the order of overrides matters", "[policy][thresholds]") {
  const bool broadcast_last = GENERATE(false, true);
  RigSpec spec = override_spec(QUIRE_RECIPE_DIFFKV_UPSTREAM);
  const quire_threshold one = {1, 1, 5.0f, 2.0f};
  const quire_threshold all = {QUIRE_ALL, QUIRE_ALL, 0.0f, 0.0f};
  spec.thresholds = {one, all};
  if (!broadcast_last) spec.thresholds = {all, one};
  Rng rng(8502);
  INFO(rng.describe());
  const Stream stream(override_shape(), rng);
  Rig rig(spec);
  const std::int32_t slot = rig.open();
  rig.prompt(slot, stream, kPrompt);
  for (std::uint32_t h = 0; h < 6; ++h) {
    const std::size_t kept = rig.kept(slot, h / 2, h % 2).size();
    const bool cut = !broadcast_last && h == 3;
    REQUIRE((kept < kPrompt) == cut);
  }
}

TEST_CASE("overrides hold under a byte target as well", "[policy][thresholds]") {
  RigSpec spec(QUIRE_RECIPE_QUIRE_BUDGET, override_shape());
  spec.set_ring(1, 24);
  spec.policy.byte_target = 0.4;
  spec.policy.min_queries = 40;
  spec.thresholds = {{0, QUIRE_ALL, 2.0f, 0.0f}, {QUIRE_ALL, 1, 1.0f, 1.0f}, {2, 0, 0.0f, 0.0f}};
  follow(spec, 8503);
}

TEST_CASE("equal alphas need no low tier", "[policy][thresholds]") {
  const std::uint32_t recipe = GENERATE(QUIRE_RECIPE_DIFFKV_UPSTREAM, QUIRE_RECIPE_DIFFKV_PAPER);
  const bool controlled = GENERATE(false, true);
  RigSpec spec = override_spec(recipe);
  spec.policy.alpha_low = spec.policy.alpha_high = 0.4f;
  spec.group.layout.tier_count = 1;
  if (controlled) {
    spec.policy.byte_target = 0.5;
    spec.group.ring_format = QUIRE_RING_K8V8;
  }
  follow(spec, 8504);
}

TEST_CASE("bad overrides are refused with their field and open nothing", "[policy][thresholds]") {
  struct Bad {
    quire_threshold threshold;
    const char* field;
  };
  const float nan = std::nanf("");
  const Bad bads[] = {{{3, 0, 1.0f, 0.0f}, "thresholds.layer"},
                      {{0, 2, 1.0f, 0.0f}, "thresholds.head"},
                      {{QUIRE_ALL, 0, nan, 0.0f}, "alpha_high"},
                      {{QUIRE_ALL, 0, 1.0f, nan}, "alpha_low"},
                      {{0, QUIRE_ALL, -1.0f, 0.0f}, "alpha_high"},
                      {{0, 0, 1.0f, -0.1f}, "alpha_low"},
                      {{0, 0, 1.0f, 1.1f}, "alpha_low"}};
  for (const Bad& bad : bads) {
    RigSpec spec = override_spec(QUIRE_RECIPE_DIFFKV_UPSTREAM);
    Rig rig(spec);
    const std::vector<quire_threshold> list = {{0, 0, 1.0f, 0.5f}, bad.threshold};
    quire_seq_open_args args = QUIRE_SEQ_OPEN_ARGS_INIT;
    args.policy = &spec.policy;
    args.thresholds = list.data();
    args.threshold_count = list.size();
    std::int32_t slot = 77;
    const Result result = rig.cache.open(args, &slot);
    INFO("expected field " << bad.field << ", got " << result.field());
    REQUIRE(result.status() == QUIRE_INVALID_ARGUMENT);
    REQUIRE(std::string(result.field()).find(bad.field) != std::string::npos);
    REQUIRE(slot == 77);
    REQUIRE(rig.cache.stats().sequences == 0);
    args.thresholds = nullptr;
    REQUIRE(rig.cache.open(args, &slot).status() == QUIRE_INVALID_ARGUMENT);
  }
}

}  // namespace
}  // namespace quire::test
