// Wrong arguments of quire_attention and quire_extend. Oracle: quire.h: the status, the field that
// is named, and that outputs, scores and the state of the step are untouched.
#include <functional>

#include "support/attention_cache.hpp"

namespace quire {
namespace {

using test::CacheBox;
using test::CacheSpec;

constexpr quire_status kWrong = QUIRE_INVALID_ARGUMENT;
constexpr float kUntouched = -7.0f;

CacheSpec error_spec() {
  CacheSpec spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, 2, 2, 64);
  spec.group.layers = 2;
  spec.sequences = 2;
  spec.threads = 3;
  spec.splits = 4;
  spec.set_window(8);
  return spec;
}

void run_never(void*, std::uint32_t, void (*)(void*, std::uint32_t), void*) {}

// Arrays of a call, and the check that a refused call left them alone.
class Arrays {
 public:
  explicit Arrays(CacheBox& cache_box)
      : q(cache_box.rng.normals(2 * 16 * 4 * 64)),
        out(q.size(), kUntouched),
        lse(2 * 16 * 4, kUntouched),
        box_(cache_box) {}

  void require_untouched(const std::vector<float>& scores) const {
    for (const float x : out) REQUIRE(x == kUntouched);
    for (const float x : lse) REQUIRE(x == kUntouched);
    REQUIRE(box_.scores(0, 0) == scores);
  }

  std::vector<float> q;
  std::vector<float> out;
  std::vector<float> lse;

 private:
  CacheBox& box_;
};

// Changes to a rule or to rows that both calls refuse in the same way.
template <class ArgsT>
struct Refusal {
  quire_status status;
  const char* field;
  std::function<void(ArgsT&)> change;
};

template <class ArgsT>
std::vector<Refusal<ArgsT>> shared_refusals(const Arrays& arrays, const quire_parallel* parallels) {
  const float nan = std::nanf(""), inf = __builtin_inff();
  void* odd = reinterpret_cast<char*>(const_cast<float*>(arrays.q.data())) + 2;
  void* odd_byte = reinterpret_cast<char*>(const_cast<float*>(arrays.q.data())) + 1;
  return {
      {QUIRE_ABI_MISMATCH, "struct_size", [](ArgsT& a) { a.struct_size = sizeof(ArgsT) - 8; }},
      {QUIRE_ABI_MISMATCH, "flags", [](ArgsT& a) { a.flags = 4; }},
      {kWrong, "layer", [](ArgsT& a) { a.layer = 2; }},
      {kWrong, "splits", [](ArgsT& a) { a.splits = 5; }},
      {kWrong, "lse_base_2", [](ArgsT& a) { a.lse_base_2 = 2; }},
      {kWrong, "q", [](ArgsT& a) { a.q.data = nullptr; }},
      {kWrong, "q", [](ArgsT& a) { a.q.dtype = 0; }},
      {kWrong, "q", [](ArgsT& a) { a.q.dtype = 4; }},
      {QUIRE_MISALIGNED, "q", [odd](ArgsT& a) { a.q.data = odd; }},
      {QUIRE_MISALIGNED,
       "q",
       [odd_byte](ArgsT& a) {
         a.q = {odd_byte, QUIRE_F16, 0, 0, 0, 0};
       }},
      {kWrong, "out", [](ArgsT& a) { a.out.data = nullptr; }},
      {kWrong, "out", [](ArgsT& a) { a.out.dtype = 9; }},
      {QUIRE_MISALIGNED, "out", [odd](ArgsT& a) { a.out.data = odd; }},
      {kWrong, "rule.scale", [](ArgsT& a) { a.rule.scale = -1.0f; }},
      {kWrong, "rule.scale", [nan](ArgsT& a) { a.rule.scale = nan; }},
      {kWrong, "rule.scale", [inf](ArgsT& a) { a.rule.scale = inf; }},
      {kWrong, "rule.soft_cap", [](ArgsT& a) { a.rule.soft_cap = -0.5f; }},
      {kWrong, "rule.soft_cap", [nan](ArgsT& a) { a.rule.soft_cap = nan; }},
      {kWrong, "rule.soft_cap", [inf](ArgsT& a) { a.rule.soft_cap = inf; }},
      {kWrong, "rule.sliding_window", [](ArgsT& a) { a.rule.sliding_window = -1; }},
      {kWrong, "parallel.run", [parallels](ArgsT& a) { a.parallel = &parallels[0]; }},
      {kWrong, "parallel.width", [parallels](ArgsT& a) { a.parallel = &parallels[1]; }},
      {kWrong, "parallel.width", [parallels](ArgsT& a) { a.parallel = &parallels[2]; }},
  };
}

const quire_parallel kBadParallels[3] = {
    {nullptr, nullptr, 1, 0}, {run_never, nullptr, 0, 0}, {run_never, nullptr, 4, 0}};

class AttentionErrors {
 public:
  AttentionErrors() : box(error_spec(), 1), arrays(box) {
    box.open_with(40);
    box.open_with(20);
    box.begin({0, 1});
    scores = box.scores(0, 0);
  }

