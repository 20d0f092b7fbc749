// Non-owning views of an engine's arrays: any dtype, any stride in sequence, token and head.
#pragma once

#include <cstdint>

#include "quire/core/config.hpp"
#include "quire/core/dtype.hpp"

namespace quire {

// [sequences, tokens, heads, head_dim]; the head dim is contiguous, strides count elements.
struct RowsView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t sequence_stride = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;

  QUIRE_HD std::int64_t offset(std::int64_t sequence, std::int64_t token, std::int64_t head) const {
    return sequence * sequence_stride + token * token_stride + head * head_stride;
  }
};

struct MutableRowsView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t sequence_stride = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;

  QUIRE_HD std::int64_t offset(std::int64_t sequence, std::int64_t token, std::int64_t head) const {
    return sequence * sequence_stride + token * token_stride + head * head_stride;
  }
};

// Copies one row of `dim` elements into fp32.
QUIRE_HD inline void load_row(const RowsView& rows,
                              std::int64_t offset,
                              std::uint32_t dim,
                              float* out) {
  for (std::uint32_t i = 0; i < dim; ++i) out[i] = load_as_float(rows.data, rows.dtype, offset + i);
}

}  // namespace quire
