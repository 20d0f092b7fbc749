// Multiply-adds per second of decode attention on one thread, unpacking included. Reported, never
// judged by time: the oracle here is only that outputs are finite. MACs: 2 D G per token and KV
// head.
#include <chrono>
#include <iomanip>
#include <memory>
#include <sstream>

#include "support/attention_call.hpp"
#include "support/catch.hpp"

namespace quire {
namespace {

struct SpeedFormat {
  const char* name;
  Format format;
};

constexpr VectorFormat affine(std::uint32_t bits) { return {Grid::kAffine, bits, 0, 0}; }
constexpr VectorFormat rotated(std::uint32_t bits) {
  return {bits > 4 ? Grid::kSymmetricUniform : Grid::kSymmetricTable, bits, 0, kTransformHadamard};
}

constexpr SpeedFormat kFormats[] = {
    {"f16", {{Grid::kF16, 16, 0, 0}, {Grid::kF16, 16, 0, 0}}},
    {"K8V4", {affine(8), affine(4)}},
    {"K4V2", {affine(4), affine(2)}},
    {"K6V4", {affine(6), affine(4)}},
    {"K6V4 rotated", {rotated(6), rotated(4)}},
    {"K4V3 rotated", {rotated(4), rotated(3)}},
};

struct SpeedShape {
  std::uint32_t dim;
  std::uint32_t group;
  std::int32_t tokens;
  std::uint32_t heads;
};

test::HeadSpec spec_of(const SpeedShape& shape, const Format& format) {
  test::HeadSpec spec;
  spec.tier_count = 1;
  spec.tier[0] = format;
  spec.dim_k = spec.dim_v = shape.dim;
  spec.length = shape.tokens;
  spec.has_ring = false;
  spec.tokens[0] = static_cast<std::uint32_t>(shape.tokens);
  return spec;
}

// Best of several rounds, in 10^9 multiply-adds per second.
double measure(const SpeedShape& shape, const Format& format, bool scored) {
  test::Rng rng(1);
  std::vector<std::unique_ptr<test::TestHead>> heads;
  test::HeadCall call;
  for (std::uint32_t h = 0; h < shape.heads; ++h) {
    heads.push_back(std::make_unique<test::TestHead>(spec_of(shape, format), rng));
    call.heads.push_back(heads.back().get());
    heads.back()->set_scores(0.0f);
  }
  call.kv_heads = shape.heads;
  call.group = shape.group;
  call.score_rows = scored ? 1 : 0;
  call.statistic = scored ? Statistic::kMaxSum : Statistic::kNone;
  call.random_queries(rng, 1.0f);
  double best = 0.0;
  const test::HeadResult result = test::attend(cpu_backend(), call, [&](AttentionCall& work) {
    for (int round = 0; round < 5; ++round) {
      const auto start = std::chrono::steady_clock::now();
      cpu_backend().attention(work);
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
      const double macs = 2.0 * shape.dim * shape.group * shape.tokens * shape.heads;
      best = std::max(best, macs / time.count() * 1e-9);
    }
  });
  for (const float x : result.out) REQUIRE(std::isfinite(x));
  return best;
}

void report(const SpeedShape& shape) {
  std::ostringstream text;
  text << cpu_backend().target() << " D " << shape.dim << " G " << shape.group << ", "
       << shape.tokens << " tokens, " << shape.heads << " KV heads, one thread, GMAC/s:\n";
  for (const SpeedFormat& format : kFormats) {
    text << "  " << std::setw(14) << std::left << format.name << std::fixed << std::setprecision(2)
         << measure(shape, format.format, false) << "   with scores "
         << measure(shape, format.format, true) << "\n";
  }
  WARN(text.str());
}

TEST_CASE("speed of decode attention at D 64 and 1500 tokens", "[attention][speed]") {
  report({64, 3, 1500, 8});
}

TEST_CASE("speed of decode attention at D 128 and 8192 tokens", "[attention][speed]") {
  report({128, 4, 8192, 4});
}

}  // namespace
}  // namespace quire
