// Plain causal attention in the engine itself: for prompts, and as the oracle of the tests.
#pragma once

#include <cstdint>
#include <vector>

#include "pool.hpp"

namespace smol {

struct AttentionShape {
  uint32_t q_heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
};

// q: [tokens][q_heads][head_dim], k, v: [tokens][kv_heads][head_dim], out like q, lse (or nullptr):
// [tokens][q_heads] natural log. A head is a job of the pool; rows go in blocks, so that scratch
// stays below a few MB.
void prompt_attention(Pool& pool,
                      const AttentionShape& shape,
                      const float* q,
                      const float* k,
                      const float* v,
                      uint32_t tokens,
                      float* out,
                      float* lse);

// One query against `tokens` stored keys; the same shapes for one row.
void decode_attention(const AttentionShape& shape,
                      const float* q,
                      const float* k,
                      const float* v,
                      uint32_t tokens,
                      float* out);

// Both in double precision, without BLAS: slow, for tests. `tokens` rows of q are the last ones of
// `keys` keys.
void naive_attention(const AttentionShape& shape,
                     const float* q,
                     const float* k,
                     const float* v,
                     uint32_t tokens,
                     uint32_t keys,
                     double* out,
                     double* lse);

}  // namespace smol
