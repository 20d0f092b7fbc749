// Oracle: the comments of quire_prefill_layer_args, quire_rows, quire_rule and quire_parallel. A
// prompt whose layer was refused goes on as if the call had not been made.
#include <array>
#include <limits>

#include "support/raw_calls.hpp"

namespace quire::test {
namespace {

using Args = quire_prefill_layer_args;
constexpr std::uint32_t kTokens = 24;  // sink 1, window 4: 19 in pages
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// One log-sum-exp per query row and head; -inf is a row that sees nothing.
constexpr std::array<float, kTokens * 4> lse_with(std::size_t at, float value) {
  std::array<float, kTokens* 4> lse = {-kInf, 1.0f, 2.0f, 3.0f};
  lse[at] = value;
  return lse;
}
constexpr auto kNanLse = lse_with(1, kNan);
constexpr auto kInfLse = lse_with(2, kInf);
constexpr auto kHugeLse = lse_with(3, -2.0e30f);

template <class T>
T* one_byte_on(T* data) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(data) + 1);
}

void run_nothing(void*, std::uint32_t, void (*)(void*, std::uint32_t), void*) {}
const quire_parallel kNoRun = {nullptr, nullptr, 1, 0};
const quire_parallel kNoWidth = {run_nothing, nullptr, 0, 0};
const quire_parallel kTooWide = {run_nothing, nullptr, 3, 0};

const Bad<Args> kBad[] = {
    {"layer 2", [](Args& a) { a.layer = 2; }, {1, "layer", "below layers", 2, 2}},
    {"layer 1 before 0",
     [](Args& a) { a.layer = 1; },
     {QUIRE_BAD_STATE, "layer", "in order", 0, 1}},
    {"no K", [](Args& a) { a.k.data = nullptr; }, {1, "k", "not NULL"}},
    {"no V", [](Args& a) { a.v.data = nullptr; }, {1, "v", "not NULL"}},
    {"no q", [](Args& a) { a.q.data = nullptr; }, {1, "q", "not NULL"}},
    {"K dtype 0", [](Args& a) { a.k.dtype = 0; }, {1, "k", "QUIRE_F32", -1, 0}},
    {"V dtype 4", [](Args& a) { a.v.dtype = 4; }, {1, "v", "QUIRE_BF16", -1, 4}},
    {"q dtype 9", [](Args& a) { a.q.dtype = 9; }, {1, "q", "QUIRE_F16", -1, 9}},
    {"K between floats",
     [](Args& a) { a.k.data = one_byte_on(static_cast<float*>(a.k.data)); },
     {QUIRE_MISALIGNED, "k", "aligned", 4, 1}},
    {"K in the middle of a float",
     [](Args& a) { a.k.data = one_byte_on(one_byte_on(static_cast<float*>(a.k.data))); },
     {QUIRE_MISALIGNED, "k", "aligned", 4, 2}},
    {"V between halves",
     [](Args& a) {
       a.v.data = one_byte_on(static_cast<float*>(a.v.data));
       a.v.dtype = QUIRE_F16;
     },
     {QUIRE_MISALIGNED, "v", "aligned", 2, 1}},
    {"q between bfloats",
     [](Args& a) {
       a.q.data = one_byte_on(static_cast<float*>(a.q.data));
       a.q.dtype = QUIRE_BF16;
     },
     {QUIRE_MISALIGNED, "q", "aligned", 2, 1}},
    {"no query row", [](Args& a) { a.q_rows = 0; }, {1, "q_rows", "tail_queries", kTokens, 0}},
    {"too few query rows",
     [](Args& a) { a.q_rows = kTokens - 1; },
     {1, "q_rows", "tail_queries", kTokens, kTokens - 1}},
    {"more query rows than tokens",
     [](Args& a) { a.q_rows = kTokens + 1; },
     {1, "q_rows", "to tokens", -1, kTokens + 1}},
    {"scale NaN", [](Args& a) { a.rule.scale = kNan; }, {1, "rule.scale", "positive"}},
    {"scale negative", [](Args& a) { a.rule.scale = -1; }, {1, "rule.scale", "positive"}},
    {"soft cap negative", [](Args& a) { a.rule.soft_cap = -1; }, {1, "rule.soft_cap", "positive"}},
    {"soft cap NaN", [](Args& a) { a.rule.soft_cap = kNan; }, {1, "rule.soft_cap", "positive"}},
    {"sliding window negative",
     [](Args& a) { a.rule.sliding_window = -1; },
     {1, "rule.sliding_window", "positive"}},
    {"no run", [](Args& a) { a.parallel = &kNoRun; }, {1, "parallel.run", "function"}},
    {"no width", [](Args& a) { a.parallel = &kNoWidth; }, {1, "parallel.width", "1 to", 2, 0}},
    {"too wide", [](Args& a) { a.parallel = &kTooWide; }, {1, "parallel.width", "threads", 2, 3}},
    {"lse NaN", [](Args& a) { a.lse = kNanLse.data(); }, {QUIRE_BAD_VALUE, "lse", "finite", 0, 1}},
    {"lse Inf", [](Args& a) { a.lse = kInfLse.data(); }, {QUIRE_BAD_VALUE, "lse", "finite", 0, 2}},
    {"lse huge", [](Args& a) { a.lse = kHugeLse.data(); }, {QUIRE_BAD_VALUE, "lse", "1e30", 0, 3}},
    {"flags", [](Args& a) { a.flags = 1; }, {QUIRE_ABI_MISMATCH, "flags", "", 0, 1}},
};

