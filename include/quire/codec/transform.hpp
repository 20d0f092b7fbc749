// Signed block Hadamard: y = H (S x) / sqrt(n) on blocks of n = largest power of two in the dim.
//
// It is orthonormal, so q and K get the same transform and scores stay what they were; the output
// gets the inverse once. Signs are fixed by a seed and shared by all sequences, layers and heads:
// the bytes of a token do not depend on who asks (prefix sharing). Without signs a vector with a
// large mean would turn into one spike.
#pragma once

#include <cmath>
#include <cstdint>

#include "quire/codec/format.hpp"
#include "quire/core/config.hpp"
#include "quire/core/dtype.hpp"

namespace quire {

QUIRE_HD constexpr std::uint32_t hadamard_block(std::uint32_t dim) { return dim & (~dim + 1u); }

// A 32-bit mix (the finalizer of MurmurHash3, public domain) of seed and channel; its top bit is
// the sign of the channel.
QUIRE_HD constexpr bool channel_is_negative(std::uint32_t seed, std::uint32_t channel) {
  std::uint32_t h = seed * 0x9e3779b9u + channel + 1u;
  h = (h ^ (h >> 16)) * 0x85ebca6bu;
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  return ((h ^ (h >> 16)) >> 31) != 0;
}

QUIRE_HD inline void apply_signs(std::uint32_t seed, std::uint32_t dim, float* x) {
  for (std::uint32_t i = 0; i < dim; ++i) x[i] = channel_is_negative(seed, i) ? -x[i] : x[i];
}

// Sylvester order, butterflies in a fixed order, one multiplication by 1/sqrt(n) at the end.
QUIRE_HD inline void hadamard_blocks(std::uint32_t dim, float* x) {
  const std::uint32_t block = hadamard_block(dim);
  for (std::uint32_t start = 0; start < dim; start += block) {
    float* part = x + start;
    for (std::uint32_t width = 1; width < block; width *= 2) {
      for (std::uint32_t i = 0; i < block; i += 2 * width) {
        for (std::uint32_t j = i; j < i + width; ++j) {
          const float a = part[j];
          const float b = part[j + width];
          part[j] = a + b;
          part[j + width] = a - b;
        }
      }
    }
  }
  const float norm = 1.0f / sqrtf(static_cast<float>(block));
  for (std::uint32_t i = 0; i < dim; ++i) x[i] *= norm;
}

QUIRE_HD inline void rotate(std::uint32_t seed, std::uint32_t dim, float* x) {
  apply_signs(seed, dim, x);
  hadamard_blocks(dim, x);
}

QUIRE_HD inline void rotate_back(std::uint32_t seed, std::uint32_t dim, float* x) {
  hadamard_blocks(dim, x);
  apply_signs(seed, dim, x);
}

// The transform of one side (K or V) of one KV head. `offset` is fp16 [dim]; nullptr is no offset.
struct HeadTransform {
  std::uint32_t kind = kTransformNone;
  std::uint32_t seed = 0;
  const std::uint16_t* offset = nullptr;
};

// K or V as it is stored.
QUIRE_HD inline void transform_stored(const HeadTransform& transform, std::uint32_t dim, float* x) {
  if ((transform.kind & kTransformOffset) != 0 && transform.offset != nullptr) {
    for (std::uint32_t i = 0; i < dim; ++i) x[i] -= half_to_float(transform.offset[i]);
  }
  if ((transform.kind & kTransformHadamard) != 0) rotate(transform.seed, dim, x);
}

// What is stored, as K or V again; also undoes V's transform on an attention output, whose weights
// sum to one.
QUIRE_HD inline void transform_back(const HeadTransform& transform, std::uint32_t dim, float* x) {
  if ((transform.kind & kTransformHadamard) != 0) rotate_back(transform.seed, dim, x);
  if ((transform.kind & kTransformOffset) != 0 && transform.offset != nullptr) {
    for (std::uint32_t i = 0; i < dim; ++i) x[i] += half_to_float(transform.offset[i]);
  }
}

// q against stored keys. Returns the part of every logit that the offset took away, <q, offset>:
// it is the same for all keys, and is added back so that LSE, soft caps and sinks see true logits.
QUIRE_HD inline float transform_query(const HeadTransform& transform, std::uint32_t dim, float* q) {
  float constant = 0.0f;
  if ((transform.kind & kTransformOffset) != 0 && transform.offset != nullptr) {
    for (std::uint32_t i = 0; i < dim; ++i) constant += q[i] * half_to_float(transform.offset[i]);
  }
  if ((transform.kind & kTransformHadamard) != 0) rotate(transform.seed, dim, q);
  return constant;
}

}  // namespace quire
