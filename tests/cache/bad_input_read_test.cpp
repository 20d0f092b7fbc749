// Oracle: the comments of quire_extend_args, quire_plan_apply_args, quire_gather_args,
// quire_query_args, and of the calls that only read. Nothing changes when one is refused.
#include <limits>

#include "support/raw_calls.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kTokens = 24;  // 0 is the sink, 20..23 the window
constexpr quire_status kInvalid = QUIRE_INVALID_ARGUMENT;

void* one_byte_on(void* data) { return static_cast<unsigned char*>(data) + 1; }

void run_nothing(void*, std::uint32_t, void (*)(void*, std::uint32_t), void*) {}
const quire_parallel kTooWide = {run_nothing, nullptr, 3, 0};

constexpr float kNanRule[4] = {0.0f, 1.0f, std::numeric_limits<float>::quiet_NaN(), 0.0f};
constexpr float kHugeRule[4] = {0.0f, -2.0e6f, 0.0f, 0.0f};

using Extend = quire_extend_args;
const Bad<Extend> kBadExtend[] = {
    {"layer 2", [](Extend& a) { a.layer = 2; }, {1, "layer", "below layers", 2, 2}},
    {"no rows", [](Extend& a) { a.rows = 0; }, {1, "rows", "at least 1", 1, 0}},
    {"negative position", [](Extend& a) { a.first_position = -1; }, {1, "first_position", "0 to"}},
    {"position 2^24",
     [](Extend& a) { a.first_position = 1 << 24; },
     {1, "first_position", "16777215", 16777215, -1}},
    {"no q", [](Extend& a) { a.q.data = nullptr; }, {1, "q", "not NULL"}},
    {"no out", [](Extend& a) { a.out.data = nullptr; }, {1, "out", "not NULL"}},
    {"q dtype 0", [](Extend& a) { a.q.dtype = 0; }, {1, "q", "QUIRE_F32", -1, 0}},
    {"out dtype 4", [](Extend& a) { a.out.dtype = 4; }, {1, "out", "QUIRE_F32", -1, 4}},
    {"q between floats",
     [](Extend& a) { a.q.data = one_byte_on(a.q.data); },
     {QUIRE_MISALIGNED, "q", "aligned", 4, 1}},
    {"base 3", [](Extend& a) { a.lse_base_2 = 3; }, {1, "lse_base_2", "0 or 1", 1, 3}},
    {"5 splits", [](Extend& a) { a.splits = 5; }, {1, "splits", "max_splits", 4, 5}},
    {"scale negative", [](Extend& a) { a.rule.scale = -1; }, {1, "rule.scale", "positive"}},
    {"scale 11", [](Extend& a) { a.rule.scale = 11.0f; }, {1, "rule.scale", "up to 10"}},
    {"slope NaN",
     [](Extend& a) { a.rule.alibi_slopes = kNanRule; },
     {QUIRE_BAD_VALUE, "rule.alibi_slopes", "1e6", 0, 2}},
    {"slope huge",
     [](Extend& a) { a.rule.alibi_slopes = kHugeRule; },
     {QUIRE_BAD_VALUE, "rule.alibi_slopes", "1e6", 0, 1}},
    {"sink NaN",
     [](Extend& a) { a.rule.sink_logits = kNanRule; },
     {QUIRE_BAD_VALUE, "rule.sink_logits", "finite", 0, 2}},
    {"too wide", [](Extend& a) { a.parallel = &kTooWide; }, {1, "parallel.width", "", 2, 3}},
    {"flags", [](Extend& a) { a.flags = 1; }, {QUIRE_ABI_MISMATCH, "flags", "", 0, 1}},
};

using Plan = quire_plan_apply_args;
const Bad<Plan> kBadPlan[] = {
    {"first layer 2", [](Plan& a) { a.first_layer = 2; }, {1, "layer_count", "layers", 2}},
    {"3 layers", [](Plan& a) { a.layer_count = 3; }, {1, "layer_count", "layers", 2, 3}},
    {"layers that wrap",
     [](Plan& a) {
       a.first_layer = 1;
       a.layer_count = QUIRE_ALL;
     },
     {1, "layer_count", "layers", 2}},
    {"a stale plan", [](Plan& a) { a.tokens = 23; }, {1, "tokens", "stale", kTokens, 23}},
    {"no tiers", [](Plan& a) { a.tiers = nullptr; }, {1, "tiers", "not NULL"}},
    {"flags", [](Plan& a) { a.flags = 1; }, {QUIRE_ABI_MISMATCH, "flags", "", 0, 1}},
};

