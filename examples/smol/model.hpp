// A small Llama: shapes and fp32 weights, from a GGUF file or made up.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gguf.hpp"

namespace smol {

struct Config {
  uint32_t layers = 0;
  uint32_t hidden = 0;
  uint32_t q_heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t ffn = 0;
  uint32_t vocabulary = 0;
  double rope_base = 10000.0;
  float norm_eps = 1e-5f;

  uint32_t q_size() const { return q_heads * head_dim; }
  uint32_t kv_size() const { return kv_heads * head_dim; }
  uint32_t qkv_size() const { return q_size() + 2 * kv_size(); }
};

// Matrices are [out][in], row-major.
struct LayerWeights {
  std::vector<float> attention_norm;  // [hidden]
  std::vector<float> qkv;             // [q_size + 2 kv_size][hidden]
  std::vector<float> output;          // [hidden][q_size]
  std::vector<float> ffn_norm;        // [hidden]
  std::vector<float> gate_up;         // [2 ffn][hidden]
  std::vector<float> down;            // [hidden][ffn]
};

struct Model {
  std::string name;
  Config config;
  std::vector<float> embedding;  // [vocabulary][hidden], also the output matrix when that is empty
  std::vector<float> output;     // [vocabulary][hidden] or empty
  std::vector<float> output_norm;
  std::vector<LayerWeights> layers;

  const std::vector<float>& output_matrix() const { return output.empty() ? embedding : output; }
};

// Empty string, or what is wrong: another architecture, a missing tensor, a wrong shape.
std::string load_model(const GgufFile& file, Model* out);

// A random model whose attention is sharp, not uniform; the same for the same seed everywhere.
Model synthetic_model(uint64_t seed);
Config synthetic_config();

}  // namespace smol
