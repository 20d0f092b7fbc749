// One call of quire_encode, quire_decode or quire_demote with all its buffers: float rows of any
// dtype and stride, codes, metadata, offset, counters and an error to be filled in.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "quire/codec/vector_codec.hpp"
#include "quire/quire.h"
#include "support/codec_float16.hpp"
#include "support/codec_rows.hpp"
#include "support/gen.hpp"

namespace quire::test {

// [count, dim] elements of a dtype, `stride` elements from row to row (also negative), in an array
// that is filled with a pattern around and between the rows.
class FloatRows {
 public:
  FloatRows(DType dtype, std::uint32_t count, std::uint32_t dim, std::int64_t stride)
      : dtype_(dtype), count_(count), dim_(dim), stride_(stride == 0 ? dim : stride) {
    const std::int64_t span = (stride_ < 0 ? -stride_ : stride_) * count + dim + 2 * kEdge;
    first_ = kEdge + (stride_ < 0 ? -stride_ * (count - 1) : 0);
    bytes_.assign(static_cast<std::size_t>(span) * dtype_bytes(dtype), kPattern);
  }

  void* data() { return bytes_.data() + first_ * dtype_bytes(dtype_); }
  std::int64_t stride() const { return stride_; }

  void set(std::uint32_t row, std::uint32_t d, float x) {
    if (dtype_ == DType::kF32) {
      std::memcpy(at(row, d), &x, 4);
    } else {
      const std::uint16_t bits = dtype_ == DType::kF16 ? float_to_half(x) : float_to_bfloat(x);
      std::memcpy(at(row, d), &bits, 2);
    }
  }

  void set_bits(std::uint32_t row, std::uint32_t d, std::uint32_t bits) {
    std::memcpy(at(row, d), &bits, dtype_bytes(dtype_));  // little endian
  }

  float get(std::uint32_t row, std::uint32_t d) {
    if (dtype_ == DType::kF32) {
      float x;
      std::memcpy(&x, at(row, d), 4);
      return x;
    }
    std::uint16_t bits;
    std::memcpy(&bits, at(row, d), 2);
    return static_cast<float>(dtype_ == DType::kF16 ? half_value(bits) : bfloat_value(bits));
  }

  void fill(Rng& rng, float scale, float mean) {
    for (std::uint32_t i = 0; i < count_; ++i) {
      for (std::uint32_t d = 0; d < dim_; ++d) set(i, d, mean + scale * rng.normal());
    }
  }

  bool operator==(const FloatRows& other) const { return bytes_ == other.bytes_; }

 private:
  static constexpr std::int64_t kEdge = 8;
  static constexpr unsigned char kPattern = 0x5a;

  unsigned char* at(std::uint32_t row, std::uint32_t d) {
    return bytes_.data() + (first_ + row * stride_ + d) * dtype_bytes(dtype_);
  }

  DType dtype_;
  std::uint32_t count_;
  std::uint32_t dim_;
  std::int64_t stride_;
  std::int64_t first_ = 0;
  std::vector<unsigned char> bytes_;
};

struct CodecCallSpec {
  VectorFormat format;
  std::uint32_t dim = 64;
  std::uint32_t count = 5;
  DType dtype = DType::kF32;
  std::int64_t stride = 0;  // 0: dense, and the args say 0 too
  std::uint32_t seed = 0;
};

// Not copied: `args` points into the rest.
struct CodecCall {
  explicit CodecCall(const CodecCallSpec& s)
      : spec(s),
        rows(s.dtype, s.count, s.dim, s.stride),
        coded(s.format, s.dim, s.count),
        offset(s.dim, 0.0f) {
    args.format = {static_cast<std::uint32_t>(s.format.grid),
                   s.format.bits,
                   s.format.group,
                   s.format.transform};
    args.head_dim = s.dim;
    args.transform_seed = s.seed;
    args.count = s.count;
    args.rows.dtype = static_cast<std::uint32_t>(s.dtype);
    args.rows.token_stride = s.stride;
    if (s.stride != 0) args.rows.sequence_stride = 12345;  // of a sequence that there is not
    args.saturated = &saturated;
    args.error = &error;
    bind();
  }
  CodecCall(const CodecCall&) = delete;
  CodecCall& operator=(const CodecCall&) = delete;

  // Again after `rows` or `coded` were replaced.
  void bind() {
    args.rows.data = rows.data();
    args.offset = (spec.format.transform & kTransformOffset) != 0 ? offset.data() : nullptr;
    args.codes[0] = coded.plane(0);
    args.codes[1] = plane_bytes(spec.format, spec.dim, 1) != 0 ? coded.plane(1) : nullptr;
    args.meta = meta_count(spec.format, spec.dim) != 0 ? coded.meta() : nullptr;
  }

  CodecCallSpec spec;
  FloatRows rows;
  CodedRows coded;
  std::vector<float> offset;
  std::uint64_t saturated = 1000;  // calls add to it
  quire_error error = QUIRE_ERROR_INIT;
  quire_codec_args args = QUIRE_CODEC_ARGS_INIT;
};

// The failure says what it should: number, field, and a text that begins with the field.
inline bool reports(quire_status status, const quire_error& error, int code, const char* field) {
  const std::string text = error.text;
  return status == code && error.status == code && std::string(error.field) == field &&
         text.rfind(std::string(field) + ": ", 0) == 0 && text.size() > std::strlen(field) + 2;
}

}  // namespace quire::test