  quire_attention_args good() {
    quire_attention_args args = QUIRE_ATTENTION_ARGS_INIT;
    args.q = rows_of(arrays.q.data());
    args.out = rows_of(arrays.out.data());
    args.lse = arrays.lse.data();
    return args;
  }

  void refused(quire_status status,
               const char* field,
               const std::function<void(quire_attention_args&)>& change) {
    quire_error error = QUIRE_ERROR_INIT;
    quire_attention_args args = good();
    args.error = &error;
    change(args);
    INFO(field << ": " << error.text);
    REQUIRE(quire_attention(box.cache.get(), &args) == status);
    if (args.struct_size >= sizeof(args)) {
      REQUIRE(std::string(error.field) == field);
      REQUIRE(error.status == status);
      REQUIRE(std::string(error.text).find(field) == 0);
    }
    arrays.require_untouched(scores);
  }

  CacheBox box;
  Arrays arrays;
  std::vector<float> scores;
};

TEST_CASE("attention names the argument that is wrong", "[attention][errors]") {
  AttentionErrors e;
  for (const auto& r : shared_refusals<quire_attention_args>(e.arrays, kBadParallels))
    e.refused(r.status, r.field, r.change);
  e.refused(kWrong, "rows", [](auto& a) { a.rows = 17; });
  e.refused(kWrong, "score_rows", [](auto& a) { a.score_rows = 2; });
  e.refused(kWrong, "score_rows", [](auto& a) { a.rows = 3, a.score_rows = 4; });
  REQUIRE(quire_attention(e.box.cache.get(), nullptr) == kWrong);
  const quire_attention_args args = e.good();
  REQUIRE(quire_attention(nullptr, &args) == kWrong);
  CacheBox::need(e.box.cache.attention(args));  // the step is as it was
}

TEST_CASE("attention says which query element is bad", "[attention][errors]") {
  for (const float bad : {std::nanf(""), __builtin_inff(), -__builtin_inff(), 1.1e30f, -1.1e30f}) {
    for (const std::size_t index :
         {std::size_t{0}, std::size_t{300}, std::size_t{2 * 4 * 64 - 1}}) {
      AttentionErrors e;
      const float was = e.arrays.q[index];
      e.arrays.q[index] = bad;
      quire_error error = QUIRE_ERROR_INIT;
      quire_attention_args args = e.good();
      args.error = &error;
      REQUIRE(quire_attention(e.box.cache.get(), &args) == QUIRE_BAD_VALUE);
      REQUIRE(std::string(error.field) == "q");
      REQUIRE(error.given == index);
      e.arrays.require_untouched(e.scores);
      e.arrays.q[index] = was;
      REQUIRE(quire_attention(e.box.cache.get(), &args) == QUIRE_OK);
    }
  }
}

TEST_CASE("attention keeps the order of a step", "[attention][errors]") {
  CacheBox box(error_spec(), 2);
  Arrays arrays(box);
  box.open_with(30);
  quire_attention_args args = QUIRE_ATTENTION_ARGS_INIT;
  args.q = rows_of(arrays.q.data());
  args.out = rows_of(arrays.out.data());
  const auto refused = [&](std::uint32_t layer, const char* field) {
    args.layer = layer;
    const Result result = box.cache.attention(args);
    REQUIRE(result.status() == QUIRE_BAD_STATE);
    REQUIRE(std::string(result.field()) == field);
    for (const float x : arrays.out) REQUIRE(x == kUntouched);
  };
  refused(0, "step");
  const std::int32_t slot = 0;
  CacheBox::need(box.cache.step_begin(&slot, 1));
  refused(0, "layer");
  box.new_keys = box.rng.normals(2 * 64);
  box.new_values = box.rng.normals(2 * 64);
  box.append(1);
  refused(0, "layer");
  args.layer = 1;
  CacheBox::need(box.cache.attention(args));
  std::fill(arrays.out.begin(), arrays.out.end(), kUntouched);
  refused(1, "layer");  // scores once per layer and step
  args.score_rows = QUIRE_NONE;
  CacheBox::need(box.cache.attention(args));
  std::fill(arrays.out.begin(), arrays.out.end(), kUntouched);
  args.score_rows = 0;
  refused(0, "layer");
  CacheBox::need(box.cache.step_cancel());
  refused(1, "step");
}

TEST_CASE("extend names the argument that is wrong", "[attention][errors]") {
  CacheBox box(error_spec(), 3);
  Arrays arrays(box);
  box.open_with(40);
  box.open_with(20);
  const std::vector<float> scores = box.scores(0, 0);
  quire_extend_args good = QUIRE_EXTEND_ARGS_INIT;
  good.rows = 20;
  good.first_position = 40;
  good.q = rows_of(arrays.q.data());
  good.out = rows_of(arrays.out.data());
  good.lse = arrays.lse.data();
  const auto refused = [&](quire_status status,
                           const char* field,
                           const std::function<void(quire_extend_args&)>& change) {
    quire_error error = QUIRE_ERROR_INIT;
    quire_extend_args args = good;
    args.error = &error;
    change(args);
    INFO(field << ": " << error.text);
    REQUIRE(quire_extend(box.cache.get(), &args) == status);
    if (args.struct_size >= sizeof(args)) REQUIRE(std::string(error.field) == field);
    arrays.require_untouched(scores);
  };
  for (const auto& r : shared_refusals<quire_extend_args>(arrays, kBadParallels))
    refused(r.status, r.field, r.change);
  refused(kWrong, "slot", [](auto& a) { a.slot = -1; });
  refused(kWrong, "slot", [](auto& a) { a.slot = 2; });
  refused(kWrong, "rows", [](auto& a) { a.rows = 0; });
  refused(kWrong, "first_position", [](auto& a) { a.first_position = -1; });
  refused(kWrong, "first_position", [](auto& a) { a.first_position = 1 << 24; });
  for (const std::size_t index : {std::size_t{0}, std::size_t{17 * 4 * 64 + 5}}) {
    const float was = arrays.q[index];
    arrays.q[index] = std::nanf("");
    refused(QUIRE_BAD_VALUE, "q", [](auto&) {});
    arrays.q[index] = was;
  }
  const std::int32_t slot = 1;
  CacheBox::need(box.cache.step_begin(&slot, 1));
  refused(QUIRE_BAD_STATE, "slot", [](auto& a) { a.slot = 1; });
  CacheBox::need(box.cache.step_cancel());
  CacheBox::need(box.cache.close(1));
  refused(QUIRE_BAD_STATE, "slot", [](auto& a) { a.slot = 1; });
  REQUIRE(quire_extend(nullptr, &good) == kWrong);
  REQUIRE(quire_extend(box.cache.get(), nullptr) == kWrong);
  CacheBox::need(box.cache.extend(good));
}

// A struct of a later header is taken when what is new in it is zero.
TEST_CASE("a larger struct is taken if its tail is zero", "[attention][errors]") {
  AttentionErrors e;
  struct Newer {
    quire_attention_args args;
    std::uint64_t more;
  } newer = {e.good(), 1};
  newer.args.struct_size = sizeof(newer);
  REQUIRE(quire_attention(e.box.cache.get(), &newer.args) == QUIRE_ABI_MISMATCH);
  e.arrays.require_untouched(e.scores);
  newer.more = 0;
  REQUIRE(quire_attention(e.box.cache.get(), &newer.args) == QUIRE_OK);
}

}  // namespace
}  // namespace quire
