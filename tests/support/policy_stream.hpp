// Keys, values and queries of a whole sequence, made before the cache sees any of it. Tokens differ
// in importance by several orders of magnitude and the topic of the queries changes, so that a
// policy has something to decide at every step.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "support/compare.hpp"
#include "support/gen.hpp"

namespace quire::test {

struct StreamShape {
  std::uint32_t layers = 2;
  std::uint32_t kv_heads = 2;
  std::uint32_t group = 2;
  std::uint32_t dim = 32;
  std::uint32_t tokens = 0;
  double spread = 1.5;              // standard deviation of a token's logit within a topic
  std::uint32_t topic_tokens = 40;  // queries before the topic changes
};

class Stream {
 public:
  Stream(const StreamShape& stream_shape, Rng& rng) : shape(stream_shape) {
    const std::size_t rows = std::size_t{shape.layers} * shape.tokens;
    k_.resize(rows * shape.kv_heads * shape.dim);
    q_.resize(rows * q_heads() * shape.dim);
    v_ = rng.normals(rows * shape.kv_heads * shape.dim);
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer)
      for (std::uint32_t head = 0; head < shape.kv_heads; ++head) fill_head(layer, head, rng);
  }

  // The same sequence with KV head i in the place of head order[i].
  Stream permuted(const std::vector<std::uint32_t>& order) const {
    Stream other = *this;
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
      for (std::uint32_t t = 0; t < shape.tokens; ++t) {
        for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
          std::copy_n(k(layer, t) + head * shape.dim,
                      shape.dim,
                      other.k_at(layer, t) + order[head] * shape.dim);
          std::copy_n(v(layer, t) + head * shape.dim,
                      shape.dim,
                      other.v_at(layer, t) + order[head] * shape.dim);
          const std::size_t width = std::size_t{shape.group} * shape.dim;
          std::copy_n(
              q(layer, t) + head * width, width, other.q_at(layer, t) + order[head] * width);
        }
      }
    }
    return other;
  }

  std::uint32_t q_heads() const { return shape.kv_heads * shape.group; }

  // Rows of one token: [kv_heads, dim], [q_heads, dim]. Tokens of a layer lie together.
  const float* k(std::uint32_t layer, std::uint32_t token) const {
    return k_.data() + row(layer, token) * shape.kv_heads * shape.dim;
  }
  const float* v(std::uint32_t layer, std::uint32_t token) const {
    return v_.data() + row(layer, token) * shape.kv_heads * shape.dim;
  }
  const float* q(std::uint32_t layer, std::uint32_t token) const {
    return q_.data() + row(layer, token) * q_heads() * shape.dim;
  }
  float* k_at(std::uint32_t layer, std::uint32_t token) {
    return k_.data() + row(layer, token) * shape.kv_heads * shape.dim;
  }
  float* v_at(std::uint32_t layer, std::uint32_t token) {
    return v_.data() + row(layer, token) * shape.kv_heads * shape.dim;
  }
  float* q_at(std::uint32_t layer, std::uint32_t token) {
    return q_.data() + row(layer, token) * q_heads() * shape.dim;
  }

  double scale() const { return 1.0 / std::sqrt(static_cast<double>(shape.dim)); }

  // Norms for the tolerances of compare.hpp; decoded keys are at most a tenth longer.
  AttentionScale attention_scale() const {
    AttentionScale s;
    for (std::size_t i = 0; i < k_.size(); i += shape.dim)
      s.k_norm = std::max(s.k_norm, 1.1 * norm(k_.data() + i, shape.dim));
    for (std::size_t i = 0; i < q_.size(); i += shape.dim)
      s.q_norm = std::max(s.q_norm, norm(q_.data() + i, shape.dim));
    s.v_max = 1.1 * largest(v_.data(), static_cast<std::int64_t>(v_.size()));
    s.scale = scale();
    s.dim = shape.dim;
    s.n = shape.tokens;
    return s;
  }

  StreamShape shape;

 private:
  std::size_t row(std::uint32_t layer, std::uint32_t token) const {
    return std::size_t{layer} * shape.tokens + token;
  }

  // Three orthogonal topics; a key's part along a topic is its logit when the topic is asked for.
  void fill_head(std::uint32_t layer, std::uint32_t head, Rng& rng) {
    constexpr std::uint32_t kTopics = 3;
    const double root = std::sqrt(static_cast<double>(shape.dim));
    for (std::uint32_t t = 0; t < shape.tokens; ++t) {
      float* key = k_at(layer, t) + head * shape.dim;
      for (std::uint32_t d = 0; d < shape.dim; ++d) key[d] = 0.5f * rng.normal();
      for (std::uint32_t topic = 0; topic < kTopics; ++topic)
        key[(topic * 5 + head) % shape.dim] = static_cast<float>(shape.spread) * rng.normal();
      const std::uint32_t asked = (t / shape.topic_tokens) % kTopics;
      for (std::uint32_t g = 0; g < shape.group; ++g) {
        float* query = q_at(layer, t) + (std::size_t{head} * shape.group + g) * shape.dim;
        for (std::uint32_t d = 0; d < shape.dim; ++d) query[d] = 0.6f * rng.normal();
        query[(asked * 5 + head) % shape.dim] +=
            static_cast<float>(root) * (g % 2 == 0 ? 1.0f : 0.7f);
      }
    }
  }

  std::vector<float> k_;
  std::vector<float> v_;
  std::vector<float> q_;
};

}  // namespace quire::test
