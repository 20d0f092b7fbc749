// What happens to a logit beside the dot product: scale, soft cap, ALiBi, masks by true position.
#pragma once

#include <cmath>
#include <cstdint>

#include "quire/core/config.hpp"

namespace quire {

struct AttentionRule {
  float scale = 0.0f;                   // times <q, k>
  float soft_cap = 0.0f;                // c > 0: c * tanh(logit / c), before ALiBi and masks
  std::int32_t sliding_window = 0;      // w > 0: a query sees the last w positions, itself included
  const float* alibi_slopes = nullptr;  // [q_heads]: adds slope * (key position - query position)
  const float* sink_logits = nullptr;   // [q_heads]: in the denominator only, never in the LSE

  QUIRE_HD bool visible(std::int32_t query, std::int32_t key) const {
    return key <= query && (sliding_window <= 0 || query - key < sliding_window);
  }

  // `scaled` is scale * <q, k>.
  QUIRE_HD float finish(float scaled,
                        std::uint32_t q_head,
                        std::int32_t query,
                        std::int32_t key) const {
    float logit = scaled;
    if (soft_cap > 0.0f) logit = soft_cap * tanhf(logit / soft_cap);
    if (alibi_slopes != nullptr) logit += alibi_slopes[q_head] * static_cast<float>(key - query);
    return logit;
  }

  QUIRE_HD bool is_plain() const { return soft_cap <= 0.0f && alibi_slopes == nullptr; }
};

}  // namespace quire