struct Scene {
  RawCache cache;
  RawCalls calls;
  std::int32_t slot = -1;

  explicit Scene(const RawSpec& spec) : cache(spec), calls(cache, 21) {
    slot = calls.open_with(0);
    calls.need(test::begin_prompt(cache.get(), slot, kTokens, &calls.error));
    calls.reset_outputs();
  }

  void refuse(const Args& args, const Refusal& want) {
    require_refused(cache, calls, want, [&] { return quire_prefill_layer(cache.get(), &args); });
  }

  Args args(std::uint32_t layer = 0) { return calls.prompt(slot, layer, kTokens); }

  void finish() {
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
      const Args good = args(layer);
      calls.need(quire_prefill_layer(cache.get(), &good));
    }
    calls.need(quire_prefill_end(cache.get(), slot, &calls.error));
    calls.step({slot});
    CHECK(cache.stats().promised_pages == 0);
    CHECK(cache.guards_intact());
  }
};

struct BadPlan {
  const char* what;
  std::size_t index;  // of [kv_heads, tokens]
  std::uint8_t tier;
};

// Head 0 then head 1; token 0 is the sink, 20..23 the window.
const BadPlan kBadPlan[] = {
    {"a third tier", 1, 2},
    {"253", 5, 253},
    {"a third tier in the last entry", 2 * kTokens - 1, 2},
    {"ring for a token in the middle", 10, 255},
    {"ring for a token of the last head", kTokens + 1, 255},
};

}  // namespace

TEST_CASE("a prompt layer with a wrong argument is refused and can be repeated",
          "[cache][bad_input]") {
  Scene scene{RawSpec()};
  for (const Bad<Args>& bad : kBad) {
    INFO(bad.what);
    Args args = scene.args();
    bad.spoil(args);
    scene.refuse(args, bad.want);
  }
  scene.finish();
}

TEST_CASE("a prompt plan with an unknown tier, or ring outside the ring, is refused",
          "[cache][bad_input]") {
  Scene scene{RawSpec()};
  for (const BadPlan& bad : kBadPlan) {
    INFO(bad.what);
    std::vector<std::uint8_t> plan(2 * kTokens, 0);
    plan[bad.index] = bad.tier;
    Args args = scene.args();
    args.plan = plan.data();
    scene.refuse(args, {QUIRE_INVALID_ARGUMENT, "plan", "255"});
  }
  scene.finish();
}

TEST_CASE("a prompt plan may not use a low tier that the layout has not", "[cache][bad_input]") {
  RawSpec spec(QUIRE_RECIPE_KEEP_ALL);
  Scene scene(spec);
  std::vector<std::uint8_t> plan(2 * kTokens, 0);
  plan[7] = 1;
  Args args = scene.args();
  args.plan = plan.data();
  scene.refuse(args, {QUIRE_INVALID_ARGUMENT, "plan", "low tier"});
  scene.finish();
}

