// Inputs and outputs in every dtype and with any strides. Oracle: the same call with dense f32
// arrays that hold the same numbers, bit by bit; outputs in 16 bit round those once. Gaps between
// rows are full of NaN and stay as they are.
#include "quire/core/dtype.hpp"
#include "support/attention_cache.hpp"
#include "support/attention_strided.hpp"

namespace quire {
namespace {

using test::CacheBox;
using test::CacheSpec;
using test::Strided;
using test::StrideKind;

constexpr std::uint32_t kBatch = 3, kRows = 2, kQHeads = 6, kKvHeads = 2, kDk = 64, kDv = 48;

CacheSpec dtype_spec() {
  CacheSpec spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, kKvHeads, kQHeads / kKvHeads, kDk);
  spec.group.layout.head_dim_v = kDv;
  spec.sequences = kBatch;
  spec.set_window(16);
  return spec;
}

// Random numbers that the dtype holds exactly.
std::vector<float> exact(test::Rng& rng, std::size_t n, DType dtype) {
  std::vector<float> x = rng.normals(n, 1.5f);
  for (float& value : x) {
    if (dtype == DType::kF16) value = half_to_float(float_to_half(value));
    if (dtype == DType::kBf16) value = bfloat_to_float(float_to_bfloat(value));
  }
  return x;
}

struct Inputs {
  std::vector<float> prompt_k, prompt_v, prompt_q;  // [tokens, heads, dim]
  std::vector<float> k, v, q;                       // [batch, rows, heads, dim]

  Inputs(test::Rng& rng, DType dtype) {
    prompt_k = exact(rng, 50 * kKvHeads * kDk, dtype);
    prompt_v = exact(rng, 50 * kKvHeads * kDv, dtype);
    prompt_q = exact(rng, 50 * kQHeads * kDk, dtype);
    k = exact(rng, kBatch * kKvHeads * kDk, dtype);
    v = exact(rng, kBatch * kKvHeads * kDv, dtype);
    q = exact(rng, kBatch * kRows * kQHeads * kDk, dtype);
  }
};

struct Outputs {
  std::vector<float> out, lse, scores;
  std::vector<float> extended;
};

// Prompt, step, attention and extend with every array in the given form.
Outputs run(const Inputs& in, DType dtype, StrideKind kind, DType out_dtype, StrideKind out_kind) {
  CacheBox box(dtype_spec(), 1);
  const auto strided = [&](const std::vector<float>& x, test::Shape4 shape) {
    return Strided(x, shape, dtype, kind);
  };
  const Strided pk = strided(in.prompt_k, {1, 50, kKvHeads, kDk}),
                pv = strided(in.prompt_v, {1, 50, kKvHeads, kDv});
  const Strided pq = strided(in.prompt_q, {1, 50, kQHeads, kDk});
  std::vector<std::int32_t> slots;
  for (std::uint32_t s = 0; s < kBatch; ++s) {
    slots.push_back(box.open());
    CacheBox::need(box.cache.prefill_begin(slots[s], 50));
    quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
    args.slot = slots[s];
    args.k = pk.rows();
    args.v = pv.rows();
    args.q = pq.rows();
    args.q_rows = 50;
    CacheBox::need(box.cache.prefill_layer(args));
    CacheBox::need(box.cache.prefill_end(slots[s]));
  }
  const Strided k = strided(in.k, {kBatch, 1, kKvHeads, kDk}),
                v = strided(in.v, {kBatch, 1, kKvHeads, kDv});
  const Strided q = strided(in.q, {kBatch, kRows, kQHeads, kDk});
  CacheBox::need(box.cache.step_begin(slots.data(), kBatch));
  quire_append_args append = QUIRE_APPEND_ARGS_INIT;
  append.k = k.rows();
  append.v = v.rows();
  CacheBox::need(box.cache.append(append));
  Outputs result;
  result.lse.resize(kBatch * kRows * kQHeads);
  Strided out({kBatch, kRows, kQHeads, kDv}, out_dtype, out_kind);
  quire_attention_args attention = QUIRE_ATTENTION_ARGS_INIT;
  attention.rows = kRows;
  attention.q = q.rows();
  attention.out = out.rows();
  attention.lse = result.lse.data();
  CacheBox::need(box.cache.attention(attention));
  result.out = out.values();
  REQUIRE(out.gaps_untouched());
  CacheBox::need(box.cache.step_end());
  result.scores = box.scores(slots[1], 1);
  Strided extended({1, 50, kQHeads, kDv}, out_dtype, out_kind);
  quire_extend_args extend = QUIRE_EXTEND_ARGS_INIT;
  extend.slot = slots[2];
  extend.rows = 50;
  extend.first_position = 51;
  extend.q = pq.rows();
  extend.out = extended.rows();
  CacheBox::need(box.cache.extend(extend));
  result.extended = extended.values();
  REQUIRE(extended.gaps_untouched());
  return result;
}

TEST_CASE("inputs of any dtype and strides have the bits of dense f32", "[attention][dtype]") {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
    test::Rng rng(2);
    const Inputs inputs(rng, dtype);
    const Outputs want =
        run(inputs, DType::kF32, StrideKind::kDense, DType::kF32, StrideKind::kDense);
    for (const StrideKind kind : test::kStrideKinds) {
      const Outputs got = run(inputs, dtype, kind, DType::kF32, kind);
      INFO("dtype " << static_cast<int>(dtype) << " strides " << static_cast<int>(kind));
      REQUIRE(got.out == want.out);
      REQUIRE(got.lse == want.lse);
      REQUIRE(got.scores == want.scores);
      REQUIRE(got.extended == want.extended);
    }
  }
}

TEST_CASE("outputs in 16 bit round the f32 outputs once", "[attention][dtype]") {
  test::Rng rng(3);
  const Inputs inputs(rng, DType::kF32);
  const Outputs want =
      run(inputs, DType::kF32, StrideKind::kDense, DType::kF32, StrideKind::kDense);
  for (const DType dtype : {DType::kF16, DType::kBf16}) {
    for (const StrideKind kind : test::kStrideKinds) {
      const Outputs got = run(inputs, DType::kF32, StrideKind::kDense, dtype, kind);
      for (std::size_t i = 0; i < want.out.size(); ++i) {
        const float x = want.out[i];
        REQUIRE(got.out[i] == (dtype == DType::kF16 ? half_to_float(float_to_half(x))
                                                    : bfloat_to_float(float_to_bfloat(x))));
      }
      REQUIRE(got.lse == want.lse);
    }
  }
}

// A padding row is written like any other: inside its own bounds.
TEST_CASE("padding rows with gaps are zeroed inside their rows only", "[attention][dtype]") {
  CacheBox box(dtype_spec(), 4);
  const std::int32_t slot = box.open_with(20);
  box.begin({-1, slot, -1});
  const std::vector<float> q = box.rng.normals(kBatch * kQHeads * kDk);
  for (const StrideKind kind : test::kStrideKinds) {
    Strided out({kBatch, 1, kQHeads, kDv}, DType::kF16, kind);
    quire_attention_args args = QUIRE_ATTENTION_ARGS_INIT;
    args.q = rows_of(q.data());
    args.out = out.rows();
    args.score_rows = QUIRE_NONE;
    CacheBox::need(box.cache.attention(args));
    REQUIRE(out.gaps_untouched());
    const std::vector<float> values = out.values();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool padding = i / (kQHeads * kDv) != 1;
      REQUIRE(std::isfinite(values[i]));
      if (padding) REQUIRE(values[i] == 0.0f);
    }
  }
  CacheBox::need(box.cache.step_end());
}

}  // namespace
}  // namespace quire
