// Oracle: the same formulas in double precision, with a bound of fp32's error on every number
// (naive_forward.hpp); one token a step against the whole prompt at once.
#include "forward.hpp"

#include <algorithm>
#include <cmath>

#include "naive_forward.hpp"
#include "plain_run.hpp"
#include "support/catch.hpp"
#include "support/gen.hpp"

namespace smol::test {
namespace {

// Norm weights other than 1 and an output matrix of its own, so that a forgotten one shows.
Model test_model() {
  Model model = synthetic_model(7);
  quire::test::Rng rng(8);
  const Config& c = model.config;
  model.output = rng.normals(std::size_t{c.vocabulary} * c.hidden, 0.1f);
  model.output_norm = rng.normals(c.hidden, 0.3f, 1.0f);
  for (LayerWeights& w : model.layers) {
    w.attention_norm = rng.normals(c.hidden, 0.3f, 1.0f);
    w.ffn_norm = rng.normals(c.hidden, 0.3f, 1.0f);
  }
  return model;
}

void require_within(const float* actual, const Row& expected, const char* what) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double off = std::fabs(static_cast<double>(actual[i]) - expected[i].value);
    INFO(what << " " << i << ": " << actual[i] << " for " << expected[i].value << ", allowed "
              << expected[i].error);
    REQUIRE(off <= expected[i].error);
  }
}

// Positions that are no run and reach the end of the model's context.
std::vector<int32_t> scattered_positions(uint32_t rows) {
  std::vector<int32_t> positions(rows);
  for (uint32_t i = 0; i < rows; ++i)
    positions[i] = static_cast<int32_t>(i == 0 ? 0 : (i * 2654435761u) % 8192);
  if (rows > 1) positions[1] = 8191;
  return positions;
}

// All blocks of one layer on `rows` rows; `forward` may have served other calls before.
void check_layer(const Model& model, Forward& forward, uint32_t layer, uint32_t rows) {
  const Config& c = model.config;
  quire::test::Rng rng(100 + rows);
  INFO(rng.describe() << ", " << rows << " rows, layer " << layer);
  // Rows so small that the norm's epsilon counts as much as they do, in turn with large ones.
  const float size = rows % 2 == 0 ? 0.003f : 2.0f;
  const std::vector<float> x = rng.normals(std::size_t{rows} * c.hidden, size);
  const std::vector<float> attention = rng.normals(std::size_t{rows} * c.q_size());
  const std::vector<int32_t> positions = scattered_positions(rows);
  std::vector<float> q(std::size_t{rows} * c.q_size());
  std::vector<float> k(std::size_t{rows} * c.kv_size());
  std::vector<float> v(k.size());
  forward.attention_inputs(layer, positions.data(), rows, x.data(), q.data(), k.data(), v.data());
  std::vector<float> after_attention = x;
  forward.attention_output(layer, attention.data(), rows, after_attention.data());
  std::vector<float> after_ffn = x;
  forward.feed_forward(layer, rows, after_ffn.data());
  std::vector<float> logits(std::size_t{rows} * c.vocabulary);
  forward.logits(x.data(), rows, logits.data());
  for (std::size_t r = 0; r < rows; ++r) {
    const Row row = exact_row(x.data() + r * c.hidden, c.hidden);
    const NaiveInputs in = naive_attention_inputs(model, layer, positions[r], row);
    require_within(q.data() + r * c.q_size(), in.q, "q");
    require_within(k.data() + r * c.kv_size(), in.k, "k");
    require_within(v.data() + r * c.kv_size(), in.v, "v");
    const Row seen = exact_row(attention.data() + r * c.q_size(), c.q_size());
    require_within(after_attention.data() + r * c.hidden,
                   naive_attention_output(model, layer, seen, row),
                   "attention output");
    require_within(
        after_ffn.data() + r * c.hidden, naive_feed_forward(model, layer, row), "feed forward");
    require_within(logits.data() + r * c.vocabulary, naive_logits(model, row), "logit");
  }
}

}  // namespace

