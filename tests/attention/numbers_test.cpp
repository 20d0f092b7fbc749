// Attention of four tokens, two in K8V4 and two in K4V2, against worked numbers:
// codes, logits, probabilities, LSE, outputs, score increments, split and
// merge. Oracle: that table (six decimals, computed in double over the dequantized numbers).
#include <array>

#include "quire/attention/reference.hpp"
#include "quire/quire.hpp"
#include "src/backend.hpp"
#include "support/attention_head.hpp"
#include "support/catch.hpp"

namespace quire {
namespace {

constexpr std::uint32_t kDim = 128;
constexpr double kTable = 0.5e-6;  // half a unit of the table's last decimal

using Eight = std::array<float, 8>;
using Codes = std::array<int, 8>;

constexpr Eight kB8 = {-1.0f, -0.5f, 0.0f, 0.25f, 0.5f, 1.0f, 1.5f, 2.75f};
constexpr Eight kQ[2] = {{0.5f, -0.25f, 0.125f, 0.0f, 0.25f, -0.125f, 0.0625f, 0.1875f},
                         {-0.25f, 0.5f, 0.0f, 0.25f, -0.125f, 0.125f, 0.25f, -0.0625f}};

constexpr double kLogits[2][4] = {{0.331796, 1.370613, -0.729204, -0.331456},
                                  {0.464389, 0.132852, -0.508233, -0.464039}};
constexpr double kP[2][4] = {{0.213349, 0.602897, 0.073842, 0.109912},
                             {0.401432, 0.288155, 0.151777, 0.158635}};
constexpr double kLse[2] = {1.876622, 1.377107};
constexpr double kLse2[2] = {2.707393, 1.986746};
constexpr double kOut[2][8] = {
    {0.002699, 0.037461, 0.208628, 0.252677, 0.350064, 0.574568, 0.769342, 1.392680},
    {0.888241, 0.530529, 0.383317, 0.254640, 0.226321, 0.179466, 0.122828, 0.191732}};
constexpr double kIncrements[4] = {0.401432, 0.602897, 0.151777, 0.158635};

template <class FunctionT>
Eight map(FunctionT&& f) {
  Eight x;
  for (std::size_t i = 0; i < 8; ++i) x[i] = f(i);
  return x;
}

// Tokens 0 and 1 in the high tier, 2 and 3 in the low one.
class FourTokens {
 public:
  FourTokens() {
    PageLayoutSpec spec;
    spec.tier_count = 2;
    spec.tier[0] = {{Grid::kAffine, 8, 0, 0}, {Grid::kAffine, 4, 0, 0}};
    spec.tier[1] = {{Grid::kAffine, 4, 0, 0}, {Grid::kAffine, 2, 0, 0}};
    spec.head_dim_k = spec.head_dim_v = kDim;
    layout = page_layout(spec).value();
    pages = test::Bytes(2 * layout.page_bytes);
    const auto reversed = [](std::size_t i) { return kB8[7 - i]; };
    const auto plain = [](std::size_t i) { return kB8[i]; };
    const auto minus = [](std::size_t i) { return -kB8[i]; };
    write(0, 0, map(plain), map(reversed));
    write(0, 1, map(reversed), map(plain));
    write(1, 0, map([](std::size_t i) { return kB8[i] - 1.0f; }), map(minus));
    write(1, 1, map(minus), map([](std::size_t i) { return kB8[i] / 2.0f; }));
    for (const Eight& eight : kQ)
      for (std::uint32_t d = 0; d < kDim; ++d) q.push_back(eight[d % 8]);
    rule.scale = 1.0f / std::sqrt(128.0f);
  }

  HeadView view(std::uint32_t high = 2, std::uint32_t low = 2) const {
    HeadView v;
    v.tiers = layout.tier;
    v.tier_count = 2;
    v.tokens[0] = high;
    v.tokens[1] = low;
    v.row.ids = kRow;
    v.row.capacity = 2;
    v.space = {pages.data(), static_cast<std::int64_t>(layout.page_bytes), 0};
    v.length = 4;
    return v;
  }

  Codes codes(bool keys, std::uint32_t token) const {
    const HeadView v = view();
    const TokenPlace place = place_of(v, token / 2, token % 2);
    const VectorSlot slot = keys ? place.k() : place.v();
    const VectorFormat& format = keys ? place.layout->format.k : place.layout->format.v;
    CodedVector coded;
    load_coded(format, kDim, as_const(slot), coded);
    Codes first;
    for (std::uint32_t i = 0; i < kDim; ++i) {
      if (i < 8) first[i] = coded.codes[i];
      REQUIRE(coded.codes[i] == first[i % 8]);  // every eighth element is the same
    }
    return first;
  }

