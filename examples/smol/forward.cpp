#include "forward.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>

namespace smol {
// OpenBLAS has threads of its own, which spin while ours work: one pool is enough.
Forward::Forward(const Model& model, Pool& pool) : model_(model), pool_(pool) {
  openblas_set_num_threads(1);
  const uint32_t dim = model.config.head_dim;
  for (uint32_t i = 0; i < dim; i += 2) {
    frequencies_.push_back(std::pow(model.config.rope_base, -static_cast<double>(i) / dim));
  }
}

// y[rows][out] = x[rows][in] * weight[out][in]^T, added to y when `add`. Every thread takes a run
// of the matrix's rows, so that each weight is read once.
void Forward::multiply(const float* x,
                       uint32_t rows,
                       const std::vector<float>& weight,
                       uint32_t out,
                       uint32_t in,
                       bool add,
                       float* y) const {
  const uint32_t parts = pool_.threads();
  pool_.run(parts, [&](uint32_t part) {
    const uint32_t first = out * part / parts;
    const auto mine = static_cast<int>(out * (part + 1) / parts - first);
    const float* matrix = weight.data() + static_cast<std::size_t>(first) * in;
    const float beta = add ? 1.0f : 0.0f;
    const auto inner = static_cast<int>(in);
    if (rows == 1) {
      cblas_sgemv(
          CblasRowMajor, CblasNoTrans, mine, inner, 1.0f, matrix, inner, x, 1, beta, y + first, 1);
    } else {
      cblas_sgemm(CblasRowMajor,
                  CblasNoTrans,
                  CblasTrans,
                  static_cast<int>(rows),
                  mine,
                  inner,
                  1.0f,
                  x,
                  inner,
                  matrix,
                  inner,
                  beta,
                  y + first,
                  static_cast<int>(out));
    }
  });
}

void Forward::embed(const int32_t* tokens, uint32_t rows, float* x) const {
  const uint32_t hidden = config().hidden;
  for (uint32_t r = 0; r < rows; ++r) {
    const float* row = model_.embedding.data() + static_cast<std::size_t>(tokens[r]) * hidden;
    std::copy(row, row + hidden, x + static_cast<std::size_t>(r) * hidden);
  }
}

// RMS norm into scratch_.normed.
void Forward::normalise(const float* x, const std::vector<float>& weight, uint32_t rows) {
  const uint32_t hidden = config().hidden;
  scratch_.normed.resize(static_cast<std::size_t>(rows) * hidden);
  for (uint32_t r = 0; r < rows; ++r) {
    const float* in = x + static_cast<std::size_t>(r) * hidden;
    float* out = scratch_.normed.data() + static_cast<std::size_t>(r) * hidden;
    double squares = 0.0;
    for (uint32_t i = 0; i < hidden; ++i)
      squares += static_cast<double>(in[i]) * static_cast<double>(in[i]);
    const double mean = squares / hidden + static_cast<double>(config().norm_eps);
    const auto factor = static_cast<float>(1.0 / std::sqrt(mean));
    for (uint32_t i = 0; i < hidden; ++i) out[i] = in[i] * factor * weight[i];
  }
}

// Pairs (2i, 2i + 1) turn by position * frequency i.
void Forward::rotate(const int32_t* positions, uint32_t rows, uint32_t heads, float* x) const {
  const uint32_t dim = config().head_dim;
  for (uint32_t r = 0; r < rows; ++r) {
    for (uint32_t i = 0; i < dim / 2; ++i) {
      const double angle = positions[r] * frequencies_[i];
      const auto c = static_cast<float>(std::cos(angle));
      const auto s = static_cast<float>(std::sin(angle));
      for (uint32_t h = 0; h < heads; ++h) {
        float* pair = x + (static_cast<std::size_t>(r) * heads + h) * dim + 2 * i;
        const float a = pair[0];
        const float b = pair[1];
        pair[0] = a * c - b * s;
        pair[1] = a * s + b * c;
      }
    }
  }
}

void Forward::attention_inputs(uint32_t layer,
                               const int32_t* positions,
                               uint32_t rows,
                               const float* x,
                               float* q,
                               float* k,
                               float* v) {
  const Config& c = config();
  const LayerWeights& w = model_.layers[layer];
  normalise(x, w.attention_norm, rows);
  scratch_.qkv.resize(static_cast<std::size_t>(rows) * c.qkv_size());
  multiply(scratch_.normed.data(), rows, w.qkv, c.qkv_size(), c.hidden, false, scratch_.qkv.data());
  for (uint32_t r = 0; r < rows; ++r) {
    const float* row = scratch_.qkv.data() + static_cast<std::size_t>(r) * c.qkv_size();
    std::copy(row, row + c.q_size(), q + static_cast<std::size_t>(r) * c.q_size());
    row += c.q_size();
    std::copy(row, row + c.kv_size(), k + static_cast<std::size_t>(r) * c.kv_size());
    row += c.kv_size();
    std::copy(row, row + c.kv_size(), v + static_cast<std::size_t>(r) * c.kv_size());
  }
  rotate(positions, rows, c.q_heads, q);
  rotate(positions, rows, c.kv_heads, k);
}

void Forward::attention_output(uint32_t layer,
                               const float* attention,
                               uint32_t rows,
                               float* x) const {
  multiply(
      attention, rows, model_.layers[layer].output, config().hidden, config().q_size(), true, x);
}

void Forward::feed_forward(uint32_t layer, uint32_t rows, float* x) {
  const Config& c = config();
  const LayerWeights& w = model_.layers[layer];
  normalise(x, w.ffn_norm, rows);
  scratch_.gate_up.resize(static_cast<std::size_t>(rows) * 2 * c.ffn);
  scratch_.gated.resize(static_cast<std::size_t>(rows) * c.ffn);
  multiply(
      scratch_.normed.data(), rows, w.gate_up, 2 * c.ffn, c.hidden, false, scratch_.gate_up.data());
  for (uint32_t r = 0; r < rows; ++r) {
    const float* gate = scratch_.gate_up.data() + static_cast<std::size_t>(r) * 2 * c.ffn;
    const float* up = gate + c.ffn;
    float* out = scratch_.gated.data() + static_cast<std::size_t>(r) * c.ffn;
    for (uint32_t i = 0; i < c.ffn; ++i) out[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
  }
  multiply(scratch_.gated.data(), rows, w.down, c.hidden, c.ffn, true, x);
}

void Forward::logits(const float* x, uint32_t rows, float* logits) {
  normalise(x, model_.output_norm, rows);
  multiply(scratch_.normed.data(),
           rows,
           model_.output_matrix(),
           config().vocabulary,
           config().hidden,
           false,
           logits);
}

}  // namespace smol
