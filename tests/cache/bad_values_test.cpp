// Oracle: quire.h refuses NaN, Inf and numbers beyond +-65504 in K and V, and NaN, Inf and numbers
// beyond +-1e30 in q, naming array and element index; nothing changes. With QUIRE_CACHE_SATURATE
// finite numbers become +-65504 and are counted.
#include "support/bad_values.hpp"

#include <cmath>

#include "support/compare.hpp"
#include "support/raw_calls.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kTokens = 24;
// 65504 in the coarsest ring format, bf16.
constexpr float kLargestStored = 65504.0f * (1.0f + static_cast<float>(kBfloatEps));

struct Scene {
  RawCache cache;
  RawCalls calls;
  std::int32_t slot[2] = {-1, -1};

  explicit Scene(const RawSpec& spec = RawSpec()) : cache(spec), calls(cache, 41) {}

  quire_cache* get() const { return cache.get(); }

  void begin_prompt() {
    slot[0] = calls.open_with(0);
    calls.need(test::begin_prompt(get(), slot[0], kTokens, &calls.error));
    calls.reset_outputs();
  }

  // Both sequences, with a row of padding between them.
  void begin_step() {
    for (std::int32_t& s : slot) s = calls.open_with(kTokens);
    const quire_step_begin_args args = calls.begin({slot[0], -1, slot[1]});
    calls.need(quire_step_begin(get(), &args));
    calls.reset_outputs();
  }

  template <class CallT>
  void refuse(const char* field, const char* words, std::int64_t at, CallT&& call) {
    require_refused(cache, calls, {QUIRE_BAD_VALUE, field, words, -1, at}, call);
  }
};

constexpr std::size_t kKeys = std::size_t{kTokens} * 2 * 32;
constexpr std::size_t kValues = std::size_t{kTokens} * 2 * 16;
constexpr std::size_t kQueries = std::size_t{kTokens} * 4 * 32;

RawSpec saturating(std::uint32_t recipe) {
  RawSpec spec(recipe);
  spec.desc.flags = QUIRE_CACHE_SATURATE;
  return spec;
}

// Largest |number| that quire_gather gives back of K of both heads; NaN counts as infinite.
float largest_key(Scene& s) {
  float most = 0.0f;
  for (std::uint32_t head = 0; head < 2; ++head) {
    quire_gather_args args = s.calls.gather(s.slot[0]);
    args.head = head;
    s.calls.need(quire_gather(s.get(), &args));
    for (std::size_t i = 0; i < std::size_t{s.calls.count} * 32; ++i) {
      const float x = std::fabs(s.calls.gathered[i]);
      most = std::isnan(x) ? std::numeric_limits<float>::infinity() : std::max(most, x);
    }
  }
  return most;
}

void store_prompt(Scene& s) {
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    const quire_prefill_layer_args args = s.calls.prompt(s.slot[0], layer, kTokens);
    s.calls.need(quire_prefill_layer(s.get(), &args));
  }
  s.calls.need(quire_prefill_end(s.get(), s.slot[0], &s.calls.error));
}

}  // namespace

TEST_CASE("a bad number anywhere in a prompt's K, V or q refuses the layer", "[cache][bad_input]") {
  Scene s;
  INFO(s.calls.rng.describe());
  s.begin_prompt();
  quire_prefill_layer_args args = s.calls.prompt(s.slot[0], 0, kTokens);
  const auto call = [&] { return quire_prefill_layer(s.get(), &args); };
  for_bad_values(s.calls.k, kKeys, false, [&](const quire_rows& rows, std::int64_t at) {
    args.k = rows;
    s.refuse("k", "65504", at, call);
  });
  args.k = s.calls.rows(s.calls.k);
  for_bad_values(s.calls.v, kValues, false, [&](const quire_rows& rows, std::int64_t at) {
    args.v = rows;
    s.refuse("v", "65504", at, call);
  });
  args.v = s.calls.rows(s.calls.v);
  for_bad_values(s.calls.q, kQueries, true, [&](const quire_rows& rows, std::int64_t at) {
    args.q = rows;
    s.refuse("q", "1e30", at, call);
  });
  store_prompt(s);
  s.calls.step({s.slot[0]});
}

