// Oracle: the comments of quire_policy, quire_threshold and quire_seq_open_args. Nothing changes
// when a sequence cannot be opened.
#include <cmath>
#include <limits>

#include "support/raw_calls.hpp"

namespace quire::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr quire_status kInvalid = QUIRE_INVALID_ARGUMENT;

using Policy = quire_policy;

// Against a diffkv policy of sink 1 (the group's most) and window 4 (the group's most).
const Bad<Policy> kBadPolicy[] = {
    {"kind 0", [](Policy& p) { p.kind = 0; }, {1, "kind", "1 to 4"}},
    {"kind 5", [](Policy& p) { p.kind = 5; }, {1, "kind", "1 to 4"}},
    {"statistic 5", [](Policy& p) { p.statistic = 5; }, {1, "statistic", "0 to 4"}},
    {"statistic none", [](Policy& p) { p.statistic = 0; }, {1, "statistic", "not none"}},
    {"significance 0", [](Policy& p) { p.significance = 0; }, {1, "significance", "1 to 4"}},
    {"significance 5", [](Policy& p) { p.significance = 5; }, {1, "significance", "1 to 4"}},
    {"step rule 0", [](Policy& p) { p.step_rule = 0; }, {1, "step_rule", "1 to 5"}},
    {"step rule 6", [](Policy& p) { p.step_rule = 6; }, {1, "step_rule", "1 to 5"}},
    {"two sinks",
     [](Policy& p) { p.sink_tokens = 2; },
     {1, "policy.sink_tokens", "not above the group", -1, 2}},
    {"many sinks",
     [](Policy& p) { p.sink_tokens = QUIRE_NONE - 1; },
     {1, "policy.sink_tokens", "not above the group"}},
    {"window of 5",
     [](Policy& p) { p.recent_window = 5; },
     {1, "policy.recent_window", "not above the group", 4, 5}},
    {"default window",
     [](Policy& p) { p.recent_window = 0; },
     {1, "policy.recent_window", "not above the group", 4, 64}},
    {"no tail queries", [](Policy& p) { p.tail_queries = 0; }, {1, "tail_queries", "at least 1"}},
    {"pool 3", [](Policy& p) { p.pool = 3; }, {1, "pool", "0"}},
    {"pool without width", [](Policy& p) { p.pool = 1; }, {1, "pool_width", "odd", -1, 0}},
    {"even pool width",
     [](Policy& p) {
       p.pool = 2;
       p.pool_width = 4;
     },
     {1, "pool_width", "odd number from 1 to 63", -1, 4}},
    {"wide pool",
     [](Policy& p) {
       p.pool = 1;
       p.pool_width = 65;
     },
     {1, "pool_width", "1 to 63", -1, 65}},
    {"high NaN", [](Policy& p) { p.alpha_high = kNan; }, {1, "alpha_high", "not NaN"}},
    {"low NaN", [](Policy& p) { p.alpha_low = kNan; }, {1, "alpha_low", "not NaN"}},
    {"high negative", [](Policy& p) { p.alpha_high = -1.0f; }, {1, "alpha_high", "from 0"}},
    {"low negative", [](Policy& p) { p.alpha_low = -1e-30f; }, {1, "alpha_low", "from 0"}},
    {"high infinite", [](Policy& p) { p.alpha_high = kInf; }, {1, "alpha_high", "1e30"}},
    {"thresholds crossed", [](Policy& p) { p.alpha_low = 1.5f; }, {1, "alpha_low", "crossed"}},
    {"target NaN", [](Policy& p) { p.byte_target = kNan; }, {1, "byte_target", "0"}},
    {"target negative", [](Policy& p) { p.byte_target = -0.25; }, {1, "byte_target", "0"}},
    {"target infinite", [](Policy& p) { p.byte_target = kInf; }, {1, "byte_target", "1.5"}},
    {"two budgets",
     [](Policy& p) {
       p.byte_target = 0.5;
       p.budget_bytes = 1 << 20;
     },
     {1, "budget_tokens", "one of"}},
    {"tokens for thresholds", [](Policy& p) { p.budget_tokens = 50; }, {1, "budget_tokens"}},
    {"budget below the ring",
     [](Policy& p) { p.budget_bytes = 8; },
     {1, "policy.budget_bytes", "ring", -1, 8}},
    {"cadence of 1025",
     [](Policy& p) {
       p.byte_target = 0.5;
       p.cadence = 1025;
     },
     {1, "cadence", "1 to 1024", 1024, 1025}},
    {"a budget that keep-all has not",
     [](Policy& p) {
       p.kind = QUIRE_KEEP_ALL;
       p.byte_target = 0.5;
     },
     {1, "budget_tokens"}},
    {"eviction without a budget",
     [](Policy& p) {
       p.kind = QUIRE_EVICT;
       p.step_rule = QUIRE_STEP_EVICT;
     },
     {1, "budget_tokens", "budget"}},
    {"eviction below the ring",
     [](Policy& p) {
       p.kind = QUIRE_EVICT;
       p.step_rule = QUIRE_STEP_EVICT;
       p.budget_tokens = 3;
     },
     {1, "policy.budget_tokens", "sink_tokens + recent_window", -1, 3}},
    {"unknown flag", [](Policy& p) { p.flags = 4; }, {QUIRE_ABI_MISMATCH, "flags", "", 3, 4}},
    {"of size 0",
     [](Policy& p) { p.struct_size = 0; },
     {QUIRE_ABI_MISMATCH, "struct_size", "", sizeof(Policy), 0}},
};

