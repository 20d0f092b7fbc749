// Oracles of every selector: the eviction identity, dense attention with a mask on what was
// evicted, and identity with keep_all when nothing has to go. All in double over decoded values.
#include <algorithm>
#include <vector>

#include "support/catch.hpp"
#include "support/policy_recipes.hpp"
#include "support/policy_reference.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kPrompt = 200;
constexpr std::uint32_t kSteps = 60;

StreamShape oracle_shape() {
  StreamShape shape;
  shape.tokens = kPrompt + kSteps;
  return shape;
}

// One head as dense arrays over all positions: decoded where retained, as given where evicted.
struct DenseHead {
  std::vector<float> keys;
  std::vector<float> values;
  std::vector<bool> retained;

  DenseHead(const Rig& rig,
            std::int32_t slot,
            const Stream& stream,
            std::uint32_t layer,
            std::uint32_t head,
            std::uint32_t tokens)
      : retained(tokens, false) {
    const std::uint32_t dim = stream.shape.dim;
    for (std::uint32_t t = 0; t < tokens; ++t) {
      const float* k = stream.k(layer, t) + head * dim;
      const float* v = stream.v(layer, t) + head * dim;
      keys.insert(keys.end(), k, k + dim);
      values.insert(values.end(), v, v + dim);
    }
    const DecodedHead decoded = rig.gather(slot, layer, head);
    for (std::size_t i = 0; i < decoded.positions.size(); ++i) {
      const auto at = static_cast<std::size_t>(decoded.positions[i]);
      REQUIRE(at < tokens);
      REQUIRE(!retained[at]);
      retained[at] = true;
      std::copy_n(decoded.keys.data() + i * dim, dim, keys.data() + at * dim);
      std::copy_n(decoded.values.data() + i * dim, dim, values.data() + at * dim);
    }
  }
};

// Attention over all positions, and the means over retained and evicted ones.
struct Split {
  std::vector<double> full;
  std::vector<double> retained;
  std::vector<double> evicted;
  double mass = 0.0;  // of the retained
};

Split split_attention(const DenseHead& head, const float* q, std::uint32_t dim, double scale) {
  const std::size_t n = head.retained.size();
  const std::vector<double> p = softmax_of(q, head.keys.data(), n, dim, dim, scale);
  Split s;
  s.full.assign(dim, 0.0);
  s.retained.assign(dim, 0.0);
  s.evicted.assign(dim, 0.0);
  for (std::size_t t = 0; t < n; ++t) {
    if (head.retained[t]) s.mass += p[t];
    for (std::uint32_t d = 0; d < dim; ++d) {
      const double x = p[t] * static_cast<double>(head.values[t * dim + d]);
      s.full[d] += x;
      (head.retained[t] ? s.retained : s.evicted)[d] += x;
    }
  }
  for (std::uint32_t d = 0; d < dim; ++d) {
    s.retained[d] /= s.mass;
    if (s.mass < 1.0) s.evicted[d] /= 1.0 - s.mass;
  }
  return s;
}

// Dense attention with minus infinity on evicted positions.
std::vector<double> masked_attention(const DenseHead& head,
                                     const float* q,
                                     std::uint32_t dim,
                                     double scale) {
  const std::size_t n = head.retained.size();
  std::vector<double> weight(n, 0.0);
  double sum = 0.0;
  for (std::size_t t = 0; t < n; ++t) {
    double dot = 0.0;
    for (std::uint32_t d = 0; d < dim; ++d)
      dot += static_cast<double>(q[d]) * static_cast<double>(head.keys[t * dim + d]);
    const double logit = head.retained[t] ? dot * scale : -std::numeric_limits<double>::infinity();
    weight[t] = std::exp(logit);
    sum += weight[t];
  }
  std::vector<double> out(dim, 0.0);
  for (std::size_t t = 0; t < n; ++t)
    for (std::uint32_t d = 0; d < dim; ++d)
      out[d] += weight[t] / sum * static_cast<double>(head.values[t * dim + d]);
  return out;
}

