// An engine's array in any dtype and layout, with NaN in all gaps between its rows.
#pragma once

#include <cstdint>
#include <vector>

#include "quire/core/dtype.hpp"
#include "quire/quire.h"

namespace quire::test {

enum class StrideKind { kDense, kHeadMajor, kGaps, kTokenLast };
inline constexpr StrideKind kStrideKinds[] = {
    StrideKind::kDense, StrideKind::kHeadMajor, StrideKind::kGaps, StrideKind::kTokenLast};

struct Shape4 {
  std::uint32_t sequences, tokens, heads, dim;

  std::size_t count() const { return std::size_t{sequences} * tokens * heads * dim; }
};

class Strided {
 public:
  // An output: NaN everywhere.
  Strided(const Shape4& shape, DType dtype, StrideKind kind) : shape_(shape), dtype_(dtype) {
    const std::int64_t dim = shape.dim, heads = shape.heads, tokens = shape.tokens;
    const std::int64_t last = shape.sequences - 1;
    switch (kind) {
      case StrideKind::kDense:
        head_ = dim, token_ = heads * dim, sequence_ = tokens * token_;
        break;
      case StrideKind::kHeadMajor:
        token_ = dim, head_ = tokens * dim, sequence_ = heads * head_;
        break;
      case StrideKind::kGaps:
        head_ = dim + 3, token_ = heads * head_ + 7, sequence_ = tokens * token_ + 11;
        break;
      case StrideKind::kTokenLast:  // [tokens, sequences, heads, dim]
        head_ = dim;
        sequence_ = heads * dim;
        token_ = shape.sequences * sequence_;
        break;
    }
    const std::int64_t size =
        last * sequence_ + (tokens - 1) * token_ + (heads - 1) * head_ + dim + 5;
    words_.assign(static_cast<std::size_t>(size) * (dtype == DType::kF32 ? 2 : 1), 0x7fff);
  }

  // An input holding dense values.
  Strided(const std::vector<float>& dense, const Shape4& shape, DType dtype, StrideKind kind)
      : Strided(shape, dtype, kind) {
    for (std::size_t i = 0; i < dense.size(); ++i)
      store_from_float(words_.data(), dtype_, offset(i), dense[i]);
  }

  quire_rows rows() const {
    return {const_cast<std::uint16_t*>(words_.data()),
            static_cast<std::uint32_t>(dtype_),
            0,
            sequence_,
            token_,
            head_};
  }

  std::vector<float> values() const {
    std::vector<float> out;
    for (std::size_t i = 0; i < shape_.count(); ++i)
      out.push_back(load_as_float(words_.data(), dtype_, offset(i)));
    return out;
  }

  bool gaps_untouched() const {
    std::vector<std::uint16_t> rest = words_;
    const std::size_t width = dtype_ == DType::kF32 ? 2 : 1;
    for (std::size_t i = 0; i < shape_.count(); ++i)
      for (std::size_t w = 0; w < width; ++w)
        rest[static_cast<std::size_t>(offset(i)) * width + w] = 0x7fff;
    for (const std::uint16_t word : rest) {
      if (word != 0x7fff) return false;
    }
    return true;
  }

 private:
  std::int64_t offset(std::size_t i) const {
    const std::size_t d = i % shape_.dim, h = i / shape_.dim % shape_.heads;
    const std::size_t t = i / shape_.dim / shape_.heads % shape_.tokens;
    const std::size_t s = i / shape_.dim / shape_.heads / shape_.tokens;
    return static_cast<std::int64_t>(s) * sequence_ + static_cast<std::int64_t>(t) * token_ +
           static_cast<std::int64_t>(h) * head_ + static_cast<std::int64_t>(d);
  }

  Shape4 shape_;
  DType dtype_;
  std::int64_t sequence_ = 0;
  std::int64_t token_ = 0;
  std::int64_t head_ = 0;
  std::vector<std::uint16_t> words_;
};

}  // namespace quire::test
