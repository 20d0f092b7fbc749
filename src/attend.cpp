// Attention of a step, and of many rows over what is stored.
#include <algorithm>

#include "quire/pages/head_tokens.hpp"
#include "src/args.hpp"
#include "src/cache.hpp"

namespace quire {
namespace {

struct QueryCall {
  std::uint32_t layer = 0;
  std::uint32_t rows = 1;
  std::uint32_t splits = 0;
  std::uint32_t score_rows = 1;
  RowsView q;
  MutableRowsView out;
  float* lse = nullptr;
  bool lse_base_2 = false;
  AttentionRule rule;
  Parallel parallel;
};

bool tracks_lowest(const Policy& policy) {
  const bool by_tiers = policy.kind == PolicyKind::kThreshold && !policy.has_controller();
  return by_tiers || (policy.kind == PolicyKind::kEvict && !policy.grows);
}

AttentionCall to_backend(const CacheState& cache, const QueryCall& call) {
  AttentionCall work;
  work.rows = call.rows;
  work.q_heads = cache.group.q_heads;
  work.group = cache.group.group;
  work.q = call.q;
  work.out = call.out;
  work.lse = call.lse;
  work.lse_base_2 = call.lse_base_2;
  work.rule = call.rule;
  work.splits = call.splits;
  work.parallel = call.parallel;
  return work;
}

// Rows of padding: zeros and -inf.
void write_padding(const CacheState& cache, const QueryCall& call, std::uint32_t index) {
  for (std::uint32_t row = 0; row < call.rows; ++row) {
    for (std::uint32_t head = 0; head < cache.group.q_heads; ++head) {
      const std::int64_t at = call.out.offset(index, row, head);
      for (std::uint32_t d = 0; d < cache.group.dim_v; ++d)
        store_from_float(call.out.data, call.out.dtype, at + d, 0.0f);
      if (call.lse != nullptr) {
        call.lse[(std::uint64_t{index} * call.rows + row) * cache.group.q_heads + head] =
            -__builtin_inff();
      }
    }
  }
}

AttentionUnit step_unit(const CacheState& cache,
                        std::uint32_t index,
                        std::uint32_t layer,
                        std::uint32_t head,
                        bool scored) {
  const StepSlot& step = cache.step.slots[index];
  const Slot& s = cache.slots[step.slot];
  AttentionUnit unit;
  unit.view = cache.view(step.slot, layer, head, s.tokens + 1);
  unit.view.drafts = step.rows - 1;
  unit.view.tree = step.branches ? &step.tree : nullptr;
  unit.rows = cache.step.rows > 1 ? step.rows : 0;
  unit.score_weight = 1.0f + static_cast<float>(s.unscored);
  unit.sequence = index;
  unit.kv_head = head;
  unit.position = s.tokens;
  if (!scored) return unit;
  unit.statistic = s.policy.statistic;
  unit.track_lowest = tracks_lowest(s.policy);
  unit.state = &cache.head_state(step.slot, layer, head);
  unit.rule = cache.rule(step.slot, layer, head, s.tokens + 1, step.factor);
  return unit;
}

Status check_queries(const CacheState& cache, const QueryCall& call) {
  for (std::uint32_t i = 0; i < cache.step.batch; ++i) {
    if (cache.step.slots[i].slot < 0) continue;
    RowsView one = call.q;
    one.data = static_cast<const std::uint8_t*>(call.q.data) +
               call.q.offset(i, 0, 0) * static_cast<std::int64_t>(dtype_bytes(call.q.dtype));
    const std::int64_t bad =
        cache.backend->find_bad_value(one,
                                      1,
                                      cache.step.rows > 1 ? cache.step.slots[i].rows : call.rows,
                                      cache.group.q_heads,
                                      cache.group.dim_k,
                                      kMaxQuery);
    if (bad < 0) continue;
    const std::uint64_t row_size =
        std::uint64_t{call.rows} * cache.group.q_heads * cache.group.dim_k;
    return fail(StatusCode::kBadValue,
                "q",
                "finite numbers within +-1e30",
                0,
                i * row_size + static_cast<std::uint64_t>(bad));
  }
  return ok_status();
}

Status attend_step(CacheState& cache, const QueryCall& call) {
  QUIRE_TRY(check_queries(cache, call));
  Step& step = cache.step;
  Arena arena(cache.workspace);
  AttentionCall work = to_backend(cache, call);
  work.units = arena.take<AttentionUnit>(std::uint64_t{cache.max.batch} * cache.group.kv_heads);
  bool any_scored = false;
  for (std::uint32_t i = 0; i < step.batch; ++i) {
    if (step.slots[i].slot < 0) {
      write_padding(cache, call, i);
      continue;
    }
    const bool scored =
        call.score_rows > 0 && cache.slots[step.slots[i].slot].policy.statistic != Statistic::kNone;
    const bool tracked =
        scored || (call.score_rows > 0 && tracks_lowest(cache.slots[step.slots[i].slot].policy));
    any_scored = any_scored || tracked;
    for (std::uint32_t head = 0; head < cache.group.kv_heads; ++head) {
      work.units[work.unit_count++] = step_unit(cache, i, call.layer, head, tracked);
    }
  }
  work.score_rows = any_scored ? call.score_rows : 0;
  work.workspace = arena.rest();
  cache.backend->attention(work);
  if (any_scored) step.scored[call.layer] = 1;
  return ok_status();
}

// Rows in tiles of 16, each a call of the backend.
void extend(CacheState& cache,
            std::int32_t slot,
            std::int32_t first_position,
            const QueryCall& call) {
  const Slot& s = cache.slots[slot];
  for (std::uint32_t row = 0; row < call.rows; row += kMaxDecodeRows) {
    Arena arena(cache.workspace);
    QueryCall tile = call;
    tile.rows = std::min(kMaxDecodeRows, call.rows - row);
    const auto q_bytes = static_cast<std::int64_t>(dtype_bytes(call.q.dtype));
    const auto out_bytes = static_cast<std::int64_t>(dtype_bytes(call.out.dtype));
    tile.q.data =
        static_cast<const std::uint8_t*>(call.q.data) + call.q.offset(0, row, 0) * q_bytes;
    tile.out.data =
        static_cast<std::uint8_t*>(call.out.data) + call.out.offset(0, row, 0) * out_bytes;
    if (call.lse != nullptr) tile.lse = call.lse + std::uint64_t{row} * cache.group.q_heads;
    AttentionCall work = to_backend(cache, tile);
    work.units = arena.take<AttentionUnit>(std::uint64_t{cache.max.batch} * cache.group.kv_heads);
    for (std::uint32_t head = 0; head < cache.group.kv_heads; ++head) {
      AttentionUnit unit;
      unit.view = cache.view(slot, call.layer, head, s.tokens);
      unit.kv_head = head;
      unit.position = first_position + static_cast<std::int32_t>(row);
      work.units[work.unit_count++] = unit;
    }
    work.workspace = arena.rest();
    cache.backend->attention(work);
  }
}

// The fields that both calls share.
struct QueryFields {
  std::uint32_t layer;
  std::uint32_t rows;
  std::uint32_t splits;
  std::uint32_t lse_base_2;
  const quire_rows& q;
  const quire_rows& out;
  float* lse;
  const quire_rule& rule;
  const quire_parallel* parallel;
};

Status read_query(const CacheState& cache, const QueryFields& in, QueryCall& call) {
  const Group& g = cache.group;
  if (in.splits > cache.max.splits)
    return invalid("splits", "0, or up to max_splits", cache.max.splits, in.splits);
  if (in.lse_base_2 > 1) return invalid("lse_base_2", "0 or 1", 1, in.lse_base_2);
  call.layer = in.layer;
  call.rows = in.rows;
  call.splits = in.splits;
  call.lse = in.lse;
  call.lse_base_2 = in.lse_base_2 != 0;
  QUIRE_TRY(read_rows(in.q, "q", {in.rows, g.q_heads, g.dim_k}, call.q));
  QUIRE_TRY(read_rows(in.out, "out", {in.rows, g.q_heads, g.dim_v}, call.out));
  QUIRE_TRY(read_rule(in.rule, g.dim_k, g.q_heads, call.rule));
  if (call.rule.sliding_window == 0)
    call.rule.sliding_window = static_cast<std::int32_t>(g.sliding_window);
  return read_parallel(in.parallel, cache.max.threads, call.parallel);
}

}  // namespace

AttentionShape attention_shape(const Group& group, const Maxima& max) {
  AttentionShape shape;
  shape.head_dim_k = group.dim_k;
  shape.head_dim_v = group.dim_v;
  shape.k_groups = std::max(1u, group_count(group.ring.tokens.format.k, group.dim_k));
  std::uint64_t segments = kMaxRingRuns;
  for (std::uint32_t t = 0; t < group.layout.tier_count; ++t) {
    shape.k_groups =
        std::max(shape.k_groups, group_count(group.layout.tier[t].format.k, group.dim_k));
    segments += ceil_div(std::uint64_t{max.tokens}, std::uint64_t{group.layout.tier[t].tokens});
  }
  shape.group = group.group;
  shape.rows = kMaxDecodeRows;
  shape.score_rows = kMaxDecodeRows;
  shape.splits = max.splits;
  shape.width = max.threads;
  shape.max_tokens = std::uint64_t{max.tokens} + 1;
  shape.max_segments = segments;
  shape.max_units = std::uint64_t{max.batch} * group.kv_heads;
  return shape;
}

std::uint64_t attend_workspace(const Group& group, const Maxima& max, const Backend& backend) {
  Arena arena(Workspace{});
  arena.take<AttentionUnit>(std::uint64_t{max.batch} * group.kv_heads);
  return arena.used() + backend.attention_workspace(attention_shape(group, max));
}

}  // namespace quire