TEST_CASE("outputs equal masked dense attention and obey the eviction identity",
          "[policy][oracle]") {
  const std::size_t which = GENERATE(range(std::size_t{0}, std::size_t{10}));
  const NamedSpec named = small_recipes(oracle_shape())[which];
  Rng rng(7801);
  INFO(rng.describe() << " " << named.name);
  const Stream stream(oracle_shape(), rng);
  Rig rig(named.spec);
  const std::int32_t slot = rig.open();
  rig.prompt(slot, stream, kPrompt);
  std::vector<float> out;
  for (std::uint32_t t = kPrompt; t < kPrompt + kSteps; ++t) out = rig.step(slot, stream, t);
  const std::uint32_t dim = stream.shape.dim;
  const double tolerance = output_tolerance(stream.attention_scale());
  std::size_t evicted = 0;
  for (std::uint32_t layer = 0; layer < stream.shape.layers; ++layer) {
    for (std::uint32_t h = 0; h < stream.q_heads(); ++h) {
      const std::uint32_t head = h / stream.shape.group;
      const DenseHead dense(rig, slot, stream, layer, head, kPrompt + kSteps);
      const auto kept = std::count(dense.retained.begin(), dense.retained.end(), true);
      evicted += dense.retained.size() - static_cast<std::size_t>(kept);
      const float* q = stream.q(layer, kPrompt + kSteps - 1) + h * dim;
      const std::vector<double> masked = masked_attention(dense, q, dim, stream.scale());
      const Split split = split_attention(dense, q, dim, stream.scale());
      for (std::uint32_t d = 0; d < dim; ++d) {
        INFO("layer " << layer << " query head " << h << " element " << d);
        const double got = static_cast<double>(out[(layer * stream.q_heads() + h) * dim + d]);
        REQUIRE(std::fabs(got - masked[d]) <= tolerance);
        const double identity = (1.0 - split.mass) * (split.retained[d] - split.evicted[d]);
        REQUIRE(std::fabs(got - split.full[d] - identity) <= tolerance);
      }
    }
  }
  const bool keeps_all = which < 2;
  REQUIRE((evicted == 0) == keeps_all);
}

// The recipe with a budget that nothing exceeds, and keep_all on the same pages.
void make_roomy(quire_policy& policy) {
  if (policy.kind == QUIRE_EVICT) policy.budget_tokens = kPrompt + kSteps;
  if (policy.byte_target > 0.0) policy.byte_target = 1.5;
  if (policy.budget_bytes > 0) policy.budget_bytes = 1u << 30;
  if (policy.kind == QUIRE_THRESHOLD && policy.byte_target <= 0.0 && policy.budget_bytes == 0)
    policy.alpha_high = policy.alpha_low = 0.0f;
}

TEST_CASE("with room for everything a recipe gives the bits of keep_all", "[policy][oracle]") {
  const std::size_t which = GENERATE(range(std::size_t{0}, std::size_t{10}));
  const bool from_prompt = GENERATE(true, false);
  NamedSpec named = small_recipes(oracle_shape())[which];
  make_roomy(named.spec.policy);
  // What every head has is more than any share of the first few tokens.
  if (named.spec.policy.byte_target > 0.0 && !from_prompt) return;
  RigSpec plain = named.spec;
  quire_policy keep = QUIRE_POLICY_INIT;
  REQUIRE(quire_recipe_get(QUIRE_RECIPE_KEEP_ALL, &keep, nullptr, nullptr) == QUIRE_OK);
  keep.sink_tokens = named.spec.policy.sink_tokens;
  keep.recent_window = named.spec.policy.recent_window;
  plain.policy = keep;
  Rng rng(7802);
  INFO(rng.describe() << " " << named.name << " with prompt " << from_prompt);
  const Stream stream(oracle_shape(), rng);
  Rig rig(named.spec);
  Rig all(plain);
  const std::int32_t slot = rig.open();
  REQUIRE(all.open() == slot);
  const std::uint32_t prompt = from_prompt ? kPrompt : 0;
  if (from_prompt) {
    rig.prompt(slot, stream, prompt);
    all.prompt(slot, stream, prompt);
  }
  for (std::uint32_t t = prompt; t < kPrompt + kSteps; ++t) {
    INFO("token " << t);
    const bool equal = rig.step(slot, stream, t) == all.step(slot, stream, t);
    REQUIRE(equal);
  }
  const quire_seq_info mine = rig.cache.info(slot);
  const quire_seq_info other = all.cache.info(slot);
  REQUIRE(mine.total_bytes == other.total_bytes);
  REQUIRE(mine.high_tokens == other.high_tokens);
  REQUIRE(mine.low_tokens == 0);
  for (std::uint32_t head = 0; head < stream.shape.kv_heads; ++head) {
    const DecodedHead a = rig.gather(slot, 1, head);
    const DecodedHead b = all.gather(slot, 1, head);
    REQUIRE(a.positions == b.positions);  // the same order, too
    const bool equal = a.keys == b.keys && a.values == b.values;
    REQUIRE(equal);
  }
}

// Without a prompt the controller has not run yet when the first token leaves a short ring.
TEST_CASE("a roomy byte budget drops nothing before the controller's first run",
          "[policy][oracle]") {
  RigSpec spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, oracle_shape());
  spec.set_ring(0, 4);
  spec.policy.budget_bytes = 1u << 30;
  spec.policy.alpha_high = 3.0f;
  spec.policy.alpha_low = 1.0f;
  Rng rng(7803);
  INFO(rng.describe());
  const Stream stream(oracle_shape(), rng);
  Rig rig(spec);
  const std::int32_t slot = rig.open();
  for (std::uint32_t t = 0; t < 16; ++t) rig.step(slot, stream, t);
  const quire_seq_info info = rig.cache.info(slot);
  REQUIRE(info.high_tokens == 12u * 4u);
  REQUIRE(info.low_tokens == 0);
}

}  // namespace
}  // namespace quire::test