const Bad<quire_threshold> kBadThreshold[] = {
    {"layer 2",
     [](quire_threshold& t) { t.layer = 2; },
     {1, "thresholds.layer", "QUIRE_ALL", 2, 2}},
    {"head 2", [](quire_threshold& t) { t.head = 2; }, {1, "thresholds.head", "QUIRE_ALL", 2, 2}},
    {"high NaN", [](quire_threshold& t) { t.alpha_high = kNan; }, {1, "alpha_high", "not NaN"}},
    {"low NaN", [](quire_threshold& t) { t.alpha_low = kNan; }, {1, "alpha_low", "not NaN"}},
    {"high negative", [](quire_threshold& t) { t.alpha_high = -1; }, {1, "alpha_high", "from 0"}},
    {"low negative", [](quire_threshold& t) { t.alpha_low = -1; }, {1, "alpha_low", "from 0"}},
    {"crossed", [](quire_threshold& t) { t.alpha_low = 2; }, {1, "alpha_low", "crossed"}},
};

struct Scene {
  RawCache cache;
  RawCalls calls;
  explicit Scene(const RawSpec& spec = RawSpec()) : cache(spec), calls(cache, 5) {}

  void refuse(const quire_seq_open_args& args, const Refusal& want) {
    calls.reset_outputs();
    require_refused(
        cache, calls, want, [&] { return quire_seq_open(cache.get(), &args, &calls.opened); });
  }
};

// The policy's own limits do not hang on thresholds: a keep-all cache takes offsets and no scores.
RawSpec offset_spec() {
  RawSpec spec(QUIRE_RECIPE_KEEP_ALL);
  spec.group.layout.tier[0].k.transform = QUIRE_TRANSFORM_OFFSET;
  spec.group.layout.flags = QUIRE_LAYOUT_NO_SCORE | QUIRE_LAYOUT_NO_POSITION;
  return spec;
}

}  // namespace

TEST_CASE("a policy out of range does not open a sequence", "[cache][bad_input]") {
  Scene scene;
  for (const Bad<Policy>& bad : kBadPolicy) {
    INFO(bad.what);
    scene.calls.policy = scene.cache.spec.policy;
    bad.spoil(scene.calls.policy);
    scene.refuse(scene.calls.open(), bad.want);
  }
  scene.calls.policy = scene.cache.spec.policy;
  scene.calls.step({scene.calls.open_with(20)});
}