TEST_CASE("a bad number in a step's K or V refuses the append for the whole batch",
          "[cache][bad_input]") {
  Scene s;
  s.begin_step();
  quire_append_args args = s.calls.append(0);
  const auto call = [&] { return quire_append(s.get(), &args); };
  // [3 sequences, 1, 2 heads, dim]: the middle sequence is padding, so the middle element lies
  // there and is tried apart.
  const std::size_t keys = 3 * 2 * 32;
  for_bad_values(s.calls.k, keys, false, [&](const quire_rows& rows, std::int64_t at) {
    if (at == static_cast<std::int64_t>(keys / 2)) return;
    args.k = rows;
    s.refuse("k", "65504", at, call);
  });
  args.k = s.calls.rows(s.calls.k);
  const std::size_t values = 3 * 2 * 16;
  for_bad_values(s.calls.v, values, false, [&](const quire_rows& rows, std::int64_t at) {
    if (at == static_cast<std::int64_t>(values / 2)) return;
    args.v = rows;
    s.refuse("v", "65504", at, call);
  });
  args.v = s.calls.rows(s.calls.v);
  s.calls.finish_step(0);
}

TEST_CASE("a bad number in a step's q refuses the attention and adds no score",
          "[cache][bad_input]") {
  Scene s;
  s.begin_step();
  const quire_append_args append = s.calls.append(0);
  s.calls.need(quire_append(s.get(), &append));
  quire_attention_args args = s.calls.attention(0);
  args.rows = 5;
  const std::size_t queries = 3 * 5 * 4 * 32;
  for_bad_values(s.calls.q, queries, true, [&](const quire_rows& rows, std::int64_t at) {
    if (at == static_cast<std::int64_t>(queries / 2)) return;
    args.q = rows;
    s.refuse("q", "1e30", at, [&] { return quire_attention(s.get(), &args); });
  });
  args.q = s.calls.rows(s.calls.q);
  CHECK(quire_attention(s.get(), &args) == QUIRE_OK);
  s.calls.finish_step(1);
}

TEST_CASE("numbers in rows of padding are not looked at", "[cache][bad_input]") {
  Scene s;
  s.begin_step();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto spoil = [&](std::vector<float>& rows, std::size_t dim) {
    for (std::size_t i = 0; i < dim; ++i) rows[dim + i] = nan;
  };
  spoil(s.calls.k, 2 * 32);
  spoil(s.calls.v, 2 * 16);
  spoil(s.calls.q, 4 * 32);
  s.calls.finish_step(0);
  CHECK(s.cache.info(s.slot[1]).tokens == kTokens + 1);
}

TEST_CASE("a bad number in the q of extend is refused at any row", "[cache][bad_input]") {
  Scene s;
  s.slot[0] = s.calls.open_with(kTokens);
  s.calls.reset_outputs();
  quire_extend_args args = s.calls.extend(s.slot[0], 1, 40);
  const std::size_t queries = 40 * 4 * 32;
  for_bad_values(s.calls.q, queries, true, [&](const quire_rows& rows, std::int64_t at) {
    args.q = rows;
    s.refuse("q", "1e30", at, [&] { return quire_extend(s.get(), &args); });
  });
  args.q = s.calls.rows(s.calls.q);
  CHECK(quire_extend(s.get(), &args) == QUIRE_OK);
}

TEST_CASE("the largest fp16 numbers are no bad values", "[cache][bad_input]") {
  Scene s;
  std::fill(s.calls.k.begin(), s.calls.k.end(), 65504.0f);
  std::fill(s.calls.v.begin(), s.calls.v.end(), -65504.0f);
  std::fill(s.calls.q.begin(), s.calls.q.end(), 1e30f);
  s.slot[0] = s.calls.open_with(kTokens);
  s.calls.step({s.slot[0]});
  CHECK(s.cache.stats().values_saturated == 0);
  CHECK(largest_key(s) == 65504.0f);
}

