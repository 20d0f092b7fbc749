// Attention over one head view, plainly: the scalar definition, for header-only use and tests.
#pragma once

#include <cmath>
#include <cstdint>

#include "quire/attention/online_softmax.hpp"
#include "quire/attention/rule.hpp"
#include "quire/core/config.hpp"
#include "quire/pages/head_view.hpp"

namespace quire {

// One query vector of one query head.
struct Query {
  const float* q = nullptr;  // [head_dim_k], as the model made it
  std::uint32_t q_head = 0;  // index for slopes and sinks
  std::int32_t position = 0;
  std::uint32_t row = 0;  // of a step with drafts
};

namespace detail {

// Calls visit(segment, token in segment, logit) for every visible token.
template <class VisitorT>
QUIRE_HD inline void visit_logits(const HeadView& view,
                                  const AttentionRule& rule,
                                  const Query& query,
                                  VisitorT&& visit) {
  const std::uint32_t dim = view.tiers[0].head_dim_k;
  float q[kMaxHeadDim];
  float k[kMaxHeadDim];
  for (std::uint32_t d = 0; d < dim; ++d) q[d] = query.q[d];
  const float constant = transform_query(view.k, dim, q);
  for (std::uint32_t i = 0; i < view.segment_count(); ++i) {
    const Segment s = view.segment(i);
    for (std::uint32_t t = 0; t < s.count; ++t) {
      const std::int32_t stored = s.position(t);
      const std::int32_t key = view.true_position(stored);
      if (!view.row_sees(query.row, stored) || !rule.visible(query.position, key)) continue;
      decode_vector(s.layout->format.k, dim, as_const(k_slot(*s.layout, s.base, s.first + t)), k);
      float dot = constant;
      for (std::uint32_t d = 0; d < dim; ++d) dot += q[d] * k[d];
      visit(s, t, rule.finish(rule.scale * dot, query.q_head, query.position, key));
    }
  }
}

}  // namespace detail

// out: [head_dim_v], the attention output with the value transform undone. Returns the LSE (natural
// log, without sink). No visible token: output 0 and -inf.
QUIRE_HD inline float attend_reference(const HeadView& view,
                                       const AttentionRule& rule,
                                       const Query& query,
                                       float* out) {
  const std::uint32_t dim = view.tiers[0].head_dim_v;
  float v[kMaxHeadDim];
  SoftmaxState state;
  for (std::uint32_t d = 0; d < dim; ++d) out[d] = 0.0f;
  detail::visit_logits(view, rule, query, [&](const Segment& s, std::uint32_t t, float logit) {
    const float factor = state.raise(logit);
    const float p = expf(logit - state.max);
    state.sum += p;
    decode_vector(s.layout->format.v, dim, as_const(v_slot(*s.layout, s.base, s.first + t)), v);
    for (std::uint32_t d = 0; d < dim; ++d) out[d] = out[d] * factor + p * v[d];
  });
  if (state.sum <= 0.0f) return kMinusInfinity;
  for (std::uint32_t d = 0; d < dim; ++d) out[d] /= state.sum;
  transform_back(view.v, dim, out);
  if (rule.sink_logits != nullptr) {
    const float lse = state.lse();
    const float share = part_weight(lse, log_add(lse, rule.sink_logits[query.q_head]));
    for (std::uint32_t d = 0; d < dim; ++d) out[d] *= share;
  }
  return state.lse();
}

// Probability of every token under the final normaliser (sink included), in segment order;
// invisible tokens get 0. p: [tokens in all segments].
QUIRE_HD inline void probabilities_reference(
    const HeadView& view, const AttentionRule& rule, const Query& query, float lse, float* p) {
  std::uint32_t total = 0;
  for (std::uint32_t i = 0; i < view.segment_count(); ++i) total += view.segment(i).count;
  for (std::uint32_t i = 0; i < total; ++i) p[i] = 0.0f;
  const float whole =
      rule.sink_logits == nullptr ? lse : log_add(lse, rule.sink_logits[query.q_head]);
  const std::uint32_t runs = view.ring_runs();
  detail::visit_logits(view, rule, query, [&](const Segment& s, std::uint32_t t, float logit) {
    std::uint32_t at = s.first_index;
    if (s.tier == kRingTier) {
      at = 0;
      for (std::uint32_t i = 0; i < runs && view.segment(i).first != s.first; ++i)
        at += view.segment(i).count;
    } else {
      for (std::uint32_t i = 0; i < runs; ++i) at += view.segment(i).count;
      if (s.tier == 1) at += view.tokens[0];
    }
    p[at + t] = expf(logit - whole);
  });
}

}  // namespace quire
