// quire_merge: parts of other libraries in any dtype, base and layout. Oracle: the weighted sum in
// double, and the unsplit attention in double for parts that were cut from one set of tokens.
#include <cstring>

#include "quire/quire.hpp"
#include "support/attention_merge.hpp"
#include "support/catch.hpp"
#include "support/oracle.hpp"

namespace quire {
namespace {

// The private call of MergeProblem, through quire.h.
struct PublicMerge {
  std::vector<quire_part> parts;
  quire_merge_args args = QUIRE_MERGE_ARGS_INIT;

  explicit PublicMerge(const MergeCall& call) {
    for (std::uint32_t p = 0; p < call.part_count; ++p) {
      const MergePart& in = call.parts[p];
      quire_rows rows = {const_cast<void*>(in.out.data),
                         static_cast<std::uint32_t>(in.out.dtype),
                         0,
                         in.out.sequence_stride,
                         in.out.token_stride,
                         in.out.head_stride};
      parts.push_back({rows, in.lse, in.lse_base_2 ? 1u : 0u, 0});
    }
    args.parts = parts.data();
    args.part_count = call.part_count;
    args.rows = call.rows;
    args.q_heads = call.q_heads;
    args.head_dim_v = call.head_dim_v;
    args.sink_logits = call.sink_logits;
    args.out = rows_of(static_cast<float*>(call.out.data));
    args.lse = call.lse;
    args.lse_base_2 = call.lse_base_2 ? 1 : 0;
  }
};

test::MergeProblem::Result run(const test::MergeProblem& problem) {
  return problem.run([](const MergeCall& call) {
    const PublicMerge merge(call);
    REQUIRE(quire_merge(&merge.args) == QUIRE_OK);
  });
}

TEST_CASE("1 to 64 parts in all dtypes and both bases merge to the oracle", "[attention][merge]") {
  test::Rng rng(1);
  INFO(rng.describe());
  for (std::uint32_t count = 1; count <= 64; ++count) {
    test::MergeProblem problem(count, 1 + count % 4, 1 + count % 5, 16 * (1 + count % 16), rng);
    problem.with_sink = count % 3 == 0;
    problem.base_2 = count % 2 == 0;
    if (count % 4 == 1) problem.empty_some(rng);
    INFO("parts " << count);
    REQUIRE(problem.deviation(run(problem)) < 1.0);
  }
}

TEST_CASE("one part comes back as it is", "[attention][merge]") {
  test::Rng rng(2);
  std::vector<float> out = rng.normals(3 * 32);
  const std::vector<float> lse = {0.5f, -3.0f, 12.0f};
  std::vector<float> merged(out.size()), merged_lse(3);
  const quire_part part = {rows_of(out.data()), lse.data(), 0, 0};
  quire_merge_args args = QUIRE_MERGE_ARGS_INIT;
  args.parts = &part;
  args.part_count = 1;
  args.rows = 1;
  args.q_heads = 3;
  args.head_dim_v = 32;
  args.out = rows_of(merged.data());
  args.lse = merged_lse.data();
  REQUIRE(quire_merge(&args) == QUIRE_OK);
  REQUIRE(merged == out);
  REQUIRE(merged_lse == lse);
}

TEST_CASE("the output may be a part, and its LSE too", "[attention][merge]") {
  test::Rng rng(3);
  INFO(rng.describe());
  for (std::size_t target = 0; target < 3; ++target) {
    std::vector<std::vector<float>> out(3), lse(3);
    std::vector<quire_part> parts;
    for (std::size_t p = 0; p < 3; ++p) {
      out[p] = rng.normals(4 * 2 * 48);
      lse[p] = rng.normals(4 * 2, 2.0f);
      parts.push_back(
          {rows_of(out[p].data()), lse[p].data(), static_cast<std::uint32_t>(p % 2), 0});
    }
    std::vector<float> apart(4 * 2 * 48), apart_lse(8);
    quire_merge_args args = QUIRE_MERGE_ARGS_INIT;
    args.parts = parts.data();
    args.part_count = 3;
    args.rows = 4;
    args.q_heads = 2;
    args.head_dim_v = 48;
    args.out = rows_of(apart.data());
    args.lse = apart_lse.data();
    REQUIRE(quire_merge(&args) == QUIRE_OK);
    args.out = rows_of(out[target].data());
    args.lse = lse[target].data();
    REQUIRE(quire_merge(&args) == QUIRE_OK);
    REQUIRE(out[target] == apart);
    REQUIRE(lse[target] == apart_lse);
  }
}

// One attention, and its tokens dealt out to parts as other libraries would.
class Cut {
 public:
  explicit Cut(test::Rng& rng)
      : q_(rng.normals(kDim)), k_(rng.normals(kTokens * kDim)), v_(rng.normals(kTokens * kDim)) {
    whole.q = q_.data();
    whole.k = k_.data();
    whole.v = v_.data();
    whole.n = kTokens;
    whole.dim_k = whole.dim_v = whole.k_stride = whole.v_stride = kDim;
    whole.scale = 0.3;
    scale.q_norm = test::norm(q_.data(), kDim);
    for (std::int64_t t = 0; t < kTokens; ++t)
      scale.k_norm = std::max(scale.k_norm, test::norm(k_.data() + t * kDim, kDim));
    scale.v_max = test::largest(v_.data(), kTokens * kDim);
    scale.scale = whole.scale;
    scale.dim = kDim;
    scale.n = kTokens;
    scale.soft_max_logit = 4.0;
  }

