// One KV head is one task. Pass 1 finds the log-sum-exp of every query row, unless the engine's own
// attention brought it; pass 2 adds up probabilities per key, tile by tile, in fp32. Keys of the
// prompt as they come, keys of its past as they are stored, with all transforms undone.
#include "src/cpu/attention/tail.hpp"

#include <algorithm>

#include "quire/attention/online_softmax.hpp"
#include "src/cpu/attention/parts.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/cpu/attention/tail.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "src/cpu/simd/tile_math-inl.h"

#ifndef QUIRE_CPU_ATTENTION_TAIL_ONCE
#define QUIRE_CPU_ATTENTION_TAIL_ONCE
namespace quire::cpu {

// Rows of queries that share a loaded tile of keys.
inline constexpr std::uint32_t kTailRows = 16;

// Buffers of one task.
struct TailScratch {
  float* q = nullptr;                 // [kTailRows, group, head_dim], scaled
  float* keys = nullptr;              // [kTileTokens, head_dim]
  std::int32_t* positions = nullptr;  // [kTileTokens]
  float* logits = nullptr;            // [kTailRows * group, kTileTokens]
  float* lse = nullptr;               // [q_rows, group]
  float* sums = nullptr;              // [group, length] per query head
};

inline TailScratch take_tail_scratch(const TailShape& shape, Arena& arena) {
  TailScratch scratch;
  const std::uint64_t columns = std::uint64_t{kTailRows} * shape.group;
  scratch.q = arena.take<float>(columns * shape.head_dim);
  scratch.keys = arena.take<float>(kTileTokens * std::uint64_t{shape.head_dim});
  scratch.positions = arena.take<std::int32_t>(kTileTokens);
  scratch.logits = arena.take<float>(columns * kTileTokens);
  scratch.lse = arena.take<float>(shape.q_rows * shape.group);
  scratch.sums = arena.take<float>(shape.tokens * shape.group);
  return scratch;
}

}  // namespace quire::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace quire {
namespace HWY_NAMESPACE {

using cpu::kTailRows;
using cpu::TailScratch;

struct TailHead {
  const TailCall& call;
  const TailScratch& scratch;
  std::uint32_t head;