  test::AttentionScale scale() const {
    test::AttentionScale s;
    s.q_norm = test::norm(q.data(), kDim);
    std::vector<float> k;
    for (std::uint32_t d = 0; d < kDim; ++d) k.push_back(kB8[d % 8]);
    s.k_norm = test::norm(k.data(), kDim) + 1.0;
    s.v_max = 2.75;
    s.scale = static_cast<double>(rule.scale);
    s.dim = kDim;
    s.n = 4;
    return s;
  }

  PageLayout layout;
  test::Bytes pages;
  std::vector<float> q;  // [2, 128]
  AttentionRule rule;

 private:
  static constexpr std::int32_t kRow[2] = {0, 1};

  void write(std::uint32_t tier, std::uint32_t token, const Eight& k, const Eight& v) const {
    float key[kDim];
    float value[kDim];
    for (std::uint32_t d = 0; d < kDim; ++d) key[d] = k[d % 8];
    for (std::uint32_t d = 0; d < kDim; ++d) value[d] = v[d % 8];
    CodecEvents events;
    const auto position = static_cast<std::int32_t>(2 * tier + token);
    write_record(place_of(view(), tier, token), key, value, 0.0f, position, events);
  }
};

struct Outcome {
  std::vector<float> out = std::vector<float>(2 * kDim);
  std::vector<float> lse = std::vector<float>(2);
};

// Both query heads through the CPU backend, scored with the maximum over the group.
Outcome attend(const FourTokens& four, std::uint32_t splits, bool base_2) {
  Outcome result;
  HeadState state = {};
  AttentionUnit unit;
  unit.view = four.view();
  unit.position = 3;
  unit.statistic = Statistic::kMaxSum;
  unit.state = &state;
  AttentionCall call;
  call.units = &unit;
  call.unit_count = 1;
  call.q_heads = call.group = 2;
  call.q = {four.q.data(), DType::kF32, 2 * kDim, 2 * kDim, kDim};
  call.out = {result.out.data(), DType::kF32, 2 * kDim, 2 * kDim, kDim};
  call.lse = result.lse.data();
  call.lse_base_2 = base_2;
  call.rule = four.rule;
  call.score_rows = 1;
  call.splits = splits;
  const AttentionShape shape = {kDim, kDim, 1, 2, 1, 1, splits, 1, 4, 2, 1};
  const test::Bytes workspace(cpu_backend().attention_workspace(shape));
  call.workspace = {workspace.data(), workspace.size()};
  cpu_backend().attention(call);
  return result;
}

void require_near(double got, double want, double tolerance) {
  INFO("got " << got << " want " << want << " within " << tolerance);
  REQUIRE(std::fabs(got - want) <= tolerance);
}

TEST_CASE("codes of the four worked tokens", "[attention][numbers]") {
  const FourTokens four;
  const Codes k8 = {0, 34, 68, 85, 102, 136, 170, 255};
  const Codes k8_reversed = {255, 170, 136, 102, 85, 68, 34, 0};
  REQUIRE(four.codes(true, 0) == k8);
  REQUIRE(four.codes(true, 1) == k8_reversed);
  REQUIRE(four.codes(true, 2) == Codes{0, 2, 4, 5, 6, 8, 10, 15});
  REQUIRE(four.codes(true, 3) == Codes{15, 13, 11, 10, 9, 7, 5, 0});
  REQUIRE(four.codes(false, 0) == Codes{15, 10, 8, 6, 5, 4, 2, 0});
  REQUIRE(four.codes(false, 1) == Codes{0, 2, 4, 5, 6, 8, 10, 15});
  REQUIRE(four.codes(false, 2) == Codes{3, 3, 2, 2, 2, 1, 1, 0});
  REQUIRE(four.codes(false, 3) == Codes{0, 0, 1, 1, 1, 2, 2, 3});
}

TEST_CASE("logits and probabilities of the four worked tokens", "[attention][numbers]") {
  const FourTokens four;
  for (std::uint32_t head = 0; head < 2; ++head) {
    const Query query = {four.q.data() + head * kDim, head, 3};
    std::vector<float> out(kDim);
    const float lse = attend_reference(four.view(), four.rule, query, out.data());
    float p[4];
    probabilities_reference(four.view(), four.rule, query, lse, p);
    const double tolerance = kTable + test::logit_tolerance(four.scale());
    std::uint32_t token = 0;
    detail::visit_logits(
        four.view(), four.rule, query, [&](const Segment&, std::uint32_t, float l) {
          require_near(static_cast<double>(l), kLogits[head][token++], tolerance);
        });
    REQUIRE(token == 4);
    for (std::uint32_t t = 0; t < 4; ++t)
      require_near(static_cast<double>(p[t]), kP[head][t], kTable + 2.0 * tolerance);
    require_near(static_cast<double>(lse), kLse[head], kTable + test::lse_tolerance(four.scale()));
    for (std::uint32_t d = 0; d < kDim; ++d)
      require_near(static_cast<double>(out[d]),
                   kOut[head][d % 8],
                   kTable + test::output_tolerance(four.scale()));
  }
}

TEST_CASE("the backend gives the worked outputs, LSEs and scores", "[attention][numbers]") {
  for (const std::uint32_t splits : {1u, 2u, 5u}) {
    for (const bool base_2 : {false, true}) {
      const FourTokens four;
      const Outcome got = attend(four, splits, base_2);
      INFO("splits " << splits << " base 2 " << base_2);
      for (std::uint32_t head = 0; head < 2; ++head) {
        const double lse = base_2 ? kLse2[head] : kLse[head];
        const double tolerance = kTable + 2.0 * test::lse_tolerance(four.scale());
        require_near(static_cast<double>(got.lse[head]), lse, tolerance);
        for (std::uint32_t d = 0; d < kDim; ++d) {
          require_near(static_cast<double>(got.out[head * kDim + d]),
                       kOut[head][d % 8],
                       kTable + test::output_tolerance(four.scale()));
        }
      }
      for (std::uint32_t t = 0; t < 4; ++t) {
        const TokenPlace place = place_of(four.view(), t / 2, t % 2);
        require_near(static_cast<double>(place.score()),
                     kIncrements[t],
                     kTable + kIncrements[t] * test::score_tolerance(four.scale()));
      }
    }
  }
}

TEST_CASE("two halves of the worked tokens merge to the whole", "[attention][numbers]") {
  const FourTokens four;
  const Query query = {four.q.data(), 0, 3};
  std::vector<float> out[2] = {std::vector<float>(kDim), std::vector<float>(kDim)};
  const float lse[2] = {attend_reference(four.view(2, 0), four.rule, query, out[0].data()),
                        attend_reference(four.view(0, 2), four.rule, query, out[1].data())};
  const double tolerance = kTable + 2.0 * test::lse_tolerance(four.scale());
  require_near(static_cast<double>(lse[0]), 1.673582, tolerance);
  require_near(static_cast<double>(lse[1]), 0.182463, tolerance);
  const float total = log_add(lse[0], lse[1]);
  require_near(static_cast<double>(total), kLse[0], tolerance);
  require_near(static_cast<double>(part_weight(lse[0], total)), 0.816246, tolerance);
  constexpr double kPartial[2][2] = {{0.261378, 0.738622}, {0.401854, 0.598146}};
  for (std::uint32_t half = 0; half < 2; ++half) {
    float p[2];
    const HeadView view = half == 0 ? four.view(2, 0) : four.view(0, 2);
    probabilities_reference(view, four.rule, query, lse[half], p);
    for (std::uint32_t t = 0; t < 2; ++t) {
      require_near(static_cast<double>(p[t]), kPartial[half][t], tolerance);
      const float merged = p[t] * part_weight(lse[half], total);
      require_near(static_cast<double>(merged), kP[0][2 * half + t], tolerance);
    }
  }
  const quire_part parts[2] = {{rows_of(out[0].data()), &lse[0], 0, 0},
                               {rows_of(out[1].data()), &lse[1], 0, 0}};
  std::vector<float> merged(kDim);
  float merged_lse = 0.0f;
  quire_merge_args args = QUIRE_MERGE_ARGS_INIT;
  args.parts = parts;
  args.part_count = 2;
  args.rows = args.q_heads = 1;
  args.head_dim_v = kDim;
  args.out = rows_of(merged.data());
  args.lse = &merged_lse;
  REQUIRE(quire_merge(&args) == QUIRE_OK);
  require_near(static_cast<double>(merged_lse), kLse[0], tolerance);
  for (std::uint32_t d = 0; d < kDim; ++d) {
    require_near(static_cast<double>(merged[d]),
                 kOut[0][d % 8],
                 kTable + test::output_tolerance(four.scale()));
  }
}

}  // namespace
}  // namespace quire