TEST_CASE("a policy out of range has no pages in advance either", "[cache][bad_input]") {
  Scene scene;
  for (const Bad<Policy>& bad : kBadPolicy) {
    INFO(bad.what);
    Policy policy = scene.cache.spec.policy;
    bad.spoil(policy);
    scene.calls.reset_outputs();
    require_refused(scene.cache, scene.calls, bad.want, [&] {
      return quire_pages_for(
          scene.cache.get(), &policy, 10, &scene.calls.number[0], nullptr, &scene.calls.error);
    });
  }
}

TEST_CASE("threshold overrides out of range do not open a sequence", "[cache][bad_input]") {
  Scene scene;
  for (const Bad<quire_threshold>& bad : kBadThreshold) {
    INFO(bad.what);
    quire_threshold thresholds[2] = {{QUIRE_ALL, QUIRE_ALL, 1.0f, 0.5f}, {1, 1, 1.0f, 0.5f}};
    bad.spoil(thresholds[1]);
    quire_seq_open_args args = scene.calls.open();
    args.thresholds = thresholds;
    args.threshold_count = 2;
    scene.refuse(args, bad.want);
  }
  quire_seq_open_args args = scene.calls.open();
  args.threshold_count = 1;
  scene.refuse(args, {kInvalid, "thresholds", "not NULL"});
  scene.calls.step({scene.calls.open_with(20)});
}

TEST_CASE("offset vectors that are not finite fp16 numbers do not open a sequence",
          "[cache][bad_input]") {
  Scene scene(offset_spec());
  const std::size_t size = 2 * 2 * 32;
  for (const std::size_t at : {std::size_t{0}, size / 2, size - 1}) {
    for (const float bad : {kNan, kInf, -kInf, 65505.0f, -1e30f}) {
      INFO("element " << at << " is " << bad);
      std::vector<float> offset(size, 0.5f);
      offset[at] = bad;
      quire_seq_open_args args = scene.calls.open();
      args.k_offset = offset.data();
      scene.refuse(args, {QUIRE_BAD_VALUE, "k_offset", "65504", -1, static_cast<std::int64_t>(at)});
    }
  }
  const std::vector<float> offset(size, 65504.0f);
  quire_seq_open_args args = scene.calls.open();
  args.v_offset = offset.data();
  scene.refuse(args, {kInvalid, "v_offset", "QUIRE_TRANSFORM_OFFSET"});
  args.v_offset = nullptr;
  args.k_offset = offset.data();
  CHECK(quire_seq_open(scene.cache.get(), &args, &scene.calls.opened) == QUIRE_OK);
}

TEST_CASE("a layout without scores or positions refuses the policies that need them",
          "[cache][bad_input]") {
  Scene scene(offset_spec());
  REQUIRE(quire_recipe_get(QUIRE_RECIPE_DIFFKV_PAPER, &scene.calls.policy, nullptr, nullptr) ==
          QUIRE_OK);
  scene.calls.policy.recent_window = 4;
  scene.refuse(scene.calls.open(), {QUIRE_UNSUPPORTED, "policy.statistic", "NO_SCORE"});
  REQUIRE(quire_recipe_get(QUIRE_RECIPE_FOREIGN, &scene.calls.policy, nullptr, nullptr) ==
          QUIRE_OK);
  scene.calls.policy.recent_window = 4;
  scene.refuse(scene.calls.open(), {QUIRE_UNSUPPORTED, "policy.kind", "NO_POSITION"});
}

TEST_CASE("a layout without a low tier refuses thresholds that need one", "[cache][bad_input]") {
  RawSpec spec;
  spec.group.layout.tier_count = 1;
  Scene scene(spec);
  scene.refuse(scene.calls.open(), {kInvalid, "policy.alpha_low", "without a low tier"});
  scene.calls.policy.alpha_low = scene.calls.policy.alpha_high;
  const quire_threshold threshold = {0, 0, 1.0f, 0.5f};
  quire_seq_open_args args = scene.calls.open();
  args.thresholds = &threshold;
  args.threshold_count = 1;
  scene.refuse(args, {kInvalid, "thresholds.alpha_low", "without a low tier"});
  scene.calls.step({scene.calls.open_with(20)});
}

