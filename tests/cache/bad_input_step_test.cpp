// Oracle: the comments of quire_step_begin_args, quire_append_args, quire_attention_args and
// quire_plan_move. A step goes on after any refused call as if it had not been made.
#include <limits>

#include "support/raw_calls.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kTokens = 24;
constexpr quire_status kInvalid = QUIRE_INVALID_ARGUMENT;
constexpr float kInf = std::numeric_limits<float>::infinity();

void run_nothing(void*, std::uint32_t, void (*)(void*, std::uint32_t), void*) {}
const quire_parallel kNoRun = {nullptr, nullptr, 1, 0};
const quire_parallel kTooWide = {run_nothing, nullptr, 3, 0};

void* one_byte_on(void* data) { return static_cast<unsigned char*>(data) + 1; }

const Bad<quire_append_args> kBadAppend[] = {
    {"layer 2", [](quire_append_args& a) { a.layer = 2; }, {1, "layer", "below layers", 2, 2}},
    {"no K", [](quire_append_args& a) { a.k.data = nullptr; }, {1, "k", "not NULL"}},
    {"no V", [](quire_append_args& a) { a.v.data = nullptr; }, {1, "v", "not NULL"}},
    {"K dtype 0", [](quire_append_args& a) { a.k.dtype = 0; }, {1, "k", "QUIRE_F32", -1, 0}},
    {"V dtype 4", [](quire_append_args& a) { a.v.dtype = 4; }, {1, "v", "QUIRE_F32", -1, 4}},
    {"K between floats",
     [](quire_append_args& a) { a.k.data = one_byte_on(a.k.data); },
     {QUIRE_MISALIGNED, "k", "aligned", 4, 1}},
    {"V between floats",
     [](quire_append_args& a) { a.v.data = one_byte_on(a.v.data); },
     {QUIRE_MISALIGNED, "v", "aligned", 4, 1}},
    {"no run", [](quire_append_args& a) { a.parallel = &kNoRun; }, {1, "parallel.run"}},
    {"too wide",
     [](quire_append_args& a) { a.parallel = &kTooWide; },
     {1, "parallel.width", "threads", 2, 3}},
    {"flags", [](quire_append_args& a) { a.flags = 2; }, {QUIRE_ABI_MISMATCH, "flags", "", 0, 2}},
};

using Query = quire_attention_args;
const Bad<Query> kBadQuery[] = {
    {"layer 2", [](Query& a) { a.layer = 2; }, {1, "layer", "below layers", 2, 2}},
    {"17 rows", [](Query& a) { a.rows = 17; }, {1, "rows", "16", 16, 17}},
    {"many rows", [](Query& a) { a.rows = QUIRE_ALL; }, {1, "rows", "16"}},
    {"no q", [](Query& a) { a.q.data = nullptr; }, {1, "q", "not NULL"}},
    {"no out", [](Query& a) { a.out.data = nullptr; }, {1, "out", "not NULL"}},
    {"q dtype 0", [](Query& a) { a.q.dtype = 0; }, {1, "q", "QUIRE_F32", -1, 0}},
    {"out dtype 5", [](Query& a) { a.out.dtype = 5; }, {1, "out", "QUIRE_F32", -1, 5}},
    {"q between floats",
     [](Query& a) { a.q.data = one_byte_on(a.q.data); },
     {QUIRE_MISALIGNED, "q", "aligned", 4, 1}},
    {"out between halves",
     [](Query& a) {
       a.out.data = one_byte_on(a.out.data);
       a.out.dtype = QUIRE_F16;
     },
     {QUIRE_MISALIGNED, "out", "aligned", 2, 1}},
    {"base 10", [](Query& a) { a.lse_base_2 = 10; }, {1, "lse_base_2", "0 or 1", 1, 10}},
    {"5 splits", [](Query& a) { a.splits = 5; }, {1, "splits", "max_splits", 4, 5}},
    {"2 score rows of 1", [](Query& a) { a.score_rows = 2; }, {1, "score_rows", "rows", 1, 2}},
    {"scale infinite", [](Query& a) { a.rule.scale = kInf; }, {1, "rule.scale", "positive"}},
    {"soft cap negative", [](Query& a) { a.rule.soft_cap = -1; }, {1, "rule.soft_cap"}},
    {"window negative", [](Query& a) { a.rule.sliding_window = -5; }, {1, "rule.sliding_window"}},
    {"no run", [](Query& a) { a.parallel = &kNoRun; }, {1, "parallel.run"}},
    {"too wide", [](Query& a) { a.parallel = &kTooWide; }, {1, "parallel.width", "", 2, 3}},
    {"flags", [](Query& a) { a.flags = 1; }, {QUIRE_ABI_MISMATCH, "flags", "", 0, 1}},
};

