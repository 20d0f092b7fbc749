// The forward pass in double precision, one loop per formula, with a bound of the error that fp32
// arithmetic may make on each number. Bounds follow "n products summed in any order are off by at
// most n * eps * sum |ab|"; kSlack covers the few roundings of the elementwise parts.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "model.hpp"
#include "support/compare.hpp"

namespace smol::test {

inline constexpr double kSlack = 16.0;  // roundings: norm factor, weight, sine, exp (4 ulp), ...

struct Bounded {
  double value = 0.0;
  double error = 0.0;
};

using Row = std::vector<Bounded>;

inline Row exact_row(const float* x, std::size_t n) {
  Row row(n);
  for (std::size_t i = 0; i < n; ++i) row[i].value = static_cast<double>(x[i]);
  return row;
}

// x is exact: every block is checked on inputs of its own.
inline Row naive_norm(const Row& x, const std::vector<float>& weight, float eps) {
  double squares = 0.0;
  for (const Bounded& b : x) squares += b.value * b.value;
  const double factor =
      1.0 / std::sqrt(squares / static_cast<double>(x.size()) + static_cast<double>(eps));
  Row out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double w = static_cast<double>(weight[i]);
    out[i].value = x[i].value * factor * w;
    out[i].error = std::fabs(out[i].value) * kSlack * quire::test::kFloatEps;
  }
  return out;
}

// Rows first .. first + rows - 1 of a [out][in] matrix times x.
inline Row naive_product(const std::vector<float>& matrix,
                         std::size_t first,
                         std::size_t rows,
                         const Row& x) {
  Row out(rows);
  for (std::size_t r = 0; r < rows; ++r) {
    const float* w = matrix.data() + (first + r) * x.size();
    double magnitude = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double weight = static_cast<double>(w[i]);
      out[r].value += weight * x[i].value;
      out[r].error += std::fabs(weight) * x[i].error;
      magnitude += std::fabs(weight * x[i].value);
    }
    out[r].error += (static_cast<double>(x.size()) + kSlack) * quire::test::kFloatEps * magnitude;
  }
  return out;
}

inline void naive_rotate(Row& x, uint32_t dim, double base, int32_t position) {
  for (std::size_t head = 0; head < x.size(); head += dim) {
    for (std::size_t i = 0; i < dim; i += 2) {
      const double angle =
          position / std::pow(base, static_cast<double>(i) / static_cast<double>(dim));
      Bounded& a = x[head + i];
      Bounded& b = x[head + i + 1];
      const Bounded even = a;
      const Bounded odd = b;
      a.value = even.value * std::cos(angle) - odd.value * std::sin(angle);
      b.value = even.value * std::sin(angle) + odd.value * std::cos(angle);
      const double rounding =
          kSlack * quire::test::kFloatEps * (std::fabs(even.value) + std::fabs(odd.value));
      a.error = b.error = even.error + odd.error + rounding;
    }
  }
}

// silu(gate) * up; |silu'| is at most 1.1.
inline Row naive_gate(const Row& gate, const Row& up) {
  Row out(gate.size());
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double g = gate[i].value;
    const double silu = g / (1.0 + std::exp(-g));
    out[i].value = silu * up[i].value;
    out[i].error = 1.1 * gate[i].error * std::fabs(up[i].value) + std::fabs(silu) * up[i].error +
                   kSlack * quire::test::kFloatEps * std::fabs(out[i].value);
  }
  return out;
}

inline void add_to(Row& x, const Row& y) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i].value += y[i].value;
    x[i].error += y[i].error + quire::test::kFloatEps * (std::fabs(x[i].value) + y[i].error);
  }
}

struct NaiveInputs {
  Row q, k, v;
};

inline NaiveInputs naive_attention_inputs(const Model& model,
                                          uint32_t layer,
                                          int32_t position,
                                          const Row& x) {
  const Config& c = model.config;
  const LayerWeights& w = model.layers[layer];
  const Row h = naive_norm(x, w.attention_norm, c.norm_eps);
  NaiveInputs in = {naive_product(w.qkv, 0, c.q_size(), h),
                    naive_product(w.qkv, c.q_size(), c.kv_size(), h),
                    naive_product(w.qkv, c.q_size() + c.kv_size(), c.kv_size(), h)};
  naive_rotate(in.q, c.head_dim, c.rope_base, position);
  naive_rotate(in.k, c.head_dim, c.rope_base, position);
  return in;
}

inline Row naive_attention_output(const Model& model,
                                  uint32_t layer,
                                  const Row& attention,
                                  const Row& x) {
  Row out = x;
  add_to(out, naive_product(model.layers[layer].output, 0, model.config.hidden, attention));
  return out;
}

inline Row naive_feed_forward(const Model& model, uint32_t layer, const Row& x) {
  const Config& c = model.config;
  const LayerWeights& w = model.layers[layer];
  const Row h = naive_norm(x, w.ffn_norm, c.norm_eps);
  const Row gated =
      naive_gate(naive_product(w.gate_up, 0, c.ffn, h), naive_product(w.gate_up, c.ffn, c.ffn, h));
  Row out = x;
  add_to(out, naive_product(w.down, 0, c.hidden, gated));
  return out;
}

inline Row naive_logits(const Model& model, const Row& x) {
  const Row h = naive_norm(x, model.output_norm, model.config.norm_eps);
  return naive_product(model.output_matrix(), 0, model.config.vocabulary, h);
}

}  // namespace smol::test