TEST_CASE("a saturating cache moves huge numbers to the border and counts each element",
          "[cache][bad_input]") {
  for (const std::uint32_t ring : {QUIRE_RING_F16, QUIRE_RING_BF16, QUIRE_RING_K8V8}) {
    INFO("ring format " << ring);
    RawSpec spec = saturating(QUIRE_RECIPE_KEEP_ALL);
    spec.group.ring_format = ring;
    Scene s(spec);
    s.begin_prompt();
    s.calls.k[0] = 70000.0f;             // sink, head 0: in the ring
    s.calls.k[2 * 32 * 5 + 3] = -2e38f;  // token 5, head 0: in a page
    s.calls.v[0] = 3.0e38f;
    store_prompt(s);
    CHECK(s.cache.stats().values_saturated == 2 * 3);  // both layers
    CHECK(largest_key(s) <= kLargestStored);
    s.calls.step({s.slot[0]});
    CHECK(s.cache.stats().values_saturated == 2 * 5);  // k[0] and v[0] once more
    CHECK(largest_key(s) <= kLargestStored);
    for (std::size_t i = 0; i < 4 * 16; ++i) CHECK(std::isfinite(s.calls.out[i]));
  }
}

TEST_CASE("a saturating cache with a rotation keeps finite numbers finite", "[cache][bad_input]") {
  for (const std::uint32_t recipe : {QUIRE_RECIPE_QUIRE_UNIFORM, QUIRE_RECIPE_QUIRE_BUDGET}) {
    Scene s(saturating(recipe));
    s.begin_prompt();
    for (std::size_t i = 0; i < kKeys; i += 3) s.calls.k[i] = i % 2 == 0 ? 2.9e38f : -2.9e38f;
    for (std::size_t i = 0; i < kValues; i += 2) s.calls.v[i] = 2.9e38f;
    store_prompt(s);
    CHECK(std::isfinite(largest_key(s)));
    CHECK(s.cache.stats().values_saturated > 0);
    s.calls.step({s.slot[0]});
    for (std::size_t i = 0; i < 4 * 16; ++i) CHECK(std::isfinite(s.calls.out[i]));
  }
}

TEST_CASE("a saturating cache has finite scores for huge keys", "[cache][bad_input]") {
  Scene s(saturating(QUIRE_RECIPE_DIFFKV_UPSTREAM));
  s.begin_prompt();
  for (std::size_t i = 0; i < kKeys; i += 5) s.calls.k[i] = i % 2 == 0 ? 3.0e38f : -3.0e38f;
  store_prompt(s);
  s.calls.step({s.slot[0]});
  const quire_query_args args = s.calls.query(s.slot[0]);
  s.calls.need(quire_query(s.get(), &args));
  REQUIRE(s.calls.count > 0);
  float most = 0.0f;
  for (std::uint32_t i = 0; i < s.calls.count; ++i) {
    CHECK(std::isfinite(s.calls.scores[i]));
    most = std::max(most, s.calls.scores[i]);
  }
  CHECK(most > 0.0f);  // a logit of infinity would have silenced the whole head
}

TEST_CASE("a mean key comes from numbers as they are stored", "[cache][bad_input]") {
  RawSpec spec = saturating(QUIRE_RECIPE_QUIRE_UNIFORM);
  Scene s(spec);
  s.begin_prompt();
  s.calls.k[0] = 3.0e38f;
  store_prompt(s);
  // One number of kTokens at the border moves the mean by 65504 / kTokens, not to the border.
  const std::uint16_t mean =
      *k_offset_of(s.get()->group.ring, s.get()->ring_block(s.slot[0], 0, 0));
  CHECK(half_to_float(mean) < 1.1f * kHalfMax / kTokens);
}

TEST_CASE("a saturating cache still refuses NaN and Inf", "[cache][bad_input]") {
  Scene s(saturating(QUIRE_RECIPE_DIFFKV_UPSTREAM));
  s.begin_prompt();
  quire_prefill_layer_args args = s.calls.prompt(s.slot[0], 0, kTokens);
  for_bad_values(s.calls.k, kKeys, false, [&](const quire_rows& rows, std::int64_t at) {
    const float x = load_as_float(rows.data, static_cast<DType>(rows.dtype), at);
    if (std::isfinite(x)) return;
    args.k = rows;
    s.refuse("k", "65504", at, [&] { return quire_prefill_layer(s.get(), &args); });
  });
  store_prompt(s);
}

}  // namespace quire::test