TEST_CASE("each dense block agrees with its formula", "[smol][forward]") {
  const Model model = test_model();
  for (const uint32_t threads : {1u, 2u, 3u}) {
    Pool pool(threads);
    Forward forward(model, pool);
    // Growing and shrinking batches: scratch of a larger call must not shine through.
    for (const uint32_t rows : {1u, 2u, 24u, 3u, 1u}) check_layer(model, forward, rows % 4, rows);
  }
}

TEST_CASE("embedding copies the rows of the tokens", "[smol][forward]") {
  const Model model = test_model();
  Pool pool(1);
  const Forward forward(model, pool);
  const std::vector<int32_t> tokens = {0, 511, 7, 7};
  const std::size_t hidden = model.config.hidden;
  std::vector<float> x(tokens.size() * hidden);
  forward.embed(tokens.data(), 4, x.data());
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    const auto row = model.embedding.begin() + static_cast<std::ptrdiff_t>(hidden) * tokens[r];
    CHECK(std::equal(row, row + static_cast<std::ptrdiff_t>(hidden), x.data() + r * hidden));
  }
}

TEST_CASE("position zero turns nothing and a turn keeps lengths", "[smol][forward]") {
  const Model model = test_model();
  const Config& c = model.config;
  Pool pool(1);
  Forward forward(model, pool);
  quire::test::Rng rng(9);
  INFO(rng.describe());
  const std::vector<float> one = rng.normals(c.hidden);
  std::vector<float> x = one;
  x.insert(x.end(), one.begin(), one.end());
  const std::vector<int32_t> positions = {0, 4711};
  std::vector<float> q(std::size_t{2} * c.q_size());
  std::vector<float> k(std::size_t{2} * c.kv_size());
  std::vector<float> v(k.size());
  forward.attention_inputs(0, positions.data(), 2, x.data(), q.data(), k.data(), v.data());
  const Row h =
      naive_norm(exact_row(one.data(), c.hidden), model.layers[0].attention_norm, c.norm_eps);
  require_within(q.data(), naive_product(model.layers[0].qkv, 0, c.q_size(), h), "q");
  for (std::size_t i = 0; i < c.q_size(); i += 2) {
    const double still = std::hypot(static_cast<double>(q[i]), static_cast<double>(q[i + 1]));
    const double turned = std::hypot(static_cast<double>(q[c.q_size() + i]),
                                     static_cast<double>(q[c.q_size() + i + 1]));
    // Both rows went through the same product; sine, cosine and three operations round.
    REQUIRE(std::fabs(still - turned) <= kSlack * quire::test::kFloatEps * still);
  }
  CHECK(std::equal(v.begin(), v.begin() + c.kv_size(), v.begin() + c.kv_size()));
}

TEST_CASE("token by token gives the logits of the whole prompt", "[smol][forward]") {
  const Model model = synthetic_model(3);
  const Config& c = model.config;
  quire::test::Rng rng(10);
  INFO(rng.describe());
  std::vector<int32_t> tokens(200);
  for (int32_t& t : tokens) t = static_cast<int32_t>(rng.below(c.vocabulary));
  Pool pool(2);
  const std::vector<float> at_once = run_plain(model, pool, tokens, nullptr, Stored::kFloat);
  const std::vector<float> stepwise = run_stepwise(model, pool, tokens);
  double largest = 0.0;
  double off = 0.0;
  for (std::size_t i = 0; i < at_once.size(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(at_once[i])));
    off = std::max(off,
                   std::fabs(static_cast<double>(at_once[i]) - static_cast<double>(stepwise[i])));
  }
  // The two differ in the order of sums only: every product and sum of a layer rounds once.
  const double roundings = static_cast<double>(
      c.layers * (2 * c.hidden + c.q_size() + c.ffn + c.head_dim + tokens.size()));
  INFO("off " << off << " of " << largest);
  CHECK(off <= roundings * quire::test::kFloatEps * largest);
  CHECK(largest > 0.0);
}

}  // namespace smol::test