  std::uint32_t q_head(std::uint32_t g) const { return head * call.group + g; }
  std::int32_t position(std::uint32_t row) const {
    return static_cast<std::int32_t>(call.length() - call.q_rows + row);
  }
};

// Keys in scratch.keys, of tokens at scratch.positions.
struct KeyTile {
  std::uint32_t count = 0;
  std::int32_t first = 0;  // lowest and highest position
  std::int32_t last = 0;
};

inline void load_tail_queries(const TailHead& work, std::uint32_t first_row, std::uint32_t rows) {
  const TailCall& call = work.call;
  for (std::uint32_t c = 0; c < rows * call.group; ++c) {
    float* q = work.scratch.q + c * call.head_dim;
    const std::int64_t at =
        call.q.offset(0, first_row + c / call.group, work.q_head(c % call.group));
    load_row(call.q, at, call.head_dim, q);
    scale_row(q, call.head_dim, call.rule.scale);
  }
}

// Logits of a block of rows against one tile of keys; -inf where masked.
inline void tail_tile(const TailHead& work,
                      std::uint32_t first_row,
                      std::uint32_t rows,
                      const KeyTile& tile) {
  const TailCall& call = work.call;
  const TailScratch& scratch = work.scratch;
  const std::uint32_t count = tile.count;
  const std::uint32_t columns = rows * call.group;
  dot_tile(scratch.q,
           columns,
           call.head_dim,
           scratch.keys,
           call.head_dim,
           0,
           call.head_dim,
           count,
           scratch.logits);
  const bool all_visible = call.rule.is_plain() && call.rule.sliding_window <= 0 &&
                           work.position(first_row) >= tile.last;
  if (all_visible) return;
  for (std::uint32_t c = 0; c < columns; ++c) {
    const std::int32_t query = work.position(first_row + c / call.group);
    float* logits = scratch.logits + c * kTileTokens;
    for (std::uint32_t t = 0; t < count; ++t) {
      const std::int32_t key = scratch.positions[t];
      logits[t] = call.rule.visible(query, key)
                      ? call.rule.finish(logits[t], work.q_head(c % call.group), query, key)
                      : kMinusInfinity;
    }
  }
}

// As they are stored: numbers beyond fp16 are counted where they are written.
inline KeyTile load_new(const TailHead& work, std::uint32_t first_key, std::uint32_t count) {
  CodecEvents counted_elsewhere;
  const auto position = static_cast<std::int32_t>(work.call.first + first_key);
  for (std::uint32_t t = 0; t < count; ++t) {
    work.scratch.positions[t] = position + static_cast<std::int32_t>(t);
    load_row(work.call.k,
             work.call.k.offset(0, first_key + t, work.head),
             work.call.head_dim,
             work.scratch.keys + t * work.call.head_dim);
    saturate_row(work.call.head_dim, work.scratch.keys + t * work.call.head_dim, counted_elsewhere);
  }
  return {count, position, position + static_cast<std::int32_t>(count) - 1};
}

inline KeyTile load_held(const TailHead& work,
                         const HeadView& view,
                         const Segment& s,
                         std::uint32_t first,
                         std::uint32_t count) {
  const std::uint32_t dim = work.call.head_dim;
  KeyTile tile = {count, s.position(first), s.position(first)};
  for (std::uint32_t t = 0; t < count; ++t) {
    float* key = work.scratch.keys + t * dim;
    const std::uint32_t token = s.first + first + t;
    decode_vector(s.layout->format.k, dim, as_const(k_slot(*s.layout, s.base, token)), key);
    transform_back(view.k, dim, key);
    const std::int32_t position = s.position(first + t);
    work.scratch.positions[t] = position;
    tile.first = std::min(tile.first, position);
    tile.last = std::max(tile.last, position);
  }
  return tile;
}

// Calls body(first_row, rows, count) with logits for a loaded tile and every block of rows that can
// see it.
template <class BodyT>
inline void for_each_row_block(const TailHead& work, const KeyTile& tile, BodyT&& body) {
  const TailCall& call = work.call;
  for (std::uint32_t row = 0; row < call.q_rows; row += kTailRows) {
    const std::uint32_t rows = std::min(kTailRows, call.q_rows - row);
    if (work.position(row + rows - 1) < tile.first) continue;
    load_tail_queries(work, row, rows);
    tail_tile(work, row, rows, tile);
    body(row, rows, tile.count);
  }
}

// The same for all keys. Keys outermost: each is loaded once.
template <class BodyT>
inline void for_each_tile(const TailHead& work, BodyT&& body) {
  const TailCall& call = work.call;
  if (call.held != nullptr) {
    const HeadView& view = call.held[work.head];
    for (std::uint32_t i = 0; i < view.segment_count(); ++i) {
      const Segment s = view.segment(i);
      for (std::uint32_t t = 0; t < s.count; t += kTileTokens) {
        const std::uint32_t count = std::min(kTileTokens, s.count - t);
        for_each_row_block(work, load_held(work, view, s, t, count), body);
      }
    }
  }
  for (std::uint32_t key = 0; key < call.tokens; key += kTileTokens) {
    const std::uint32_t count = std::min(kTileTokens, call.tokens - key);
    for_each_row_block(work, load_new(work, key, count), body);
  }
}

// scratch.lse = log-sum-exp per query row and head, sink included.
inline void find_normalisers(const TailHead& work) {
  const TailCall& call = work.call;
  const std::uint32_t all = call.q_rows * call.group;
  float* lse = work.scratch.lse;
  if (call.lse != nullptr) {
    for (std::uint32_t i = 0; i < all; ++i) {
      const std::uint32_t q_heads = call.kv_heads * call.group;
      lse[i] = call.lse[(i / call.group) * q_heads + work.q_head(i % call.group)];
    }
  } else {
    for (std::uint32_t i = 0; i < all; ++i) lse[i] = kMinusInfinity;
    for_each_tile(work, [&](std::uint32_t row, std::uint32_t rows, std::uint32_t count) {
      for (std::uint32_t c = 0; c < rows * call.group; ++c) {
        float* logits = work.scratch.logits + c * kTileTokens;
        const float largest = max_row(logits, count);
        if (largest == kMinusInfinity) continue;
        const float part = largest + logf(exp_row(logits, largest, count));
        float& total = lse[row * call.group + c];
        total = log_add(total, part);
      }
    });
  }
  if (call.rule.sink_logits == nullptr) return;
  for (std::uint32_t i = 0; i < all; ++i) {
    lse[i] = log_add(lse[i], call.rule.sink_logits[work.q_head(i % call.group)]);
  }
}

// Sums per query head for statistics that reduce over the group last, per group for those that
// reduce first (then only sums[0] is used).
inline void add_probabilities(const TailHead& work, bool reduce_last) {
  const TailCall& call = work.call;
  float* sums = work.scratch.sums;
  const std::int32_t* positions = work.scratch.positions;
  for_each_tile(work, [&](std::uint32_t row, std::uint32_t rows, std::uint32_t count) {
    float* p = work.scratch.logits;
    for (std::uint32_t c = 0; c < rows * call.group; ++c) {
      const float lse = work.scratch.lse[row * call.group + c];
      exp_row(p + c * kTileTokens, lse == kMinusInfinity ? 1.0e30f : lse, count);
      // A given log-sum-exp may be of another precision, or wrong.
      for (std::uint32_t t = 0; call.lse != nullptr && t < count; ++t)
        p[c * kTileTokens + t] = std::min(p[c * kTileTokens + t], 1.0f);
    }
    for (std::uint32_t r = 0; r < rows; ++r) {
      const float* first = p + r * call.group * kTileTokens;
      for (std::uint32_t t = 0; t < count; ++t) {
        if (!reduce_last) {
          sums[positions[t]] += score_increment(call.statistic, first + t, call.group, kTileTokens);
          continue;
        }
        for (std::uint32_t g = 0; g < call.group; ++g) {
          sums[std::int64_t{g} * call.length() + positions[t]] += first[g * kTileTokens + t];
        }
      }
    }
  });
}

// Per-head sums to one score per key: maximum (kMaxSum) or mean (kMeanSum), smoothed if `pooled`.
inline void reduce_heads(const TailHead& work, bool pooled, float* out) {
  const TailCall& call = work.call;
  const PoolKind pool = pooled ? call.pool : PoolKind::kNone;
  for (std::uint32_t t = 0; t < call.length(); ++t) {
    float per_head[kMaxQueryGroup];
    for (std::uint32_t g = 0; g < call.group; ++g) {
      const float* sums = work.scratch.sums + std::uint64_t{g} * call.length();
      per_head[g] = pool == PoolKind::kNone
                        ? sums[t]
                        : pooled_score(sums, call.length(), t, pool, call.pool_width);
    }
    out[t] = score_increment(call.statistic, per_head, call.group, 1);
  }
}

void tail_head(const TailCall& call, const TailScratch& scratch, std::uint32_t head) {
  const TailHead work{call, scratch, head};
  const bool reduce_last =
      call.statistic == Statistic::kMaxSum || call.statistic == Statistic::kMeanSum;
  const std::uint64_t sums = std::uint64_t{reduce_last ? call.group : 1} * call.length();
  std::fill(scratch.sums, scratch.sums + sums, 0.0f);
  find_normalisers(work);
  add_probabilities(work, reduce_last);
  float* scores = call.scores + std::uint64_t{head} * call.length();
  if (reduce_last) {
    reduce_heads(work, false, scores);
  } else {
    std::copy(scratch.sums, scratch.sums + call.length(), scores);
  }
  if (call.pooled == nullptr) return;
  float* pooled = call.pooled + std::uint64_t{head} * call.length();
  if (reduce_last) {
    reduce_heads(work, true, pooled);
  } else {
    for (std::uint32_t t = 0; t < call.length(); ++t) {
      pooled[t] = pooled_score(scores, call.length(), t, call.pool, call.pool_width);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace quire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace quire::cpu {

HWY_EXPORT(tail_head);

std::uint64_t tail_workspace(const TailShape& shape) {
  Arena arena(Workspace{});
  arena.take<TailScratch>(shape.width);
  for (std::uint32_t t = 0; t < shape.width; ++t) take_tail_scratch(shape, arena);
  return arena.used();
}

void tail_scores(const TailCall& call) {
  Arena arena(call.workspace);
  const std::uint32_t tasks =
      std::min(call.kv_heads, call.parallel.run == nullptr ? 1u : call.parallel.width);
  const TailShape shape{call.head_dim, call.group, tasks, call.length(), call.q_rows};
  auto* scratch = arena.take<TailScratch>(tasks);
  for (std::uint32_t t = 0; t < tasks; ++t) scratch[t] = take_tail_scratch(shape, arena);
  const auto run_head = HWY_DYNAMIC_DISPATCH(tail_head);
  call.parallel.for_each(tasks, [&](std::uint32_t t) {
    for (std::uint32_t head = t; head < call.kv_heads; head += tasks)
      run_head(call, scratch[t], head);
  });
}

}  // namespace quire::cpu

#endif