using Gather = quire_gather_args;
const Bad<Gather> kBadGather[] = {
    {"layer 2", [](Gather& a) { a.layer = 2; }, {1, "layer", "below layers", 2, 2}},
    {"head 2", [](Gather& a) { a.head = 2; }, {1, "head", "below kv_heads", 2, 2}},
    {"no count", [](Gather& a) { a.count = nullptr; }, {1, "count", "not NULL"}},
    {"K dtype 0", [](Gather& a) { a.k.dtype = 0; }, {1, "k", "QUIRE_F32", -1, 0}},
    {"V dtype 7",
     [](Gather& a) {
       a.v = a.k;
       a.v.dtype = 7;
     },
     {1, "v", "QUIRE_F32", -1, 7}},
    {"K between floats",
     [](Gather& a) { a.k.data = one_byte_on(a.k.data); },
     {QUIRE_MISALIGNED, "k", "aligned", 4, 1}},
    {"flags", [](Gather& a) { a.flags = 1; }, {QUIRE_ABI_MISMATCH, "flags", "", 0, 1}},
};

using Query = quire_query_args;
const Bad<Query> kBadQuery[] = {
    {"layer 2", [](Query& a) { a.layer = 2; }, {1, "layer", "below layers", 2, 2}},
    {"head 2", [](Query& a) { a.head = 2; }, {1, "head", "below kv_heads", 2, 2}},
    {"no count", [](Query& a) { a.count = nullptr; }, {1, "count", "not NULL"}},
    {"flags", [](Query& a) { a.flags = 1; }, {QUIRE_ABI_MISMATCH, "flags", "", 0, 1}},
};

struct Scene {
  RawCache cache;
  RawCalls calls;
  std::int32_t slot = -1;

  explicit Scene(const RawSpec& spec = RawSpec(), std::uint32_t tokens = kTokens)
      : cache(spec), calls(cache, 51) {
    slot = calls.open_with(tokens);
    calls.reset_outputs();
  }

  // `make` gives good arguments; each row spoils them.
  template <class ArgsT, std::size_t kRows, class MakeT, class CallT>
  void refuse_all(const Bad<ArgsT> (&table)[kRows], MakeT&& make, CallT&& call) {
    for (const Bad<ArgsT>& bad : table) {
      INFO(bad.what);
      ArgsT args = make();
      bad.spoil(args);
      require_refused(cache, calls, bad.want, [&] { return call(cache.get(), &args); });
    }
    CHECK(call(nullptr, nullptr) == QUIRE_INVALID_ARGUMENT);
    CHECK(call(cache.get(), nullptr) == QUIRE_INVALID_ARGUMENT);
    const ArgsT good = make();
    CHECK(call(cache.get(), &good) == QUIRE_OK);
    if (cache.info(slot).tokens < 100) calls.step({slot});
  }
};

// Head 1 of layer 1 holds token 10 in the low tier.
void demote_one(Scene& s) {
  s.calls.tiers.assign(s.calls.tiers.size(), 255);
  s.calls.tiers[3 * kTokens + 10] = 1;
  const Plan args = s.calls.plan(s.slot, 2, kTokens);
  s.calls.need(quire_plan_apply(s.cache.get(), &args));
  s.calls.tiers.assign(s.calls.tiers.size(), 255);
}

struct BadTier {
  const char* what;
  std::size_t index;
  std::uint8_t tier;
  const char* words;
};

// A cache of the foreign recipe: nothing moves but by plans.
const BadTier kBadTier[] = {
    {"a third tier", 3, 2, "0 high, 1 low"},
    {"253 in the last head", 3 * kTokens + 4, 253, "254 drop"},
    {"the sink dropped", 0, 254, "255 for sinks"},
    {"the sink kept high", kTokens, 0, "255 for sinks"},
    {"the window demoted", 2 * kTokens + 20, 1, "recent window"},
    {"the last token dropped", 4 * kTokens - 1, 254, "recent window"},
    {"a low token promoted", 3 * kTokens + 10, 0, "only go down"},
};

}  // namespace

TEST_CASE("extend with a wrong argument is refused", "[cache][bad_input]") {
  Scene s;
  s.refuse_all(
      kBadExtend, [&] { return s.calls.extend(s.slot, 0, 5); }, quire_extend);
}

TEST_CASE("a plan with a wrong frame is refused", "[cache][bad_input]") {
  Scene s;
  s.refuse_all(
      kBadPlan, [&] { return s.calls.plan(s.slot, 2, kTokens); }, quire_plan_apply);
}

TEST_CASE("gather with a wrong argument is refused", "[cache][bad_input]") {
  Scene s;
  s.refuse_all(
      kBadGather, [&] { return s.calls.gather(s.slot); }, quire_gather);
}

TEST_CASE("query with a wrong argument is refused", "[cache][bad_input]") {
  Scene s;
  s.refuse_all(
      kBadQuery, [&] { return s.calls.query(s.slot); }, quire_query);
}

TEST_CASE("a plan with one wrong tier is refused as a whole", "[cache][bad_input]") {
  Scene s{RawSpec(QUIRE_RECIPE_FOREIGN)};
  demote_one(s);
  for (const BadTier& bad : kBadTier) {
    INFO(bad.what);
    s.calls.tiers.assign(s.calls.tiers.size(), 255);
    s.calls.tiers[2] = 254;  // what a plan that is carried out half would do first
    s.calls.tiers[bad.index] = bad.tier;
    const Plan args = s.calls.plan(s.slot, 2, kTokens);
    require_refused(s.cache, s.calls, {kInvalid, "tiers", bad.words}, [&] {
      return quire_plan_apply(s.cache.get(), &args);
    });
  }
  s.calls.step({s.slot});
}