  // Parts in turn in both bases of the LSE.
  void cut(std::uint32_t count) {
    out_.assign(count, std::vector<float>(kDim));
    lse_.assign(count, 0.0f);
    parts.clear();
    for (std::uint32_t p = 0; p < count; ++p) {
      test::OracleProblem piece = whole;
      const std::int64_t first = kTokens * p / count;
      piece.n = kTokens * (p + 1) / count - first;
      piece.k = k_.data() + first * kDim;
      piece.v = v_.data() + first * kDim;
      const test::OracleResult r = test::oracle_attention(piece);
      const bool base_2 = p % 2 == 1;
      lse_[p] = static_cast<float>(base_2 ? r.lse / std::log(2.0) : r.lse);
      for (std::size_t d = 0; d < kDim; ++d) out_[p][d] = static_cast<float>(r.out[d]);
      parts.push_back({rows_of(out_[p].data()), &lse_[p], base_2 ? 1u : 0u, 0});
    }
  }

  static constexpr std::int64_t kTokens = 200, kDim = 64;
  test::OracleProblem whole;
  test::AttentionScale scale;
  std::vector<quire_part> parts;

 private:
  std::vector<float> q_, k_, v_, lse_;
  std::vector<std::vector<float>> out_;
};

TEST_CASE("parts of one attention merge to the unsplit one", "[attention][merge]") {
  test::Rng rng(4);
  INFO(rng.describe());
  Cut cut(rng);
  for (const bool sink : {false, true}) {
    for (const std::uint32_t count : {2u, 5u, 50u}) {
      cut.cut(count);
      std::vector<float> merged(Cut::kDim);
      float merged_lse = 0.0f;
      const float sink_logit = 4.0f;
      quire_merge_args args = QUIRE_MERGE_ARGS_INIT;
      args.parts = cut.parts.data();
      args.part_count = count;
      args.rows = args.q_heads = 1;
      args.head_dim_v = Cut::kDim;
      args.sink_logits = sink ? &sink_logit : nullptr;
      args.out = rows_of(merged.data());
      args.lse = &merged_lse;
      REQUIRE(quire_merge(&args) == QUIRE_OK);
      test::OracleProblem whole = cut.whole;
      whole.has_sink = sink;
      whole.sink_logit = 4.0;
      const test::OracleResult want = test::oracle_attention(whole);
      INFO("parts " << count << " sink " << sink);
      REQUIRE(std::fabs(static_cast<double>(merged_lse) - want.lse) <=
              test::lse_tolerance(cut.scale));
      for (std::size_t d = 0; d < merged.size(); ++d) {
        const double error = std::fabs(static_cast<double>(merged[d]) - want.out[d]);
        REQUIRE(error <= test::output_tolerance(cut.scale));
      }
    }
  }
}

TEST_CASE("outputs with gaps in 16 bit are written inside their rows only", "[attention][merge]") {
  test::Rng rng(5);
  const std::vector<float> out = rng.normals(2 * 3 * 16), lse(6, 1.0f);
  const quire_part part = {rows_of(out.data()), lse.data(), 0, 0};
  std::vector<std::uint16_t> merged(2 * 100, 0x7fff);
  quire_merge_args args = QUIRE_MERGE_ARGS_INIT;
  args.parts = &part;
  args.part_count = 1;
  args.rows = 2;
  args.q_heads = 3;
  args.head_dim_v = 16;
  args.out = half_rows_of(merged.data(), QUIRE_BF16, 0, 100, 20);
  REQUIRE(quire_merge(&args) == QUIRE_OK);
  for (std::size_t i = 0; i < merged.size(); ++i) {
    const std::size_t row = i / 100, head = i % 100 / 20, d = i % 20;
    const bool inside = head < 3 && d < 16;
    const std::uint16_t want = inside ? float_to_bfloat(out[(row * 3 + head) * 16 + d]) : 0x7fff;
    REQUIRE(merged[i] == want);
  }
}

TEST_CASE("merge names the argument that is wrong and writes nothing", "[attention][merge]") {
  std::vector<float> data(64, 1.0f), out(64, -7.0f), lse(4, 1.0f), out_lse(4, -7.0f);
  const quire_part good_parts[2] = {{rows_of(data.data()), lse.data(), 0, 0},
                                    {rows_of(data.data()), lse.data(), 1, 0}};
  quire_part parts[2] = {good_parts[0], good_parts[1]};
  quire_merge_args good = QUIRE_MERGE_ARGS_INIT;
  good.parts = parts;
  good.part_count = 2;
  good.rows = 2;
  good.q_heads = 2;
  good.head_dim_v = 16;
  good.out = rows_of(out.data());
  good.lse = out_lse.data();
  const auto refused = [&](quire_status status, const char* field, auto&& change) {
    quire_error error = QUIRE_ERROR_INIT;
    quire_merge_args args = good;
    args.error = &error;
    change(args);
    INFO(field);
    REQUIRE(quire_merge(&args) == status);
    if (args.struct_size >= sizeof(args)) REQUIRE(std::string(error.field) == field);
    REQUIRE(out == std::vector<float>(64, -7.0f));
    REQUIRE(out_lse == std::vector<float>(4, -7.0f));
    parts[0] = good_parts[0];
    parts[1] = good_parts[1];
  };
  constexpr quire_status kWrong = QUIRE_INVALID_ARGUMENT;
  refused(QUIRE_ABI_MISMATCH, "struct_size", [](auto& a) { a.struct_size = 8; });
  refused(QUIRE_ABI_MISMATCH, "flags", [](auto& a) { a.flags = 1; });
  refused(kWrong, "part_count", [](auto& a) { a.part_count = 0; });
  refused(kWrong, "part_count", [](auto& a) { a.part_count = 65; });
  refused(kWrong, "parts", [](auto& a) { a.parts = nullptr; });
  refused(kWrong, "rows", [](auto& a) { a.rows = 0; });
  refused(kWrong, "q_heads", [](auto& a) { a.q_heads = 0; });
  refused(kWrong, "head_dim_v", [](auto& a) { a.head_dim_v = 0; });
  refused(kWrong, "head_dim_v", [](auto& a) { a.head_dim_v = 257; });
  refused(kWrong, "lse_base_2", [](auto& a) { a.lse_base_2 = 2; });
  refused(kWrong, "parts.out", [&](auto&) { parts[1].out.data = nullptr; });
  refused(kWrong, "parts.out", [&](auto&) { parts[1].out.dtype = 0; });
  refused(kWrong, "parts.lse", [&](auto&) { parts[1].lse = nullptr; });
  refused(kWrong, "parts.lse_base_2", [&](auto&) { parts[0].lse_base_2 = 2; });
  refused(kWrong, "out", [](auto& a) { a.out.data = nullptr; });
  refused(kWrong, "out", [](auto& a) { a.out.dtype = 4; });
  refused(QUIRE_MISALIGNED, "out", [&](auto& a) {
    a.out.data = reinterpret_cast<char*>(out.data()) + 2;
  });
  REQUIRE(quire_merge(nullptr) == kWrong);
  REQUIRE(quire_merge(&good) == QUIRE_OK);
}

}  // namespace
}  // namespace quire
