// A Llama of a few hundred weights as a GGUF file in memory, to be broken in one place.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "gguf_builder.hpp"
#include "model.hpp"

namespace smol::test {

struct SmallLlama {
  Config config;
  std::map<std::string, uint32_t> counts;               // metadata
  std::map<std::string, std::vector<uint64_t>> shapes;  // of tensors, innermost first
  std::string architecture = "llama";
  float norm_eps = 1e-4f;
  std::string extra_key;  // a text value, when not empty
  std::string extra_text;
  uint32_t tokens = 0;  // length of tokenizer.ggml.tokens

  SmallLlama() {
    config.layers = 2;
    config.hidden = 12;
    config.q_heads = 3;
    config.kv_heads = 1;
    config.head_dim = 4;
    config.ffn = 10;
    config.vocabulary = 7;
    config.rope_base = 5000.0;
    config.norm_eps = 1e-4f;
    counts = {{"llama.block_count", 2},
              {"llama.embedding_length", 12},
              {"llama.attention.head_count", 3},
              {"llama.attention.head_count_kv", 1},
              {"llama.feed_forward_length", 10}};
    shapes = {{"token_embd.weight", {12, 7}}, {"output_norm.weight", {12}}};
    for (const std::string layer : {"blk.0.", "blk.1."}) {
      shapes[layer + "attn_norm.weight"] = {12};
      shapes[layer + "attn_q.weight"] = {12, 12};
      shapes[layer + "attn_k.weight"] = {12, 4};
      shapes[layer + "attn_v.weight"] = {12, 4};
      shapes[layer + "attn_output.weight"] = {12, 12};
      shapes[layer + "ffn_norm.weight"] = {12};
      shapes[layer + "ffn_gate.weight"] = {12, 10};
      shapes[layer + "ffn_up.weight"] = {12, 10};
      shapes[layer + "ffn_down.weight"] = {10, 12};
    }
  }

  // Element i of a tensor: its number among the tensors, then i.
  static float element(std::size_t tensor, std::size_t i) {
    return static_cast<float>(tensor * 1000 + i);
  }

  std::vector<uint8_t> build() const {
    GgufBuilder b;
    b.text("general.architecture", architecture);
    for (const auto& [key, count] : counts) b.value<uint32_t>(key, kTypeU32, count);
    b.value<float>("llama.rope.freq_base", kTypeF32, 5000.0f);
    b.value<float>("llama.attention.layer_norm_rms_epsilon", kTypeF32, norm_eps);
    if (!extra_key.empty()) b.text(extra_key, extra_text);
    if (tokens > 0) b.texts("tokenizer.ggml.tokens", std::vector<std::string>(tokens, "x"));
    std::size_t index = 0;
    for (const auto& [name, dims] : shapes) {
      std::size_t count = 1;
      for (const uint64_t dim : dims) count *= dim;
      std::vector<float> values(count);
      for (std::size_t i = 0; i < count; ++i) values[i] = element(index, i);
      b.tensor(name, dims, values);
      ++index;
    }
    return b.build();
  }

  std::string load(Model* model) const {
    GgufFile file;
    const std::string problem = file.parse(build(), "t.gguf");
    return problem.empty() ? load_model(file, model) : problem;
  }

  // The tensor as it was written.
  std::vector<float> values(const std::string& name) const {
    const auto found = shapes.find(name);
    const auto index = static_cast<std::size_t>(std::distance(shapes.begin(), found));
    std::size_t count = 1;
    for (const uint64_t dim : found->second) count *= dim;
    std::vector<float> out(count);
    for (std::size_t i = 0; i < count; ++i) out[i] = element(index, i);
    return out;
  }
};

}  // namespace smol::test
