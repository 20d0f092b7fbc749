// Oracle: the numbers the test wrote into the file; for a file that does not fit, a message that
// names what is wrong. The made-up model: two runs of it, and the shape of its attention.
#include "model.hpp"

#include <cmath>
#include <string>

#include "plain_run.hpp"
#include "pool.hpp"
#include "small_llama.hpp"
#include "support/catch.hpp"
#include "support/gen.hpp"

namespace smol::test {
namespace {

std::vector<float> joined(const SmallLlama& llama, const std::vector<std::string>& names) {
  std::vector<float> out;
  for (const std::string& name : names) {
    const std::vector<float> part = llama.values(name);
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

void require_refused(const SmallLlama& llama, const std::string& part) {
  Model model;
  model.name = "untouched";
  const std::string message = llama.load(&model);
  INFO(message);
  REQUIRE(message.rfind("t.gguf: ", 0) == 0);
  REQUIRE(message.find(part) != std::string::npos);
  REQUIRE(model.name == "untouched");
}

bool same_weights(const Model& a, const Model& b) {
  bool same = a.embedding == b.embedding && a.layers.size() == b.layers.size();
  for (std::size_t i = 0; same && i < a.layers.size(); ++i) {
    const LayerWeights& x = a.layers[i];
    const LayerWeights& y = b.layers[i];
    same = x.qkv == y.qkv && x.output == y.output && x.gate_up == y.gate_up && x.down == y.down;
  }
  return same;
}

// Standard deviation of the attention logits of the last token, over keys, per layer: the mean
// over heads.
std::vector<double> logit_spread(const Model& model, const std::vector<int32_t>& tokens) {
  const Config& c = model.config;
  std::vector<double> spread;
  Pool pool(1);
  run_plain(model, pool, tokens, [&](const LayerInputs& in) {
    double total = 0.0;
    for (uint32_t h = 0; h < c.q_heads; ++h) {
      const float* q = in.q + ((tokens.size() - 1) * c.q_heads + h) * c.head_dim;
      double sum = 0.0;
      double squares = 0.0;
      for (std::size_t t = 0; t < tokens.size(); ++t) {
        const float* k = in.k + (t * c.kv_heads + h * c.kv_heads / c.q_heads) * c.head_dim;
        double dot = 0.0;
        for (uint32_t d = 0; d < c.head_dim; ++d)
          dot += static_cast<double>(q[d]) * static_cast<double>(k[d]);
        dot /= std::sqrt(static_cast<double>(c.head_dim));
        sum += dot;
        squares += dot * dot;
      }
      const double n = static_cast<double>(tokens.size());
      total += std::sqrt(squares / n - sum / n * sum / n);
    }
    spread.push_back(total / c.q_heads);
  });
  return spread;
}

}  // namespace

TEST_CASE("shapes come from the metadata", "[smol][model]") {
  Model model;
  REQUIRE(SmallLlama().load(&model) == "");
  const Config expected = SmallLlama().config;
  CHECK(model.config.layers == expected.layers);
  CHECK(model.config.hidden == expected.hidden);
  CHECK(model.config.q_heads == expected.q_heads);
  CHECK(model.config.kv_heads == expected.kv_heads);
  CHECK(model.config.head_dim == expected.head_dim);
  CHECK(model.config.ffn == expected.ffn);
  CHECK(model.config.vocabulary == expected.vocabulary);
  CHECK(model.config.rope_base == expected.rope_base);
  CHECK(model.config.norm_eps == expected.norm_eps);
  CHECK(model.name == "t.gguf");
}

TEST_CASE("weights lie row by row, fused in the order q, k, v and gate, up", "[smol][model]") {
  const SmallLlama llama;
  Model model;
  REQUIRE(llama.load(&model) == "");
  CHECK(model.embedding == llama.values("token_embd.weight"));
  CHECK(model.output_norm == llama.values("output_norm.weight"));
  CHECK(&model.output_matrix() == &model.embedding);
  REQUIRE(model.layers.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string p = "blk." + std::to_string(i) + ".";
    const LayerWeights& w = model.layers[i];
    CHECK(w.attention_norm == llama.values(p + "attn_norm.weight"));
    CHECK(w.qkv == joined(llama, {p + "attn_q.weight", p + "attn_k.weight", p + "attn_v.weight"}));
    CHECK(w.output == llama.values(p + "attn_output.weight"));
    CHECK(w.ffn_norm == llama.values(p + "ffn_norm.weight"));
    CHECK(w.gate_up == joined(llama, {p + "ffn_gate.weight", p + "ffn_up.weight"}));
    CHECK(w.down == llama.values(p + "ffn_down.weight"));
  }
}

TEST_CASE("an output matrix of its own is used", "[smol][model]") {
  SmallLlama llama;
  llama.shapes["output.weight"] = {12, 7};
  Model model;
  REQUIRE(llama.load(&model) == "");
  CHECK(model.output_matrix() == llama.values("output.weight"));
  CHECK(model.embedding == llama.values("token_embd.weight"));
}

TEST_CASE("each missing tensor is named", "[smol][model][bad]") {
  for (const auto& [name, dims] : SmallLlama().shapes) {
    SmallLlama llama;
    llama.shapes.erase(name);
    require_refused(llama, "tensor '" + name + "' is missing");
  }
}

TEST_CASE("each tensor of a wrong shape is named", "[smol][model][bad]") {
  for (const auto& [name, dims] : SmallLlama().shapes) {
    if (name == "token_embd.weight") continue;  // its rows are the vocabulary
    SmallLlama llama;
    llama.shapes[name].back() += 1;
    require_refused(llama, "tensor '" + name + "' is not [");
    llama = SmallLlama();
    llama.shapes[name].front() -= 1;
    require_refused(llama, "tensor '" + name + "' is not [");
    llama = SmallLlama();
    llama.shapes[name].resize(3, 2);
    require_refused(llama, "tensor '" + name + "' is not [");
  }
  SmallLlama llama;
  llama.shapes["token_embd.weight"] = {11, 7};
  require_refused(llama, "tensor 'token_embd.weight' is not [7, 12]");
}

TEST_CASE("each missing or impossible count is named", "[smol][model][bad]") {
  for (const auto& [key, count] : SmallLlama().counts) {
    SmallLlama llama;
    llama.counts.erase(key);
    require_refused(llama, "'" + key + "' is missing");
    for (const uint32_t bad : {0u, 0xffffffffu}) {
      llama = SmallLlama();
      llama.counts[key] = bad;
      require_refused(llama, "'" + key + "' is " + std::to_string(bad));
    }
  }
}

TEST_CASE("heads that do not divide are refused", "[smol][model][bad]") {
  SmallLlama llama;
  llama.counts["llama.attention.head_count"] = 5;
  require_refused(llama, "head counts do not divide");
  llama = SmallLlama();
  llama.counts["llama.attention.head_count_kv"] = 2;
  require_refused(llama, "head counts do not divide");
  llama = SmallLlama();
  llama.counts["llama.attention.head_count"] = 4;
  require_refused(llama, "an odd head dim");
  llama = SmallLlama();
  llama.counts["llama.rope.dimension_count"] = 2;
  require_refused(llama, "partial rotary");
}

TEST_CASE("another architecture is named, however odd", "[smol][model][bad]") {
  SmallLlama llama;
  llama.architecture = "gpt2";
  require_refused(llama, "architecture 'gpt2', but this engine runs 'llama' only");
  llama.architecture = std::string(5000, '\n');
  require_refused(llama, "architecture '????");
}

TEST_CASE("what would silently compute something else is refused", "[smol][model][bad]") {
  SmallLlama llama;
  llama.extra_key = "llama.rope.scaling.type";
  llama.extra_text = "linear";
  require_refused(llama, "scaled rotary embeddings");
  llama.extra_text = "none";
  Model model;
  CHECK(llama.load(&model) == "");
  llama = SmallLlama();
  llama.shapes["rope_freqs.weight"] = {2};
  require_refused(llama, "scaled rotary embeddings");
  llama = SmallLlama();
  llama.norm_eps = NAN;
  require_refused(llama, "layer_norm_rms_epsilon' is not a positive number");
}

TEST_CASE("more tokens than embedding rows are refused", "[smol][model][bad]") {
  SmallLlama llama;
  llama.tokens = 8;
  require_refused(llama, "8 tokens, but only 7 rows");
  llama.tokens = 7;
  Model model;
  CHECK(llama.load(&model) == "");
}

TEST_CASE("the made-up model depends on its seed alone", "[smol][model]") {
  const Model a = synthetic_model(1);
  CHECK(same_weights(a, synthetic_model(1)));
  CHECK_FALSE(same_weights(a, synthetic_model(2)));
  CHECK(a.layers.size() == a.config.layers);
  CHECK(a.embedding.size() == std::size_t{a.config.vocabulary} * a.config.hidden);
}

TEST_CASE("the made-up model attends sharply, not evenly", "[smol][model]") {
  const Model model = synthetic_model(1);
  quire::test::Rng rng(5);
  INFO(rng.describe());
  std::vector<int32_t> tokens(256);
  for (int32_t& t : tokens) t = static_cast<int32_t>(rng.below(model.config.vocabulary));
  const std::vector<double> spread = logit_spread(model, tokens);
  REQUIRE(spread.size() == model.config.layers);
  for (const double s : spread) {
    // One unit is still nearly even, ten would be all on one key.
    CHECK(s > 1.5);
    CHECK(s < 5.0);
  }
}

}  // namespace smol::test
