// Oracle: numbers of an independent numpy implementation of the same model
// (tests/golden/smollm2_reference.txt). Needs the model file: QUIRE_SMOL_MODEL gives its path.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "golden.hpp"
#include "plain_run.hpp"
#include "support/catch.hpp"
#include "tokenizer.hpp"

namespace smol::test {
namespace {

// What is asked of the engine, next to fp32 arithmetic in another order over 30 layers.
constexpr double kLogitTolerance = 0.01;
constexpr double kOrderMatters = 0.02;     // neighbours closer than that may change places
constexpr double kFirstLayerInput = 1e-3;  // q, k, v of layer 0
constexpr double kLastLayerInput = 5e-3;   // of layer 29
constexpr int kSkipped = 77;               // what ctest counts as skipped

// The file, or the end of the test program: a test without its model must not look passed.
GgufFile open_model() {
  const char* path = std::getenv("QUIRE_SMOL_MODEL");
  if (path == nullptr || *path == '\0') {
    std::fputs("skipped: QUIRE_SMOL_MODEL does not name the model file\n", stderr);
    std::exit(kSkipped);
  }
  GgufFile file;
  const std::string problem = file.load(path);
  INFO(problem);
  REQUIRE(problem.empty());
  return file;
}

std::vector<GoldenPrompt> golden_prompts() {
  std::vector<GoldenPrompt> prompts =
      read_golden(std::string(QUIRE_GOLDEN_DIR) + "/smollm2_reference.txt");
  REQUIRE(prompts.size() == 4);
  return prompts;
}

// The last token's rows of the layers that the golden file covers.
struct Rows {
  uint32_t layer = 0;
  std::vector<float> q, k, v;
};

void check_logits(const GoldenPrompt& prompt,
                  const std::vector<float>& logits,
                  uint32_t vocabulary,
                  double& worst) {
  for (std::size_t p = 0; p < prompt.tokens.size(); ++p) {
    const float* row = logits.data() + p * vocabulary;
    const std::vector<GoldenLogit>& top = prompt.top[p];
    for (std::size_t i = 0; i < top.size(); ++i) {
      const double mine = static_cast<double>(row[top[i].id]);
      worst = std::max(worst, std::fabs(mine - top[i].logit));
      INFO("position " << p << ", id " << top[i].id << ": " << mine << " for " << top[i].logit);
      CHECK(std::fabs(mine - top[i].logit) <= kLogitTolerance);
      if (i + 1 < top.size() && top[i].logit - top[i + 1].logit > kOrderMatters)
        CHECK(row[top[i].id] > row[top[i + 1].id]);
    }
    // Nothing outside the five may be clearly above the fifth.
    const auto above = std::count_if(row, row + vocabulary, [&](float l) {
      return static_cast<double>(l) > top.back().logit + kOrderMatters;
    });
    CHECK(above <= 4);
  }
}

void check_first(const GoldenPrompt& prompt,
                 const std::vector<Rows>& rows,
                 uint32_t head_dim,
                 double& worst) {
  for (const GoldenFirst& f : prompt.first) {
    const auto found =
        std::find_if(rows.begin(), rows.end(), [&](const Rows& r) { return r.layer == f.layer; });
    REQUIRE(found != rows.end());
    const std::vector<float>& all = f.what == 'q' ? found->q : f.what == 'k' ? found->k : found->v;
    for (std::size_t i = 0; i < 4; ++i) {
      const double mine = static_cast<double>(all[std::size_t{f.head} * head_dim + i]);
      worst = std::max(worst, std::fabs(mine - f.values[i]));
      INFO("layer " << f.layer << " " << f.what << " head " << f.head << ": " << mine << " for "
                    << f.values[i]);
      CHECK(std::fabs(mine - f.values[i]) <= (f.layer == 0 ? kFirstLayerInput : kLastLayerInput));
    }
  }
}

// Logits, and into `kept` the last token's rows of the first and the last layer.
std::vector<float> run_and_keep(const Model& model,
                                Pool& pool,
                                const std::vector<int32_t>& tokens,
                                std::vector<Rows>& kept) {
  const Config& c = model.config;
  return run_plain(model, pool, tokens, [&](const LayerInputs& in) {
    if (in.layer != 0 && in.layer != c.layers - 1) return;
    const std::size_t last = tokens.size() - 1;
    const float* q = in.q + last * c.q_size();
    const float* k = in.k + last * c.kv_size();
    const float* v = in.v + last * c.kv_size();
    kept.push_back({in.layer, {q, q + c.q_size()}, {k, k + c.kv_size()}, {v, v + c.kv_size()}});
  });
}

}  // namespace

TEST_CASE("token ids equal the reference and decode to the text", "[smol][model][reference]") {
  Tokenizer tokenizer;
  REQUIRE(tokenizer.load(open_model()) == "");
  for (const GoldenPrompt& prompt : golden_prompts()) {
    INFO(prompt.text);
    CHECK(tokenizer.encode(prompt.text) == prompt.tokens);
    CHECK(tokenizer.decode(prompt.tokens) == prompt.text);
  }
}

TEST_CASE("the model's shapes are SmolLM2-135M's", "[smol][model][reference]") {
  Model model;
  REQUIRE(load_model(open_model(), &model) == "");
  const Config& c = model.config;
  CHECK(c.layers == 30);
  CHECK(c.hidden == 576);
  CHECK(c.q_heads == 9);
  CHECK(c.kv_heads == 3);
  CHECK(c.head_dim == 64);
  CHECK(c.ffn == 1536);
  CHECK(c.vocabulary == 49152);
  CHECK(c.rope_base == 100000.0);
  CHECK(c.norm_eps == 1e-5f);
  CHECK(model.output.empty());
}

TEST_CASE("logits and q, k, v agree with the reference", "[smol][model][reference]") {
  Model model;
  REQUIRE(load_model(open_model(), &model) == "");
  Pool pool(1);
  double worst_logit = 0.0;
  double worst_input = 0.0;
  for (const GoldenPrompt& prompt : golden_prompts()) {
    INFO(prompt.text);
    std::vector<Rows> kept;
    const std::vector<float> logits = run_and_keep(model, pool, prompt.tokens, kept);
    check_logits(prompt, logits, model.config.vocabulary, worst_logit);
    check_first(prompt, kept, model.config.head_dim, worst_input);
  }
  std::printf("largest difference: logits %.5f, q, k, v %.5f\n", worst_logit, worst_input);
}

}  // namespace smol::test
