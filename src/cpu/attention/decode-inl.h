// One part of an attention call: the running softmax of a few columns over some segments.
#if defined(QUIRE_CPU_ATTENTION_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_CPU_ATTENTION_DECODE_INL_H_
#undef QUIRE_CPU_ATTENTION_DECODE_INL_H_
#else
#define QUIRE_CPU_ATTENTION_DECODE_INL_H_
#endif

#include <cmath>
#include <cstdint>

#include "hwy/highway.h"
#include "quire/attention/online_softmax.hpp"
#include "quire/attention/score_stage.hpp"
#include "src/cpu/attention/parts.hpp"
#include "src/cpu/simd/meta-inl.h"
#include "src/cpu/simd/tile_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire {
namespace HWY_NAMESPACE {

using cpu::CallPlan;
using cpu::Part;
using cpu::PartResult;
using cpu::TaskScratch;

// Column c is query row c / group and query head c % group of the unit's KV head.
struct TileWork {
  const AttentionCall& call;
  const AttentionUnit& unit;
  const CallPlan& plan;
  const TaskScratch& scratch;
  std::uint32_t columns;

  std::uint32_t q_head(std::uint32_t column) const {
    return unit.kv_head * call.group + column % call.group;
  }
  std::uint32_t row(std::uint32_t column) const { return column / call.group; }
  bool is_padding(std::uint32_t column) const { return unit.rows != 0 && row(column) >= unit.rows; }
  std::int32_t position(std::uint32_t column) const {
    const bool branches = unit.view.tree != nullptr && row(column) <= unit.view.drafts;
    return unit.position +
           (branches ? unit.view.tree->depth(row(column)) : static_cast<std::int32_t>(row(column)));
  }
  // Every token of the segment is visible to the column, without a look at positions.
  bool sees_all(std::uint32_t column, const Segment& s) const {
    if (call.rule.sliding_window > 0) return false;
    if (s.tier != kRingTier || unit.view.drafts == 0)
      return position(column) >= unit.view.length - 1;
    return unit.view.tree == nullptr && row(column) >= unit.view.drafts;
  }
};

// Queries in fp32, transformed and scaled, so that a dot product is a logit.
inline void prepare_queries(const TileWork& work) {
  const std::uint32_t dim = work.unit.view.tiers[0].head_dim_k;
  for (std::uint32_t c = 0; c < work.columns; ++c) {
    float* q = work.scratch.q + c * dim;
    if (work.is_padding(c)) {
      for (std::uint32_t d = 0; d < dim; ++d) q[d] = 0.0f;
    } else {
      load_row(
          work.call.q, work.call.q.offset(work.unit.sequence, work.row(c), work.q_head(c)), dim, q);
    }
    work.scratch.constants[c] = work.call.rule.scale * transform_query(work.unit.view.k, dim, q);
    scale_row(q, dim, work.call.rule.scale);
  }
}

// Sums of q over the metadata groups: what a key's zero is multiplied with.
inline void sum_queries(const TileWork& work, const VectorFormat& format, std::uint32_t dim) {
  const std::uint32_t size = group_size(format, dim);
  for (std::uint32_t c = 0; c < work.columns; ++c) {
    for (std::uint32_t g = 0; g < dim / size; ++g) {
      float sum = 0.0f;
      for (std::uint32_t d = g * size; d < (g + 1) * size; ++d) sum += work.scratch.q[c * dim + d];
      work.scratch.q_sums[c * (dim / size) + g] = sum;
    }
  }
}

inline void raw_logits(const TileWork& work,
                       const Segment& s,
                       std::uint32_t first,
                       std::uint32_t count) {
  const TierLayout& layout = *s.layout;
  const VectorFormat& format = layout.format.k;
  const std::uint32_t dim = layout.head_dim_k;
  const TaskScratch& scratch = work.scratch;
  const VectorSlot slot = k_slot(layout, s.base, s.first + first);
  unpack_tile(format, dim, slot, count, scratch.keys);
  if (format.is_float()) {
    dot_tile(scratch.q, work.columns, dim, scratch.keys, dim, 0, dim, count, scratch.logits);
    return;
  }
  const std::uint32_t size = group_size(format, dim);
  const std::uint32_t groups = dim / size;
  for (std::uint32_t g = 0; g < groups; ++g) {
    load_group_meta(format, g, slot, count, scratch.meta);
    dot_tile(scratch.q,
             work.columns,
             dim,
             scratch.keys,
             dim,
             g * size,
             (g + 1) * size,
             count,
             scratch.dots);
    for (std::uint32_t c = 0; c < work.columns; ++c) {
      apply_key_meta(scratch.meta,
                     format.grid == Grid::kAffine,
                     scratch.dots + c * kTileTokens,
                     scratch.q_sums[c * groups + g],
                     g > 0,
                     count,
                     scratch.logits + c * kTileTokens);
    }
  }
}

// Soft cap, ALiBi and masks; only for calls that have any.
inline void finish_logits(const TileWork& work,
                          const Segment& s,
                          std::uint32_t first,
                          std::uint32_t count,
                          std::uint32_t column) {
  const AttentionRule& rule = work.call.rule;
  if (rule.is_plain() && work.sees_all(column, s)) return;
  const HeadView& view = work.unit.view;
  const std::int32_t position = work.position(column);
  float* logits = work.scratch.logits + column * kTileTokens;
  for (std::uint32_t t = 0; t < count; ++t) {
    const std::int32_t stored = s.position(first + t);
    const std::int32_t key = view.true_position(stored);
    logits[t] = view.row_sees(work.row(column), stored) && rule.visible(position, key)
                    ? rule.finish(logits[t], work.q_head(column), position, key)
                    : kMinusInfinity;
  }
}

// Keeps logits of scored columns as 16-bit fixed point below the tile's maximum.
inline void stage_tile(const TileWork& work,
                       const float* maxima,
                       std::uint32_t count,
                       std::uint8_t*& stage) {
  const std::uint32_t columns = work.plan.scored_columns;
  const std::uint32_t even = round_up(count, 2u);
  auto* tile_max = reinterpret_cast<float*>(stage);
  auto* staged = reinterpret_cast<std::uint16_t*>(stage + 4 * columns);
  for (std::uint32_t c = 0; c < columns; ++c) {
    tile_max[c] = maxima[c];
    const float* logits = work.scratch.logits + c * kTileTokens;
    for (std::uint32_t t = 0; t < count; ++t)
      staged[c * even + t] = stage_logit(logits[t], maxima[c]);
  }
  stage += columns * (4 + 2 * even);
}

// Raises the running maximum and turns the tile's logits into weights.
inline void update_softmax(const TileWork& work,
                           const PartResult& result,
                           float tile_max,
                           std::uint32_t count,
                           std::uint32_t column) {
  const std::uint32_t dim = work.unit.view.tiers[0].head_dim_v;
  float* logits = work.scratch.logits + column * kTileTokens;
  if (tile_max > result.max[column]) {
    const float old = result.max[column];
    const float factor = old == kMinusInfinity ? 0.0f : std::exp(old - tile_max);
    result.max[column] = tile_max;
    result.sum[column] *= factor;
    scale_row(result.acc + column * dim, dim, factor);
  }
  const float shift = result.max[column] == kMinusInfinity ? 0.0f : result.max[column];
  result.sum[column] += exp_row(logits, shift, count);
}

inline void accumulate_values(const TileWork& work,
                              const Segment& s,
                              std::uint32_t first,
                              std::uint32_t count,
                              const PartResult& result) {
  const TierLayout& layout = *s.layout;
  const VectorFormat& format = layout.format.v;
  const std::uint32_t dim = layout.head_dim_v;
  const TaskScratch& scratch = work.scratch;
  const VectorSlot slot = v_slot(layout, s.base, s.first + first);
  unpack_tile(format, dim, slot, count, scratch.values);
  if (format.is_float()) {
    accumulate_tile(scratch.logits, work.columns, scratch.values, dim, 0, dim, count, result.acc);
    return;
  }
  const std::uint32_t size = group_size(format, dim);
  const bool has_zero = format.grid == Grid::kAffine;
  for (std::uint32_t g = 0; g < dim / size; ++g) {
    load_group_meta(format, g, slot, count, scratch.meta);
    for (std::uint32_t c = 0; c < work.columns; ++c) {
      const float bias = apply_value_meta(scratch.meta,
                                          has_zero,
                                          scratch.logits + c * kTileTokens,
                                          count,
                                          scratch.dots + c * kTileTokens);
      if (has_zero) add_constant(result.acc + c * dim + g * size, bias, size);
    }
    accumulate_tile(scratch.dots,
                    work.columns,
                    scratch.values,
                    dim,
                    g * size,
                    (g + 1) * size,
                    count,
                    result.acc);
  }
}

inline void attend_segment(const TileWork& work,
                           const Segment& s,
                           const PartResult& result,
                           std::uint8_t*& stage) {
  float maxima[kMaxDecodeRows * kMaxQueryGroup];
  if (!s.layout->format.k.is_float()) sum_queries(work, s.layout->format.k, s.layout->head_dim_k);
  for (std::uint32_t first = 0; first < s.count; first += kTileTokens) {
    const std::uint32_t count = HWY_MIN(kTileTokens, s.count - first);
    raw_logits(work, s, first, count);
    for (std::uint32_t c = 0; c < work.columns; ++c) {
      float* logits = work.scratch.logits + c * kTileTokens;
      if (work.scratch.constants[c] != 0.0f) add_constant(logits, work.scratch.constants[c], count);
      finish_logits(work, s, first, count, c);
      maxima[c] = max_row(logits, count);
    }
    if (stage != nullptr) stage_tile(work, maxima, count, stage);
    for (std::uint32_t c = 0; c < work.columns; ++c)
      update_softmax(work, result, maxima[c], count, c);
    accumulate_values(work, s, first, count, result);
  }
}

inline void attend_part(const TileWork& work,
                        const Part& part,
                        const PartResult& result,
                        std::uint8_t* stage) {
  const std::uint32_t dim = work.unit.view.tiers[0].head_dim_v;
  for (std::uint32_t c = 0; c < work.columns; ++c) {
    result.max[c] = kMinusInfinity;
    result.sum[c] = 0.0f;
  }
  for (std::uint32_t i = 0; i < work.columns * dim; ++i) result.acc[i] = 0.0f;
  if (work.plan.scored_columns == 0) stage = nullptr;
  if (stage != nullptr) stage += part.stage_offset;
  for (std::uint32_t i = part.first_segment; i < part.last_segment; ++i) {
    attend_segment(work, work.unit.view.segment(i), result, stage);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace quire
HWY_AFTER_NAMESPACE();

#endif