TEST_CASE("one sequence more than declared is over capacity until another closes",
          "[cache][bad_input]") {
  Scene scene;
  for (std::int32_t i = 0; i < 3; ++i) CHECK(scene.calls.open_with(10) == i);
  scene.refuse(scene.calls.open(), {QUIRE_CAPACITY, "max_sequences", "open at once", 4, 3});
  scene.calls.need(quire_seq_close(scene.cache.get(), 1, &scene.calls.error));
  CHECK(scene.calls.open_with(10) == 1);
}

TEST_CASE("opening without cache, args, policy or slot names what is missing",
          "[cache][bad_input]") {
  Scene scene;
  quire_seq_open_args args = scene.calls.open();
  std::int32_t slot = 77;
  require_refused(scene.cache, scene.calls, {kInvalid, "cache", "not NULL"}, [&] {
    return quire_seq_open(nullptr, &args, &slot);
  });
  require_refused(scene.cache, scene.calls, {kInvalid, "slot", "not NULL"}, [&] {
    return quire_seq_open(scene.cache.get(), &args, nullptr);
  });
  CHECK(quire_seq_open(scene.cache.get(), nullptr, &slot) == QUIRE_INVALID_ARGUMENT);
  args.policy = nullptr;
  scene.refuse(args, {kInvalid, "policy", "not NULL"});
  CHECK(slot == 77);
}

TEST_CASE("slots that no sequence has are refused by every call that takes one",
          "[cache][bad_input]") {
  Scene scene;
  const std::int32_t open = scene.calls.open_with(10);
  quire_cache* const cache = scene.cache.get();
  RawCalls& c = scene.calls;
  for (const std::int32_t slot : {-2, -1, 3, 1000, INT32_MIN, INT32_MAX}) {
    INFO("slot " << slot);
    c.reset_outputs();
    const Refusal want = {kInvalid, "slot", "max_sequences", 3};
    const Refusal in_list = {kInvalid, "slots", "max_sequences", 3};
    const auto refuse = [&](const Refusal& w, auto&& call) {
      require_refused(scene.cache, c, w, call);
    };
    refuse(want, [&] { return quire_seq_close(cache, slot, &c.error); });
    refuse(want, [&] { return test::begin_prompt(cache, slot, 5, &c.error); });
    refuse(want, [&] { return quire_prefill_end(cache, slot, &c.error); });
    refuse(want, [&] { return quire_prefill_cancel(cache, slot, &c.error); });
    const quire_prefill_layer_args prompt = c.prompt(slot, 0, 10);
    refuse(want, [&] { return quire_prefill_layer(cache, &prompt); });
    const quire_extend_args extend = c.extend(slot, 0, 1);
    refuse(want, [&] { return quire_extend(cache, &extend); });
    const quire_plan_apply_args plan = c.plan(slot, 1, 10);
    refuse(want, [&] { return quire_plan_apply(cache, &plan); });
    const quire_gather_args gather = c.gather(slot);
    refuse(want, [&] { return quire_gather(cache, &gather); });
    const quire_query_args query = c.query(slot);
    refuse(want, [&] { return quire_query(cache, &query); });
    quire_seq_info info = QUIRE_SEQ_INFO_INIT;
    CHECK(quire_seq_info_get(cache, slot, &info, nullptr) == QUIRE_INVALID_ARGUMENT);
    if (slot == -1) continue;  // padding, where a list is taken
    const quire_step_begin_args begin = c.begin({open, slot});
    refuse(in_list, [&] { return quire_step_begin(cache, &begin); });
    const std::int32_t slots[2] = {open, slot};
    refuse(in_list, [&] {
      return quire_headroom_pages(cache, slots, 2, 1, &c.number[0], &c.number[1], &c.error);
    });
  }
  c.step({open});
}

}  // namespace quire::test