using quire::Status;

extern "C" quire_status quire_attention(quire_cache* cache, const quire_attention_args* args) {
  return quire::guarded(quire::error_of(args), [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire_attention_args a;
    QUIRE_TRY(quire::read_args(args, "args", 0, a));
    if (!cache->step.open)
      return quire::fail(quire::StatusCode::kBadState, "step", "quire_step_begin first");
    quire::CacheState* state = nullptr;
    std::uint32_t layer = 0;
    QUIRE_TRY(quire::find_layer(*cache, a.layer, state, layer));
    const std::uint32_t in_step = state->step.rows;
    const std::uint32_t rows = a.rows == 0 ? in_step : a.rows;
    if (rows > quire::kMaxDecodeRows)
      return quire::invalid("rows", "0 to 16", quire::kMaxDecodeRows, rows);
    if (in_step > 1 && rows != in_step)
      return quire::invalid("rows", "0, or the rows of a step with drafts", in_step, rows);
    const std::uint32_t scored =
        a.score_rows == QUIRE_NONE ? 0 : (a.score_rows == 0 ? 1 : a.score_rows);
    const std::uint32_t may_score = in_step > 1 ? 1 : rows;
    if (scored > may_score) {
      return quire::invalid(
          "score_rows", "up to rows (1 in a step with drafts), or QUIRE_NONE", may_score, scored);
    }
    quire::QueryCall call;
    call.score_rows = scored;
    QUIRE_TRY(quire::read_query(
        *state,
        {layer, rows, a.splits, a.lse_base_2, a.q, a.out, a.lse, a.rule, a.parallel},
        call));
    if (state->step.appended[layer] == 0) {
      return quire::fail(
          quire::StatusCode::kBadState, "layer", "quire_append of the layer first", 0, a.layer);
    }
    if (scored > 0 && state->step.scored[layer] != 0) {
      return quire::fail(quire::StatusCode::kBadState,
                         "layer",
                         "scores of a layer once per step (else QUIRE_NONE)",
                         0,
                         a.layer);
    }
    return quire::attend_step(*state, call);
  });
}