using Begin = quire_step_begin_args;
const Bad<Begin> kBadBegin[] = {
    {"empty batch", [](Begin& a) { a.batch = 0; }, {1, "batch", "max_batch", 3, 0}},
    {"batch of 4", [](Begin& a) { a.batch = 4; }, {1, "batch", "max_batch", 3, 4}},
    {"no slots", [](Begin& a) { a.slots = nullptr; }, {1, "slots", "not NULL"}},
    {"moves without a plan", [](Begin& a) { a.plan_count = 1; }, {1, "plan", "not NULL"}},
    {"log without room", [](Begin& a) { a.plan_capacity = 1; }, {1, "plan_out", "not NULL"}},
    {"flags", [](Begin& a) { a.flags = 1; }, {QUIRE_ABI_MISMATCH, "flags", "", 0, 1}},
};

struct Scene {
  RawCache cache;
  RawCalls calls;
  std::int32_t slot[2] = {};

  explicit Scene(const RawSpec& spec = RawSpec()) : cache(spec), calls(cache, 31) {
    for (std::int32_t& s : slot) s = calls.open_with(kTokens);
    calls.reset_outputs();
  }

  void refuse_begin(const Begin& args, const Refusal& want) {
    require_refused(cache, calls, want, [&] { return quire_step_begin(cache.get(), &args); });
  }
};

struct BadMove {
  const char* what;
  quire_plan_move move;
  const char* field;
  const char* words;
};

// Sequence of 24 tokens, sink 0, window 20..23: 20 leaves; 1..19 are in pages; all may be moved.
const BadMove kBadMove[] = {
    {"layer 2", {2, 0, 20, 0, {}}, "plan.layer", "below layers"},
    {"head 2", {0, 2, 20, 0, {}}, "plan.head", "below kv_heads"},
    {"tier 2", {0, 0, 20, 2, {}}, "plan.to", "0 high, 1 low"},
    {"tier 255", {0, 0, 20, 255, {}}, "plan.to", "0 high, 1 low"},
    {"a sink", {0, 0, 0, 254, {}}, "plan.position", "in the pages"},
    {"a token of the window", {0, 0, 22, 254, {}}, "plan.position", "in the pages"},
    {"a token to come", {1, 1, 24, 254, {}}, "plan.position", "in the pages"},
    {"position -1", {1, 1, -1, 0, {}}, "plan.position", "in the pages"},
    {"a token that stays", {0, 0, 5, 0, {}}, "plan.to", "lower tier"},
};

}  // namespace

TEST_CASE("a step with a wrong batch does not begin", "[cache][bad_input]") {
  Scene scene;
  for (const Bad<Begin>& bad : kBadBegin) {
    INFO(bad.what);
    Begin args = scene.calls.begin({scene.slot[0]});
    bad.spoil(args);
    scene.refuse_begin(args, bad.want);
  }
  const std::int32_t a = scene.slot[0];
  scene.refuse_begin(scene.calls.begin({a, -1, a}), {kInvalid, "slots", "once", -1, a});
  scene.refuse_begin(scene.calls.begin({2}), {QUIRE_BAD_STATE, "slots", "closed", -1, 2});
  CHECK(quire_step_begin(nullptr, nullptr) == QUIRE_INVALID_ARGUMENT);
  CHECK(quire_step_begin(scene.cache.get(), nullptr) == QUIRE_INVALID_ARGUMENT);
  scene.calls.step({scene.slot[1], -1, scene.slot[0]});
}

