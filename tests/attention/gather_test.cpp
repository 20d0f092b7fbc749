// quire_gather against the records themselves, and attention over what it returns. Oracle: the
// scalar decode of every record, read through the library's own view of the head.
#include <algorithm>

#include "src/cache.hpp"
#include "support/attention_cache.hpp"

namespace quire {
namespace {

using test::CacheBox;
using test::CacheSpec;
using test::QuerySpec;

CacheSpec gather_spec(std::uint32_t recipe) {
  CacheSpec spec(recipe, 2, 2, 64);
  spec.group.layers = 2;
  spec.group.layout.head_dim_v = 96;
  spec.group.transform_seed = 5;
  spec.set_window(20);
  spec.policy.alpha_high = 3.0f;
  spec.policy.alpha_low = 1.0f;
  if (spec.policy.budget_tokens != 0) spec.policy.budget_tokens = 70;
  return spec;
}

// Decoded with the transforms undone, in the order ring, high, low.
test::PlainHead decoded(const CacheBox& box, std::uint32_t layer, std::uint32_t head) {
  const HeadView view =
      box.cache.get()->view(0, layer, head, static_cast<std::int32_t>(box.length(0)));
  test::PlainHead out;
  float x[kMaxHeadDim];
  for (std::uint32_t i = 0; i < view.segment_count(); ++i) {
    const Segment s = view.segment(i);
    for (std::uint32_t t = s.first; t < s.first + s.count; ++t) {
      decode_vector(s.layout->format.k, 64, as_const(k_slot(*s.layout, s.base, t)), x);
      transform_back(view.k, 64, x);
      out.keys.insert(out.keys.end(), x, x + 64);
      decode_vector(s.layout->format.v, 96, as_const(v_slot(*s.layout, s.base, t)), x);
      transform_back(view.v, 96, x);
      out.values.insert(out.values.end(), x, x + 96);
      out.positions.push_back(s.position(t - s.first));
    }
  }
  return out;
}

TEST_CASE("gather returns the decode of every record", "[attention][gather]") {
  for (std::uint32_t recipe = 1; recipe <= 9; ++recipe) {
    CacheBox box(gather_spec(recipe), recipe);
    INFO(box.rng.describe() << " recipe " << recipe);
    box.open_with(150);
    for (int step = 0; step < 10; ++step) {
      box.begin({0});
      CacheBox::need(box.cache.step_end());
    }
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
      for (std::uint32_t head = 0; head < 2; ++head) {
        const test::PlainHead got = box.head(0, head, layer);
        const test::PlainHead want = decoded(box, layer, head);
        REQUIRE(got.positions == want.positions);
        REQUIRE(got.keys == want.keys);
        REQUIRE(got.values == want.values);
        std::vector<std::int32_t> sorted = got.positions;
        std::sort(sorted.begin(), sorted.end());
        REQUIRE(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end());
        REQUIRE(sorted.back() == 159);  // the newest token is there
      }
    }
  }
}

TEST_CASE("gathered tokens feed attention of other kernels", "[attention][gather]") {
  CacheBox box(gather_spec(QUIRE_RECIPE_QUIRE_BUDGET), 20);
  INFO(box.rng.describe());
  box.open_with(150);
  QuerySpec query;
  query.rows = 4;
  const test::QueryResult result = box.extend(0, 150, query);
  test::require_oracle(box, 0, 0, query, result, 150);
}

TEST_CASE("gather in 16 bit rounds once and keeps inside its rows", "[attention][gather]") {
  CacheBox box(gather_spec(QUIRE_RECIPE_QUIRE_BUDGET), 21);
  INFO(box.rng.describe());
  box.open_with(90);
  const test::PlainHead want = box.head(0, 1);
  const auto count = static_cast<std::uint32_t>(want.positions.size());
  for (const DType dtype : {DType::kF16, DType::kBf16}) {
    constexpr std::uint16_t kUntouched = 0x7fff;
    std::vector<std::uint16_t> k(count * 100, kUntouched);
    std::uint32_t found = 0;
    quire_gather_args args = QUIRE_GATHER_ARGS_INIT;
    args.head = 1;
    args.capacity = count;
    args.k = half_rows_of(k.data(), static_cast<std::uint32_t>(dtype), 0, 100, 0);
    args.count = &found;
    CacheBox::need(box.cache.gather(args));
    REQUIRE(found == count);
    for (std::uint32_t t = 0; t < count; ++t) {
      for (std::uint32_t d = 0; d < 100; ++d) {
        const std::uint16_t rounded = d >= 64 ? kUntouched
                                      : dtype == DType::kF16
                                          ? float_to_half(want.keys[t * 64 + d])
                                          : float_to_bfloat(want.keys[t * 64 + d]);
        REQUIRE(k[t * 100 + d] == rounded);
      }
    }
  }
}

TEST_CASE("gather with little room counts everything and writes what fits", "[attention][gather]") {
  CacheBox box(gather_spec(QUIRE_RECIPE_KEEP_ALL), 22);
  INFO(box.rng.describe());
  box.open_with(90);
  const test::PlainHead want = box.head(0, 0);
  std::vector<float> v(11 * 96, -7.0f);
  std::vector<std::int32_t> positions(11, -7);
  std::uint32_t found = 0;
  quire_gather_args args = QUIRE_GATHER_ARGS_INIT;
  args.capacity = 10;
  args.v = rows_of(v.data());
  args.positions = positions.data();
  args.count = &found;
  CacheBox::need(box.cache.gather(args));
  REQUIRE(found == 90);
  REQUIRE(std::equal(v.begin(), v.begin() + 10 * 96, want.values.begin()));
  REQUIRE(std::equal(positions.begin(), positions.begin() + 10, want.positions.begin()));
  REQUIRE(positions[10] == -7);
  for (std::size_t i = 10 * 96; i < v.size(); ++i) REQUIRE(v[i] == -7.0f);
}

TEST_CASE("gather names the argument that is wrong", "[attention][gather]") {
  CacheBox box(gather_spec(QUIRE_RECIPE_KEEP_ALL), 23);
  box.open_with(20);
  std::vector<float> k(20 * 64, -7.0f);
  const std::vector<float> before = k;
  std::uint32_t found = 99;
  quire_gather_args good = QUIRE_GATHER_ARGS_INIT;
  good.capacity = 20;
  good.k = rows_of(k.data());
  good.count = &found;
  const auto refused = [&](quire_status status, const char* field, auto&& change) {
    quire_gather_args args = good;
    change(args);
    const Result result = box.cache.gather(args);
    INFO(field << ": " << result.text());
    REQUIRE(result.status() == status);
    REQUIRE(std::string(result.field()) == field);
    REQUIRE(k == before);
    REQUIRE(found == 99);
  };
  refused(QUIRE_INVALID_ARGUMENT, "slot", [](auto& a) { a.slot = 7; });
  refused(QUIRE_INVALID_ARGUMENT, "slot", [](auto& a) { a.slot = -1; });
  refused(QUIRE_INVALID_ARGUMENT, "layer", [](auto& a) { a.layer = 2; });
  refused(QUIRE_INVALID_ARGUMENT, "head", [](auto& a) { a.head = 2; });
  refused(QUIRE_INVALID_ARGUMENT, "count", [](auto& a) { a.count = nullptr; });
  refused(QUIRE_INVALID_ARGUMENT, "k", [](auto& a) { a.k.dtype = 4; });
  refused(QUIRE_INVALID_ARGUMENT, "v", [&](auto& a) { a.v = {k.data(), 0, 0, 0, 0, 0}; });
  refused(QUIRE_ABI_MISMATCH, "flags", [](auto& a) { a.flags = 1; });
}

}  // namespace
}  // namespace quire