extern "C" quire_status quire_extend(quire_cache* cache, const quire_extend_args* args) {
  return quire::guarded(quire::error_of(args), [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire_extend_args a;
    QUIRE_TRY(quire::read_args(args, "args", 0, a));
    constexpr std::uint32_t kExtendable = quire::state_bit(quire::SeqState::kOpen) |
                                          quire::state_bit(quire::SeqState::kPrefill) |
                                          quire::state_bit(quire::SeqState::kFrozen);
    QUIRE_TRY(quire::find_slot(*cache, a.slot, kExtendable, "slot"));
    if (a.rows < 1) return quire::invalid("rows", "at least 1", 1, a.rows);
    const std::int64_t last = std::int64_t{a.first_position} + a.rows - 1;
    if (a.first_position < 0 || last > quire::kMaxPosition) {
      return quire::invalid("first_position",
                            "0 to 16777215, the last row's too",
                            quire::kMaxPosition,
                            static_cast<std::uint64_t>(last));
    }
    quire::CacheState* state = nullptr;
    std::uint32_t layer = 0;
    QUIRE_TRY(quire::find_layer(*cache, a.layer, state, layer));
    const quire::Slot& s = state->slots[a.slot];
    if (s.state == quire::SeqState::kPrefill && layer < s.next_layer) {
      return quire::fail(quire::StatusCode::kBadState,
                         "layer",
                         "in a prompt, layers that it has not stored yet",
                         s.next_layer,
                         a.layer);
    }
    quire::QueryCall call;
    QUIRE_TRY(quire::read_query(
        *state,
        {layer, a.rows, a.splits, a.lse_base_2, a.q, a.out, a.lse, a.rule, a.parallel},
        call));
    const std::int64_t bad = state->backend->find_bad_value(
        call.q, 1, a.rows, state->group.q_heads, state->group.dim_k, quire::kMaxQuery);
    if (bad >= 0) {
      return quire::fail(quire::StatusCode::kBadValue,
                         "q",
                         "finite numbers within +-1e30",
                         0,
                         static_cast<std::uint64_t>(bad));
    }
    quire::extend(*state, a.slot, a.first_position, call);
    return quire::ok_status();
  });
}