TEST_CASE("a plan is replayed and logged for a batch of one sequence only", "[cache][bad_input]") {
  Scene scene;
  std::uint64_t made = 77;
  Begin args = scene.calls.begin({scene.slot[0], scene.slot[1]});
  args.plan_out_count = &made;
  scene.refuse_begin(args, {kInvalid, "plan", "one sequence", 1, 2});
  args = scene.calls.begin({-1});
  args.plan_out_count = &made;
  scene.refuse_begin(args, {kInvalid, "plan", "one sequence"});
  CHECK(made == 77);
  scene.calls.step({scene.slot[0], scene.slot[1]});
}

TEST_CASE("an append with a wrong argument leaves the step as it was", "[cache][bad_input]") {
  Scene scene;
  const Begin begin = scene.calls.begin({scene.slot[0], scene.slot[1]});
  scene.calls.need(quire_step_begin(scene.cache.get(), &begin));
  for (const Bad<quire_append_args>& bad : kBadAppend) {
    INFO(bad.what);
    quire_append_args args = scene.calls.append(0);
    bad.spoil(args);
    require_refused(
        scene.cache, scene.calls, bad.want, [&] { return quire_append(scene.cache.get(), &args); });
  }
  CHECK(quire_append(nullptr, nullptr) == QUIRE_INVALID_ARGUMENT);
  CHECK(quire_append(scene.cache.get(), nullptr) == QUIRE_INVALID_ARGUMENT);
  CHECK(quire_step_end(nullptr, nullptr) == QUIRE_INVALID_ARGUMENT);
  CHECK(quire_step_cancel(nullptr, nullptr) == QUIRE_INVALID_ARGUMENT);
  scene.calls.finish_step(0);
  CHECK(scene.cache.info(scene.slot[0]).tokens == kTokens + 1);
}

TEST_CASE("attention with a wrong argument touches neither scores nor outputs",
          "[cache][bad_input]") {
  Scene scene;
  const Begin begin = scene.calls.begin({scene.slot[0], scene.slot[1]});
  scene.calls.need(quire_step_begin(scene.cache.get(), &begin));
  const quire_append_args append = scene.calls.append(0);
  scene.calls.need(quire_append(scene.cache.get(), &append));
  for (const Bad<Query>& bad : kBadQuery) {
    INFO(bad.what);
    Query args = scene.calls.attention(0);
    bad.spoil(args);
    require_refused(scene.cache, scene.calls, bad.want, [&] {
      return quire_attention(scene.cache.get(), &args);
    });
  }
  CHECK(quire_attention(nullptr, nullptr) == QUIRE_INVALID_ARGUMENT);
  CHECK(quire_attention(scene.cache.get(), nullptr) == QUIRE_INVALID_ARGUMENT);
  const Query good = scene.calls.attention(0);
  CHECK(quire_attention(scene.cache.get(), &good) == QUIRE_OK);
  scene.calls.finish_step(1);
}

