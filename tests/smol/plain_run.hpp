// A prompt through the dense parts and plain attention, and the same token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "exact_attention.hpp"
#include "forward.hpp"
#include "half.hpp"
#include "pool.hpp"

namespace smol::test {

// Of one layer, as attention sees them: q and k rotated, k and v rounded to fp16 when asked for.
struct LayerInputs {
  uint32_t layer = 0;
  const float* q = nullptr;  // [tokens, q_heads, head_dim]
  const float* k = nullptr;  // [tokens, kv_heads, head_dim]
  const float* v = nullptr;
};

using LayerHook = std::function<void(const LayerInputs&)>;

enum class Stored { kHalf, kFloat };

inline AttentionShape shape_of(const Config& c) { return {c.q_heads, c.kv_heads, c.head_dim}; }

inline void round_all(std::vector<float>& x) {
  for (float& value : x) value = round_to_half(value);
}

// Logits [tokens, vocabulary].
inline std::vector<float> run_plain(const Model& model,
                                    Pool& pool,
                                    const std::vector<int32_t>& tokens,
                                    const LayerHook& hook = nullptr,
                                    Stored stored = Stored::kHalf) {
  const Config& c = model.config;
  const auto rows = static_cast<uint32_t>(tokens.size());
  Forward forward(model, pool);
  std::vector<int32_t> positions(rows);
  for (uint32_t i = 0; i < rows; ++i) positions[i] = static_cast<int32_t>(i);
  std::vector<float> x(tokens.size() * c.hidden);
  std::vector<float> q(tokens.size() * c.q_size());
  std::vector<float> k(tokens.size() * c.kv_size());
  std::vector<float> v(k.size());
  std::vector<float> out(q.size());
  forward.embed(tokens.data(), rows, x.data());
  for (uint32_t layer = 0; layer < c.layers; ++layer) {
    forward.attention_inputs(layer, positions.data(), rows, x.data(), q.data(), k.data(), v.data());
    if (stored == Stored::kHalf) {
      round_all(k);
      round_all(v);
    }
    if (hook) hook({layer, q.data(), k.data(), v.data()});
    prompt_attention(pool, shape_of(c), q.data(), k.data(), v.data(), rows, out.data(), nullptr);
    forward.attention_output(layer, out.data(), rows, x.data());
    forward.feed_forward(layer, rows, x.data());
  }
  std::vector<float> logits(tokens.size() * c.vocabulary);
  forward.logits(x.data(), rows, logits.data());
  return logits;
}

// The same, one token a step, K and V kept in fp32.
inline std::vector<float> run_stepwise(const Model& model,
                                       Pool& pool,
                                       const std::vector<int32_t>& tokens) {
  const Config& c = model.config;
  Forward forward(model, pool);
  std::vector<std::vector<float>> k(c.layers, std::vector<float>(tokens.size() * c.kv_size()));
  std::vector<std::vector<float>> v = k;
  std::vector<float> x(c.hidden);
  std::vector<float> q(c.q_size());
  std::vector<float> out(c.q_size());
  std::vector<float> logits(tokens.size() * c.vocabulary);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const auto position = static_cast<int32_t>(t);
    forward.embed(&tokens[t], 1, x.data());
    for (uint32_t layer = 0; layer < c.layers; ++layer) {
      float* k_row = k[layer].data() + t * c.kv_size();
      float* v_row = v[layer].data() + t * c.kv_size();
      forward.attention_inputs(layer, &position, 1, x.data(), q.data(), k_row, v_row);
      decode_attention(shape_of(c),
                       q.data(),
                       k[layer].data(),
                       v[layer].data(),
                       static_cast<uint32_t>(t) + 1,
                       out.data());
      forward.attention_output(layer, out.data(), 1, x.data());
      forward.feed_forward(layer, 1, x.data());
    }
    forward.logits(x.data(), 1, logits.data() + t * c.vocabulary);
  }
  return logits;
}

}  // namespace smol::test
