// Parts of a unit to output, LSE and scores.
#if defined(QUIRE_CPU_ATTENTION_COMBINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_CPU_ATTENTION_COMBINE_INL_H_
#undef QUIRE_CPU_ATTENTION_COMBINE_INL_H_
#else
#define QUIRE_CPU_ATTENTION_COMBINE_INL_H_
#endif

#include <cmath>
#include <cstdint>

#include "hwy/highway.h"
#include "src/cpu/attention/decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire {
namespace HWY_NAMESPACE {

// Joins parts[1..] into parts[0], column by column.
inline void join_parts(const PartResult* parts,
                       std::uint32_t count,
                       std::uint32_t columns,
                       std::uint32_t dim) {
  const FloatTag df;
  for (std::uint32_t c = 0; c < columns; ++c) {
    SoftmaxState state{parts[0].max[c], parts[0].sum[c]};
    float* acc = parts[0].acc + c * dim;
    for (std::uint32_t p = 1; p < count; ++p) {
      if (parts[p].max[c] == kMinusInfinity) continue;
      const float old_factor = state.raise(parts[p].max[c]);
      const float factor = std::exp(parts[p].max[c] - state.max);
      state.sum += parts[p].sum[c] * factor;
      const auto keep = hn::Set(df, old_factor);
      const auto add = hn::Set(df, factor);
      const float* other = parts[p].acc + c * dim;
      for (std::uint32_t d = 0; d < dim; d += float_lanes()) {
        const auto kept = hn::Mul(hn::LoadU(df, acc + d), keep);
        hn::StoreU(hn::MulAdd(hn::LoadU(df, other + d), add, kept), df, acc + d);
      }
    }
    parts[0].max[c] = state.max;
    parts[0].sum[c] = state.sum;
  }
}

inline float output_lse(float lse, bool base_2) {
  constexpr float kLog2E = 1.44269504088896340736f;
  return base_2 ? lse * kLog2E : lse;
}

// Normalises, undoes V's transform, applies the sink and writes. scratch.lse receives the log of
// the whole denominator, sink included, for the scores.
inline void write_outputs(const TileWork& work, const PartResult& result) {
  const AttentionCall& call = work.call;
  const std::uint32_t dim = work.unit.view.tiers[0].head_dim_v;
  for (std::uint32_t c = 0; c < work.columns; ++c) {
    const std::uint32_t row = c / call.group;
    const std::uint32_t q_head = work.q_head(c);
    float* acc = result.acc + c * dim;
    SoftmaxState state{result.max[c], result.sum[c]};
    if (work.is_padding(c)) {
      state = SoftmaxState{};
      for (std::uint32_t d = 0; d < dim; ++d) acc[d] = 0.0f;
    }
    const float lse = state.lse();
    float whole = lse;
    if (state.sum > 0.0f) {
      scale_row(acc, dim, 1.0f / state.sum);
      transform_back(work.unit.view.v, dim, acc);
    }
    if (call.rule.sink_logits != nullptr && state.sum > 0.0f) {
      whole = log_add(lse, call.rule.sink_logits[q_head]);
      scale_row(acc, dim, part_weight(lse, whole));
    }
    work.scratch.lse[c] = whole;
    const std::int64_t at = call.out.offset(work.unit.sequence, row, q_head);
    for (std::uint32_t d = 0; d < dim; ++d)
      store_from_float(call.out.data, call.out.dtype, at + d, acc[d]);
    if (call.lse != nullptr) {
      const std::uint64_t index =
          (std::uint64_t{work.unit.sequence} * call.rows + row) * call.q_heads + q_head;
      call.lse[index] = output_lse(lse, call.lse_base_2);
    }
  }
}

// increments[t] = what the scored rows add to the score of token t of a tile.
inline void tile_increments(const TileWork& work,
                            const std::uint8_t* stage,
                            std::uint32_t count,
                            float* increments) {
  const std::uint32_t columns = work.plan.scored_columns;
  const std::uint32_t group = work.call.group;
  const std::uint32_t even = round_up(count, 2u);
  const auto* tile_max = reinterpret_cast<const float*>(stage);
  const auto* staged = reinterpret_cast<const std::uint16_t*>(stage + 4 * columns);
  float* p = work.scratch.dots;
  for (std::uint32_t c = 0; c < columns; ++c) {
    const float lse = work.scratch.lse[c];
    float* row = p + c * kTileTokens;
    for (std::uint32_t t = 0; t < count; ++t) {
      const std::uint16_t s = staged[c * even + t];
      row[t] = s == kStageNone ? -1.0e30f : static_cast<float>(s) * (-1.0f / kStageSteps);
    }
    const bool empty = tile_max[c] == kMinusInfinity || lse == kMinusInfinity;
    exp_row(row, empty ? 1.0e30f : lse - tile_max[c], count);
  }
  for (std::uint32_t t = 0; t < count; ++t) increments[t] = 0.0f;
  for (std::uint32_t c = 0; c < columns; c += group) {
    for (std::uint32_t t = 0; t < count; ++t) {
      increments[t] +=
          score_increment(work.unit.statistic, p + c * kTileTokens + t, group, kTileTokens);
    }
  }
}

inline void track_lowest(const AttentionUnit& unit,
                         const Segment& s,
                         std::uint32_t first,
                         std::uint32_t count,
                         Lowest& lowest) {
  const float* scores = score_array(*s.layout, s.base) + s.first + first;
  const bool scored = s.layout->fields.score;
  for (std::uint32_t t = 0; t < count; ++t) {
    const std::int32_t position = s.position(first + t);
    lowest.consider(unit.rule.significance_at(scored ? scores[t] : 0.0f, position),
                    position,
                    static_cast<std::int32_t>(s.first_index + first + t));
  }
}

// Adds this step's probabilities to the stored scores and leaves the least significant token of
// each tier for the next plan.
inline void update_scores(const TileWork& work, const std::uint8_t* stage) {
  const AttentionUnit& unit = work.unit;
  Lowest lowest[kMaxTiers];
  float increments[kTileTokens];
  for (std::uint32_t i = 0; i < unit.view.segment_count(); ++i) {
    const Segment s = unit.view.segment(i);
    const bool frozen = unit.view.is_frozen(s);
    float* scores = score_array(*s.layout, s.base) + s.first;  // not touched without a statistic
    for (std::uint32_t first = 0; first < s.count; first += kTileTokens) {
      const std::uint32_t count = HWY_MIN(kTileTokens, s.count - first);
      if (unit.statistic != Statistic::kNone) tile_increments(work, stage, count, increments);
      stage += work.plan.scored_columns * (4 + 2 * round_up(count, 2u));
      if (unit.statistic != Statistic::kNone && !frozen) {
        for (std::uint32_t t = 0; t < count; ++t)
          scores[first + t] += unit.score_weight * increments[t];
      }
      if (unit.track_lowest && s.tier != kRingTier && !frozen)
        track_lowest(unit, s, first, count, lowest[s.tier]);
    }
  }
  if (!unit.track_lowest) return;
  for (std::uint32_t tier = 0; tier < kMaxTiers; ++tier) {
    unit.state->lowest_significance[tier] = lowest[tier].significance;
    unit.state->lowest_position[tier] = lowest[tier].position;
    unit.state->lowest_index[tier] = lowest[tier].index;
  }
  unit.state->lowest_length = unit.rule.length;
}

inline void finish_unit(const TileWork& work,
                        const PartResult* parts,
                        std::uint32_t count,
                        const std::uint8_t* stage) {
  join_parts(parts, count, work.columns, work.unit.view.tiers[0].head_dim_v);
  write_outputs(work, parts[0]);
  if (work.unit.state != nullptr && work.plan.scored_columns > 0) update_scores(work, stage);
}

}  // namespace HWY_NAMESPACE
}  // namespace quire
HWY_AFTER_NAMESPACE();

#endif
