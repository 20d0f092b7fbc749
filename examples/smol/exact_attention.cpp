#include "exact_attention.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>

namespace smol {
namespace {

constexpr uint32_t kRowBlock = 128;

// Softmax of one row of `visible` logits; the rest of the row becomes 0. Returns the LSE.
float softmax_row(float* row, uint32_t visible, uint32_t width) {
  const float largest = *std::max_element(row, row + visible);
  double sum = 0.0;
  for (uint32_t i = 0; i < visible; ++i) {
    row[i] = std::exp(row[i] - largest);
    sum += static_cast<double>(row[i]);
  }
  const auto factor = static_cast<float>(1.0 / sum);
  for (uint32_t i = 0; i < visible; ++i) row[i] *= factor;
  std::fill(row + visible, row + width, 0.0f);
  return largest + static_cast<float>(std::log(sum));
}

}  // namespace

void prompt_attention(Pool& pool,
                      const AttentionShape& shape,
                      const float* q,
                      const float* k,
                      const float* v,
                      uint32_t tokens,
                      float* out,
                      float* lse) {
  const auto dim = static_cast<int>(shape.head_dim);
  const auto q_stride = static_cast<int>(shape.q_heads * shape.head_dim);
  const auto kv_stride = static_cast<int>(shape.kv_heads * shape.head_dim);
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  pool.run(shape.q_heads, [&](uint32_t h) {
    std::vector<float> logits(static_cast<std::size_t>(kRowBlock) * tokens);
    const uint32_t kv_head = h / (shape.q_heads / shape.kv_heads);
    for (uint32_t first = 0; first < tokens; first += kRowBlock) {
      const uint32_t rows = std::min(kRowBlock, tokens - first);
      const uint32_t keys = first + rows;  // what the last row of the block sees
      const float* q_block =
          q + (static_cast<std::size_t>(first) * shape.q_heads + h) * shape.head_dim;
      cblas_sgemm(CblasRowMajor,
                  CblasNoTrans,
                  CblasTrans,
                  static_cast<int>(rows),
                  static_cast<int>(keys),
                  dim,
                  scale,
                  q_block,
                  q_stride,
                  k + kv_head * shape.head_dim,
                  kv_stride,
                  0.0f,
                  logits.data(),
                  static_cast<int>(keys));
      for (uint32_t r = 0; r < rows; ++r) {
        const float row_lse =
            softmax_row(logits.data() + static_cast<std::size_t>(r) * keys, first + r + 1, keys);
        if (lse != nullptr) lse[static_cast<std::size_t>(first + r) * shape.q_heads + h] = row_lse;
      }
      float* out_block =
          out + (static_cast<std::size_t>(first) * shape.q_heads + h) * shape.head_dim;
      cblas_sgemm(CblasRowMajor,
                  CblasNoTrans,
                  CblasNoTrans,
                  static_cast<int>(rows),
                  dim,
                  static_cast<int>(keys),
                  1.0f,
                  logits.data(),
                  static_cast<int>(keys),
                  v + kv_head * shape.head_dim,
                  kv_stride,
                  0.0f,
                  out_block,
                  q_stride);
    }
  });
}

void decode_attention(const AttentionShape& shape,
                      const float* q,
                      const float* k,
                      const float* v,
                      uint32_t tokens,
                      float* out) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  const std::size_t kv_stride = static_cast<std::size_t>(shape.kv_heads) * shape.head_dim;
  std::vector<float> logits(tokens);
  for (uint32_t h = 0; h < shape.q_heads; ++h) {
    const std::size_t kv_offset =
        static_cast<std::size_t>(h / (shape.q_heads / shape.kv_heads)) * shape.head_dim;
    const float* query = q + static_cast<std::size_t>(h) * shape.head_dim;
    float* result = out + static_cast<std::size_t>(h) * shape.head_dim;
    for (uint32_t t = 0; t < tokens; ++t) {
      const float* key = k + t * kv_stride + kv_offset;
      double dot = 0.0;
      for (uint32_t d = 0; d < shape.head_dim; ++d)
        dot += static_cast<double>(query[d]) * static_cast<double>(key[d]);
      logits[t] = scale * static_cast<float>(dot);
    }
    softmax_row(logits.data(), tokens, tokens);
    std::fill(result, result + shape.head_dim, 0.0f);
    for (uint32_t t = 0; t < tokens; ++t) {
      const float* value = v + t * kv_stride + kv_offset;
      for (uint32_t d = 0; d < shape.head_dim; ++d) result[d] += logits[t] * value[d];
    }
  }
}

void naive_attention(const AttentionShape& shape,
                     const float* q,
                     const float* k,
                     const float* v,
                     uint32_t tokens,
                     uint32_t keys,
                     double* out,
                     double* lse) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  for (uint32_t r = 0; r < tokens; ++r) {
    for (uint32_t h = 0; h < shape.q_heads; ++h) {
      const std::size_t row = static_cast<std::size_t>(r) * shape.q_heads + h;
      const uint32_t kv_head = h / (shape.q_heads / shape.kv_heads);
      const uint32_t visible = keys - tokens + r + 1;
      std::vector<double> weight(visible);
      double largest = -1e300;
      for (uint32_t t = 0; t < visible; ++t) {
        const std::size_t key =
            (static_cast<std::size_t>(t) * shape.kv_heads + kv_head) * shape.head_dim;
        double dot = 0.0;
        for (uint32_t d = 0; d < shape.head_dim; ++d) {
          dot += static_cast<double>(q[row * shape.head_dim + d]) * static_cast<double>(k[key + d]);
        }
        weight[t] = dot * scale;
        largest = std::max(largest, weight[t]);
      }
      double sum = 0.0;
      for (double& w : weight) sum += w = std::exp(w - largest);
      for (uint32_t d = 0; d < shape.head_dim; ++d) {
        double value = 0.0;
        for (uint32_t t = 0; t < visible; ++t) {
          const std::size_t key =
              (static_cast<std::size_t>(t) * shape.kv_heads + kv_head) * shape.head_dim;
          value += weight[t] * static_cast<double>(v[key + d]);
        }
        out[row * shape.head_dim + d] = value / sum;
      }
      if (lse != nullptr) lse[row] = largest + std::log(sum);
    }
  }
}

}  // namespace smol
