// Parts of an attention to be joined, in any dtype and base of the LSE, and their join in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "src/backend.hpp"
#include "support/compare.hpp"
#include "support/gen.hpp"

namespace quire::test {

class MergeProblem {
 public:
  struct Result {
    std::vector<float> out;  // [rows, heads, dim]
    std::vector<float> lse;  // [rows, heads]
  };

  MergeProblem(std::uint32_t part_count,
               std::uint32_t row_count,
               std::uint32_t head_count,
               std::uint32_t head_dim,
               Rng& rng)
      : rows(row_count), heads(head_count), dim(head_dim), parts(part_count) {
    for (Part& part : parts) {
      part.dtype = static_cast<DType>(1 + rng.below(3));
      part.base_2 = rng.below(2) == 1;
      part.out = rng.normals(lanes() * dim);
      part.lse = rng.normals(lanes(), 3.0f, 5.0f);
      part.bits.resize(part.out.size());
      for (std::size_t i = 0; i < part.out.size(); ++i) {
        void* data =
            part.dtype == DType::kF32 ? static_cast<void*>(part.out.data()) : part.bits.data();
        const auto at = static_cast<std::int64_t>(i);
        store_from_float(data, part.dtype, at, part.out[i]);
        part.out[i] = load_as_float(data, part.dtype, at);  // what the merge is given
      }
    }
    sinks = rng.normals(heads, 3.0f, 5.0f);
  }

  std::size_t lanes() const { return std::size_t{rows} * heads; }

  void empty_some(Rng& rng) {
    for (Part& part : parts) part.lse[rng.below(static_cast<std::uint32_t>(lanes()))] = minus_inf();
  }
  void empty_all() {
    for (Part& part : parts) std::fill(part.lse.begin(), part.lse.end(), minus_inf());
  }

  Result run(const std::function<void(const MergeCall&)>& merge) const {
    Result result;
    result.out.assign(lanes() * dim, std::nanf(""));
    result.lse.assign(lanes(), std::nanf(""));
    const std::int64_t row = std::int64_t{heads} * dim;
    std::vector<MergePart> views;
    for (const Part& part : parts) {
      const void* data =
          part.dtype == DType::kF32 ? static_cast<const void*>(part.out.data()) : part.bits.data();
      views.push_back({{data, part.dtype, rows * row, row, dim}, part.lse.data(), part.base_2});
    }
    MergeCall call;
    call.parts = views.data();
    call.part_count = static_cast<std::uint32_t>(views.size());
    call.rows = rows;
    call.q_heads = heads;
    call.head_dim_v = dim;
    call.sink_logits = with_sink ? sinks.data() : nullptr;
    call.out = {result.out.data(), DType::kF32, rows * row, row, dim};
    call.lse = result.lse.data();
    call.lse_base_2 = base_2;
    merge(call);
    return result;
  }

  // Largest error as a share of its tolerance.
  double deviation(const Result& got) const {
    double worst = 0.0;
    for (std::size_t lane = 0; lane < lanes(); ++lane) {
      const double total = total_lse(lane);
      const bool empty = std::isinf(total);
      const double want_lse = base_2 ? total / std::log(2.0) : total;
      const auto lse = static_cast<double>(got.lse[lane]);
      raise(worst,
            lse == want_lse ? 0.0 : std::fabs(lse - want_lse),
            empty ? 0.0 : lse_tolerance_of(lane));
      const double whole =
          with_sink && !empty
              ? std::log(std::exp(total) + std::exp(static_cast<double>(sinks[lane % heads])))
              : total;
      for (std::uint32_t d = 0; d < dim; ++d) {
        double sum = 0.0;
        double size = 0.0;
        for (const Part& part : parts) {
          const double term =
              weight(part, lane, whole) * static_cast<double>(part.out[lane * dim + d]);
          sum += term;
          size += std::fabs(term);
        }
        const double error = std::fabs(static_cast<double>(got.out[lane * dim + d]) - sum);
        const double relative =
            2.0 * lse_tolerance_of(lane) + kFloatEps * static_cast<double>(parts.size() + 8);
        raise(worst, error, size * relative);
      }
    }
    return worst;
  }

  std::uint32_t rows;
  std::uint32_t heads;
  std::uint32_t dim;
  bool with_sink = false;
  bool base_2 = false;
  std::vector<float> sinks;

 private:
  struct Part {
    DType dtype = DType::kF32;
    bool base_2 = false;
    std::vector<float> out;
    std::vector<std::uint16_t> bits;
    std::vector<float> lse;
  };

  static float minus_inf() { return -std::numeric_limits<float>::infinity(); }

  static void raise(double& worst, double error, double tolerance) {
    worst = std::max(worst, error == 0.0 ? 0.0 : (error <= tolerance ? error / tolerance : 1.0e9));
  }

  static double natural(const Part& part, std::size_t lane) {
    const auto lse = static_cast<double>(part.lse[lane]);
    return part.base_2 ? lse * std::log(2.0) : lse;
  }

  static double weight(const Part& part, std::size_t lane, double whole) {
    const double lse = natural(part, lane);
    return std::isinf(lse) ? 0.0 : std::exp(lse - whole);
  }

  double total_lse(std::size_t lane) const {
    double sum = 0.0;
    for (const Part& part : parts) sum += weight(part, lane, 0.0);
    return std::log(sum);
  }

  // One rounding of the running LSE per part, two more for each base, a few for logarithms.
  double lse_tolerance_of(std::size_t lane) const {
    double magnitude =
        std::fabs(total_lse(lane)) + std::fabs(static_cast<double>(sinks[lane % heads]));
    for (const Part& part : parts) {
      const double lse = std::fabs(natural(part, lane));
      if (std::isfinite(lse)) magnitude = std::max(magnitude, lse);
    }
    const double base = base_2 ? 1.0 / std::log(2.0) : 1.0;
    return kFloatEps * base * (static_cast<double>(parts.size()) + 8.0) * (magnitude + 4.0);
  }

  std::vector<Part> parts;
};

}  // namespace quire::test
