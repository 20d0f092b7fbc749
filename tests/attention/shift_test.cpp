// RoPE is the model's: attention must depend on differences of positions only. q and K are rotated
// by the test; all positions move by a constant. Oracle: the same call at the unmoved positions.
// Tolerance: the 16-bit format rounds the rotated keys differently, half a unit each.
#include "support/attention_call.hpp"
#include "support/attention_formats.hpp"
#include "support/catch.hpp"

namespace quire {
namespace {

constexpr std::uint32_t kDim = 64;
constexpr std::int32_t kLength = 333;

// Rotates channel pairs (i, i + dim/2) by position * 10000^(-2i/dim), in double.
void rope(float* x, std::int32_t position) {
  for (std::uint32_t i = 0; i < kDim / 2; ++i) {
    const double angle = position * std::pow(10000.0, -2.0 * i / kDim);
    const auto a = static_cast<double>(x[i]);
    const auto b = static_cast<double>(x[i + kDim / 2]);
    x[i] = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
    x[i + kDim / 2] = static_cast<float>(a * std::sin(angle) + b * std::cos(angle));
  }
}

struct Outcome {
  test::HeadResult result;
  std::vector<float> scores;
  test::AttentionScale scale;
};

struct Model {
  std::vector<float> keys;
  std::vector<float> queries;
  std::vector<float> slopes;
  std::uint32_t rows = 3;
};

Outcome attend_at(const Model& model, std::int32_t shift, Grid grid, std::uint32_t which) {
  std::vector<float> keys = model.keys;
  for (std::int32_t p = 0; p < kLength; ++p)
    rope(keys.data() + p * static_cast<std::int32_t>(kDim), p + shift);
  test::HeadSpec spec;
  spec.has_ring = false;
  spec.length = kLength;
  spec.position_shift = shift;
  spec.keys = &keys;
  spec.tokens[0] = 200;
  spec.tokens[1] = kLength - 200;
  spec.tier[0] = {test::float_format(grid), {Grid::kAffine, 4, 32, 0}};
  spec.tier[1] = {test::float_format(grid), {Grid::kSymmetricTable, 2, 0, 0}};
  test::Rng rng(5);  // the same values and places for every shift
  test::TestHead head(spec, rng);
  test::HeadCall call;
  call.heads = {&head};
  call.group = 2;
  call.rows = model.rows;
  call.score_rows = model.rows;
  call.statistic = Statistic::kMaxFirst;
  call.first = {kLength - 1 + shift};
  call.q = model.queries;
  for (std::uint32_t c = 0; c < model.rows * 2; ++c)
    rope(call.q.data() + c * kDim, kLength - 1 + shift + static_cast<std::int32_t>(c / 2));
  if ((which & 1) != 0) call.rule.sliding_window = 100;
  if ((which & 2) != 0) call.rule.alibi_slopes = model.slopes.data();
  if ((which & 4) != 0) call.rule.soft_cap = 5.0f;
  head.set_scores(0.0f);
  Outcome outcome;
  outcome.result = test::attend(cpu_backend(), call);
  outcome.scores = head.scores();
  outcome.scale = test::scale_of(call, 0);
  return outcome;
}

TEST_CASE("moving all positions by a constant changes nothing under RoPE", "[attention][shift]") {
  test::Rng rng(1);
  INFO(rng.describe());
  Model model;
  model.keys = rng.normals(kLength * kDim);
  model.queries = rng.normals(model.rows * 2 * kDim, 1.5f);
  model.slopes = {0.02f, 0.05f};
  for (const Grid grid : {Grid::kF16, Grid::kBf16}) {
    const double format_eps = grid == Grid::kF16 ? test::kHalfEps : test::kBfloatEps;
    for (std::uint32_t which = 0; which < 8; ++which) {
      const Outcome base = attend_at(model, 0, grid, which);
      const test::AttentionScale s = base.scale;
      // Both sides round K once (twice the logit error of a key) and RoPE's float results once.
      const double logit =
          2.0 * (format_eps + 2.0 * test::kFloatEps) * s.q_norm * s.k_norm * s.scale +
          2.0 * test::logit_tolerance(s);
      for (const std::int32_t shift : {1, 77, 4096, 1000000}) {
        const Outcome moved = attend_at(model, shift, grid, which);
        INFO("grid " << static_cast<int>(grid) << " rules " << which << " shift " << shift);
        for (std::size_t i = 0; i < base.result.lse.size(); ++i) {
          const double error = std::fabs(static_cast<double>(base.result.lse[i]) -
                                         static_cast<double>(moved.result.lse[i]));
          REQUIRE(error <= logit + 2.0 * test::lse_tolerance(s));
        }
        for (std::size_t i = 0; i < base.result.out.size(); ++i) {
          const double error = std::fabs(static_cast<double>(base.result.out[i]) -
                                         static_cast<double>(moved.result.out[i]));
          REQUIRE(error <= s.v_max * std::expm1(2.0 * logit) + 2.0 * test::output_tolerance(s));
        }
        for (std::size_t t = 0; t < base.scores.size(); ++t) {
          const auto want = static_cast<double>(base.scores[t]);
          const double error = std::fabs(want - static_cast<double>(moved.scores[t]));
          const double tolerance =
              want * (std::expm1(2.0 * logit) + 2.0 * test::score_tolerance(s));
          REQUIRE(error <= tolerance + 2.0 * test::score_floor(model.rows));
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire
