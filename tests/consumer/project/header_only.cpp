// A C++17 program of a user who links no library: lays out a page, encodes tokens into it, and
// computes attention from it by the scalar definition. All values are equal, so the output is that
// value; the log-sum-exp is compared with one over the decoded keys.
#include <cmath>
#include <limits>
#include <quire/attention/reference.hpp>
#include <quire/pages/head_tokens.hpp>
#include <quire/policy/recipes.hpp>
#include <vector>

namespace {

constexpr std::uint32_t kDim = 64;
constexpr std::uint32_t kTokens = 20;
constexpr float kValue = 0.5f;

quire::PageLayoutSpec spec() {
  const quire::VectorFormat k8 = {quire::Grid::kAffine, 8, 0, quire::kTransformNone};
  const quire::VectorFormat v4 = {quire::Grid::kAffine, 4, 0, quire::kTransformNone};
  quire::PageLayoutSpec spec;
  spec.tier[0] = {k8, v4};
  spec.head_dim_k = spec.head_dim_v = kDim;
  return spec;
}

float key(std::uint32_t token, std::uint32_t d) {
  return std::sin(static_cast<float>(token * kDim + d));
}

void fill(const quire::HeadView& view) {
  quire::CodecEvents events;
  for (std::uint32_t t = 0; t < kTokens; ++t) {
    float k[kDim];
    float v[kDim];
    for (std::uint32_t d = 0; d < kDim; ++d) {
      k[d] = key(t, d);
      v[d] = kValue;
    }
    const auto position = static_cast<std::int32_t>(t);
    quire::write_record(quire::place_of(view, 0, t), k, v, 0.0f, position, events);
  }
}

double expected_lse(const quire::HeadView& view, const float* q, float scale) {
  double sum = 0.0;
  for (std::uint32_t t = 0; t < kTokens; ++t) {
    float k[kDim];
    const quire::TokenPlace place = quire::place_of(view, 0, t);
    quire::decode_vector(place.layout->format.k, kDim, quire::as_const(place.k()), k);
    double dot = 0.0;
    for (std::uint32_t d = 0; d < kDim; ++d) dot += double{q[d]} * double{k[d]};
    sum += std::exp(dot * double{scale});
  }
  return std::log(sum);
}

}  // namespace

int main() {
  if (!quire::check_policy(quire::quire_budget(0.25)).ok()) return 1;
  const quire::Expected<quire::PageLayout> layout = quire::page_layout(spec());
  if (!layout.ok() || layout.value().tier[0].tokens < kTokens) return 2;
  std::vector<std::uint64_t> page(layout.value().page_bytes / 8);  // aligned to 8 bytes
  const std::int32_t table[1] = {0};
  quire::HeadView view;
  view.tiers = layout.value().tier;
  view.tier_count = 1;
  view.tokens[0] = kTokens;
  view.row.ids = table;
  view.row.capacity = 1;
  view.space.base = reinterpret_cast<std::uint8_t*>(page.data());
  fill(view);
  quire::AttentionRule rule;
  rule.scale = 0.125f;
  float q[kDim];
  float out[kDim];
  for (std::uint32_t d = 0; d < kDim; ++d) q[d] = key(kTokens, d);
  quire::Query query;
  query.q = q;
  query.position = kTokens;
  const float lse = quire::attend_reference(view, rule, query, out);
  const float rounding = kTokens * kDim * std::numeric_limits<float>::epsilon();
  if (!(std::fabs(double{lse} - expected_lse(view, q, rule.scale)) <= double{rounding})) return 3;
  for (const float x : out) {
    if (!(std::fabs(x - kValue) <= rounding)) return 4;
  }
  return 0;
}