// The order implies the position there, so a hole would move all later tokens.
TEST_CASE("a prompt plan that drops is refused where positions are not stored",
          "[cache][bad_input]") {
  RawSpec spec(QUIRE_RECIPE_KEEP_ALL);
  spec.group.layout.flags = QUIRE_LAYOUT_NO_SCORE | QUIRE_LAYOUT_NO_POSITION;
  Scene scene(spec);
  std::vector<std::uint8_t> plan(2 * kTokens, 0);
  plan[3] = 254;
  Args args = scene.args();
  args.plan = plan.data();
  scene.refuse(args, {QUIRE_UNSUPPORTED, "plan", "NO_POSITION"});
  scene.finish();
}

// The reservation is the policy's closed form; a plan of the engine must not take more than that.
TEST_CASE("a prompt plan of more tokens than an evicting policy allows is refused",
          "[cache][bad_input]") {
  RawSpec spec(QUIRE_RECIPE_STREAMING_LLM);
  spec.group.layout.page_bytes = 0;
  spec.group.layout.expected_tokens = 16;
  spec.group.sink_tokens = spec.policy.sink_tokens = 1;
  spec.set_window(4);
  spec.policy.budget_tokens = 5;  // the ring alone: no page is reserved
  spec.desc.pages = 2;
  Scene scene(spec);
  std::vector<std::uint8_t> plan(2 * kTokens, 0);
  Args args = scene.args();
  args.plan = plan.data();
  scene.refuse(args, {QUIRE_INVALID_ARGUMENT, "plan", "budget"});
  scene.finish();
}

TEST_CASE("a prompt longer than declared, empty or twice is refused", "[cache][bad_input]") {
  RawCache cache{RawSpec()};
  RawCalls calls(cache, 22);
  const std::int32_t slot = calls.open_with(0);
  const auto begin = [&](std::uint32_t tokens, const Refusal& want) {
    require_refused(cache, calls, want, [&] {
      return test::begin_prompt(cache.get(), slot, tokens, &calls.error);
    });
  };
  begin(0, {QUIRE_INVALID_ARGUMENT, "tokens", "at least 1", 1, 0});
  begin(101, {QUIRE_CAPACITY, "tokens", "max_tokens"});
  begin(QUIRE_ALL, {QUIRE_CAPACITY, "tokens", "max_tokens"});
  calls.fill_prompt(slot, 30);
  begin(0, {QUIRE_INVALID_ARGUMENT, "tokens", "at least 1", 1, 0});
  begin(71, {QUIRE_CAPACITY, "tokens", "max_tokens", 101, 100});
  begin(QUIRE_ALL, {QUIRE_CAPACITY, "tokens", "max_tokens"});
  require_refused(cache, calls, {QUIRE_UNSUPPORTED, "flags", "one round"}, [&] {
    return test::begin_prompt(cache.get(), slot, 10, &calls.error, QUIRE_PREFILL_EXACT);
  });
  require_refused(cache, calls, {QUIRE_ABI_MISMATCH, "flags", "knows"}, [&] {
    return test::begin_prompt(cache.get(), slot, 10, &calls.error, 8);
  });
  CHECK(test::begin_prompt(nullptr, slot, 5, nullptr) == QUIRE_INVALID_ARGUMENT);
  CHECK(quire_prefill_end(nullptr, slot, nullptr) == QUIRE_INVALID_ARGUMENT);
  CHECK(quire_prefill_cancel(nullptr, slot, nullptr) == QUIRE_INVALID_ARGUMENT);
  CHECK(quire_prefill_layer(nullptr, nullptr) == QUIRE_INVALID_ARGUMENT);
  CHECK(quire_prefill_layer(cache.get(), nullptr) == QUIRE_INVALID_ARGUMENT);
  CHECK(quire_seq_close(nullptr, slot, nullptr) == QUIRE_INVALID_ARGUMENT);
  calls.step({slot});
}

TEST_CASE("a prompt of exactly the declared length fits, and no token more", "[cache][bad_input]") {
  RawSpec spec;
  spec.desc.max_tokens = RawCalls::kRows;
  RawCache cache(spec);
  RawCalls calls(cache, 23);
  const std::int32_t slot = calls.open_with(RawCalls::kRows);
  const quire_step_begin_args args = calls.begin({slot});
  require_refused(
      cache,
      calls,
      {QUIRE_CAPACITY, "max_tokens", "tokens of a sequence", RawCalls::kRows + 1, RawCalls::kRows},
      [&] { return quire_step_begin(cache.get(), &args); });
  calls.need(quire_seq_close(cache.get(), slot, &calls.error));
  CHECK(cache.stats().live_pages == 0);
}

}  // namespace quire::test