TEST_CASE("explain names the field that attention would refuse", "[cache][bad_input]") {
  Scene scene;
  const Begin begin = scene.calls.begin({scene.slot[0]});
  scene.calls.need(quire_step_begin(scene.cache.get(), &begin));
  const char* const read[] = {"layer 2", "17 rows", "many rows", "5 splits", "2 score rows of 1"};
  for (const Bad<Query>& bad : kBadQuery) {
    const auto is_this = [&](const char* what) { return std::string(what) == bad.what; };
    if (std::none_of(std::begin(read), std::end(read), is_this)) continue;
    INFO(bad.what);
    Query args = scene.calls.attention(0);
    bad.spoil(args);
    quire_explain_report report = QUIRE_EXPLAIN_REPORT_INIT;
    CHECK(quire_explain(scene.cache.get(), &args, &report) == QUIRE_OK);
    CHECK(report.supported == 0);
    CHECK(std::string(report.reason).find(bad.want.field) == 0);
  }
  const Query good = scene.calls.attention(0);
  quire_explain_report report = QUIRE_EXPLAIN_REPORT_INIT;
  CHECK(quire_explain(scene.cache.get(), &good, &report) == QUIRE_OK);
  CHECK(report.supported == 1);
  CHECK(report.reason[0] == '\0');
  CHECK(quire_explain(nullptr, &good, &report) == QUIRE_INVALID_ARGUMENT);
  CHECK(quire_explain(scene.cache.get(), nullptr, &report) == QUIRE_INVALID_ARGUMENT);
  CHECK(quire_explain(scene.cache.get(), &good, nullptr) == QUIRE_INVALID_ARGUMENT);
}

TEST_CASE("a replayed move of a token that cannot make it is refused", "[cache][bad_input]") {
  for (const BadMove& bad : kBadMove) {
    INFO(bad.what);
    Scene scene;
    Begin args = scene.calls.begin({scene.slot[0]});
    args.plan = &bad.move;
    args.plan_count = 1;
    scene.refuse_begin(args, {kInvalid, bad.field, bad.words});
    if (scene.calls.error.status != QUIRE_OK) scene.calls.step({scene.slot[0]});
  }
}

TEST_CASE("replayed moves out of order or of one token twice are refused", "[cache][bad_input]") {
  Scene scene;
  const quire_plan_move orders[][2] = {
      {{0, 1, 20, 0, {}}, {0, 0, 20, 0, {}}},
      {{1, 0, 20, 0, {}}, {0, 0, 20, 0, {}}},
      {{0, 0, 20, 0, {}}, {0, 0, 5, 254, {}}},
      {{0, 0, 5, 254, {}}, {0, 0, 5, 254, {}}},
  };
  for (const auto& moves : orders) {
    Begin args = scene.calls.begin({scene.slot[0]});
    args.plan = moves;
    args.plan_count = 2;
    scene.refuse_begin(args, {kInvalid, "plan", "sorted"});
  }
  scene.calls.step({scene.slot[0]});
}

TEST_CASE("a replayed move is refused while no token leaves the ring", "[cache][bad_input]") {
  for (const std::int32_t position : {-1, 0, 2, 3}) {
    INFO("position " << position);
    RawCache cache{RawSpec()};
    RawCalls calls(cache, 32);
    const std::int32_t slot = calls.open_with(3);  // the ring has room for two more
    const quire_plan_move move = {0, 0, position, 0, {}};
    Begin args = calls.begin({slot});
    args.plan = &move;
    args.plan_count = 1;
    require_refused(cache, calls, {kInvalid, "plan.position", "in the pages"}, [&] {
      return quire_step_begin(cache.get(), &args);
    });
    if (calls.error.status != QUIRE_OK) calls.step({slot});
  }
}

TEST_CASE("a replayed drop is refused where positions are not stored", "[cache][bad_input]") {
  RawSpec spec(QUIRE_RECIPE_KEEP_ALL);
  spec.group.layout.flags = QUIRE_LAYOUT_NO_SCORE | QUIRE_LAYOUT_NO_POSITION;
  Scene scene(spec);
  const quire_plan_move move = {0, 0, 20, 254, {}};
  Begin args = scene.calls.begin({scene.slot[0]});
  args.plan = &move;
  args.plan_count = 1;
  scene.refuse_begin(args, {QUIRE_UNSUPPORTED, "plan", "NO_POSITION"});
  scene.calls.step({scene.slot[0]});
}

}  // namespace quire::test
