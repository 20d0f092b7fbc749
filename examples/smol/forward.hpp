// The dense parts of the forward pass, on rows: tokens of a prompt, or one token of each of many
// sequences that run side by side. Attention itself is somebody else's.
#pragma once

#include <cstdint>
#include <vector>

#include "model.hpp"
#include "pool.hpp"

namespace smol {

// Buffers that grow to the largest call and are reused.
struct Scratch {
  std::vector<float> normed;
  std::vector<float> qkv;
  std::vector<float> gate_up;
  std::vector<float> gated;
};

class Forward {
 public:
  // Both must outlive it. Matrix products are dealt out over the pool.
  Forward(const Model& model, Pool& pool);

  // x: [rows][hidden].
  void embed(const int32_t* tokens, uint32_t rows, float* x) const;

  // q: [rows][q_heads][head_dim], k and v: [rows][kv_heads][head_dim], q and k rotated.
  void attention_inputs(uint32_t layer,
                        const int32_t* positions,
                        uint32_t rows,
                        const float* x,
                        float* q,
                        float* k,
                        float* v);

  // x += output matrix times attention; attention: [rows][q_heads][head_dim].
  void attention_output(uint32_t layer, const float* attention, uint32_t rows, float* x) const;

  void feed_forward(uint32_t layer, uint32_t rows, float* x);

  // logits: [rows][vocabulary].
  void logits(const float* x, uint32_t rows, float* logits);

  const Config& config() const { return model_.config; }
  Pool& pool() { return pool_; }

 private:
  void normalise(const float* x, const std::vector<float>& weight, uint32_t rows);
  void rotate(const int32_t* positions, uint32_t rows, uint32_t heads, float* x) const;

  void multiply(const float* x,
                uint32_t rows,
                const std::vector<float>& weight,
                uint32_t out,
                uint32_t in,
                bool add,
                float* y) const;

  const Model& model_;
  Pool& pool_;
  std::vector<double> frequencies_;
  Scratch scratch_;
};

}  // namespace smol