TEST_CASE("a plan is refused where positions are not stored", "[cache][bad_input]") {
  RawSpec spec(QUIRE_RECIPE_KEEP_ALL);
  spec.group.layout.flags = QUIRE_LAYOUT_NO_SCORE | QUIRE_LAYOUT_NO_POSITION;
  Scene s(spec);
  const Plan args = s.calls.plan(s.slot, 2, kTokens);
  require_refused(s.cache, s.calls, {QUIRE_UNSUPPORTED, "tiers", "NO_POSITION"}, [&] {
    return quire_plan_apply(s.cache.get(), &args);
  });
}

TEST_CASE("gather and query never write beyond the capacity they were given",
          "[cache][bad_input]") {
  Scene s;
  const std::vector<unsigned char> untouched = s.calls.outputs();
  for (const std::uint32_t capacity : {0u, 1u, 7u}) {
    s.calls.reset_outputs();
    Gather gather = s.calls.gather(s.slot);
    gather.capacity = capacity;
    s.calls.need(quire_gather(s.cache.get(), &gather));
    Query query = s.calls.query(s.slot);
    query.capacity = capacity;
    s.calls.need(quire_query(s.cache.get(), &query));
    CHECK(s.calls.count > 7);
    const float blank = [] {
      float x;
      std::memset(&x, RawCalls::kUntouched, sizeof(x));
      return x;
    }();
    CHECK(s.calls.gathered[capacity * 32] == blank);
    CHECK(s.calls.scores[capacity] == blank);
    std::int32_t none;
    std::memset(&none, RawCalls::kUntouched, sizeof(none));
    CHECK(s.calls.positions[capacity] == none);
    if (capacity > 0) CHECK(s.calls.positions[capacity - 1] != none);
  }
}

TEST_CASE("headroom and pages in advance name the argument that is missing", "[cache][bad_input]") {
  Scene s;
  quire_cache* const cache = s.cache.get();
  RawCalls& c = s.calls;
  std::uint64_t* const n = c.number;
  const auto refuse = [&](const char* field, auto&& call) {
    require_refused(s.cache, c, {kInvalid, field, "not NULL"}, call);
  };
  const std::int32_t slot = s.slot;
  refuse("cache", [&] { return quire_headroom_pages(nullptr, &slot, 1, 1, n, n + 1, &c.error); });
  refuse("slots", [&] { return quire_headroom_pages(cache, nullptr, 1, 1, n, n + 1, &c.error); });
  refuse("needed", [&] { return quire_headroom_pages(cache, &slot, 1, 1, nullptr, n, &c.error); });
  refuse("available",
         [&] { return quire_headroom_pages(cache, &slot, 1, 1, n, nullptr, &c.error); });
  refuse("cache", [&] { return quire_pages_for(nullptr, &c.policy, 10, n, nullptr, &c.error); });
  refuse("policy", [&] { return quire_pages_for(cache, nullptr, 10, n, nullptr, &c.error); });
  refuse("pages",
         [&] { return quire_pages_for(cache, &c.policy, 10, nullptr, nullptr, &c.error); });
  c.need(quire_headroom_pages(cache, nullptr, 0, 1, n, n + 1, &c.error));
  CHECK(n[0] == 0);
  CHECK(n[1] == s.cache.stats().free_bytes / s.cache.sizes.page_bytes);
  quire_stats stats = QUIRE_STATS_INIT;
  quire_seq_info info = QUIRE_SEQ_INFO_INIT;
  CHECK(quire_stats_get(nullptr, &stats, nullptr) == QUIRE_INVALID_ARGUMENT);
  CHECK(quire_stats_get(cache, nullptr, nullptr) == QUIRE_INVALID_ARGUMENT);
  CHECK(quire_seq_info_get(nullptr, slot, &info, nullptr) == QUIRE_INVALID_ARGUMENT);
  CHECK(quire_seq_info_get(cache, slot, nullptr, nullptr) == QUIRE_INVALID_ARGUMENT);
}

TEST_CASE("an empty sequence answers reads with nothing", "[cache][bad_input]") {
  Scene s{RawSpec(), 0};
  const Gather gather = s.calls.gather(s.slot);
  s.calls.need(quire_gather(s.cache.get(), &gather));
  CHECK(s.calls.count == 0);
  const Query query = s.calls.query(s.slot);
  s.calls.need(quire_query(s.cache.get(), &query));
  CHECK(s.calls.count == 0);
  const Extend extend = s.calls.extend(s.slot, 0, 2);
  s.calls.need(quire_extend(s.cache.get(), &extend));
  for (std::size_t i = 0; i < 2 * 4; ++i)
    CHECK(s.calls.lse[i] == -std::numeric_limits<float>::infinity());
  for (std::size_t i = 0; i < 2 * 4 * 16; ++i) CHECK(s.calls.out[i] == 0.0f);
}

}  // namespace quire::test
