// A step: begin (plan, count, assign), append per layer, end or cancel. Attention is in attend.cpp.
#include <algorithm>
#include <cstddef>

#include "src/args.hpp"
#include "src/cache.hpp"
#include "src/step_plan.hpp"

namespace quire {
namespace {

struct BeginCall {
  const std::int32_t* slots = nullptr;
  std::uint32_t batch = 0;
  const PlanMove* plan = nullptr;
  std::uint64_t plan_count = 0;
  PlanMove* plan_out = nullptr;
  std::uint64_t plan_capacity = 0;
  std::uint64_t* plan_out_count = nullptr;
};

Status check_batch(const CacheState& cache, const BeginCall& call) {
  if (cache.step.open)
    return fail(StatusCode::kBadState, "step", "quire_step_end of the open step first");
  if (call.batch < 1 || call.batch > cache.max.batch) {
    return invalid("batch", "1 to max_batch", cache.max.batch, call.batch);
  }
  if (call.slots == nullptr) return invalid("slots", "not NULL");
  for (std::uint32_t i = 0; i < call.batch; ++i) {
    const std::int32_t slot = call.slots[i];
    if (slot == -1) continue;
    QUIRE_TRY(find_slot(cache, slot, state_bit(SeqState::kOpen), "slots"));
    for (std::uint32_t j = 0; j < i; ++j) {
      if (call.slots[j] == slot)
        return invalid("slots", "each slot once in a batch", 0, static_cast<std::uint64_t>(slot));
    }
    if (static_cast<std::uint32_t>(cache.slots[slot].tokens) >= cache.max.tokens) {
      return fail(StatusCode::kCapacity,
                  "max_tokens",
                  "tokens of a sequence",
                  std::uint64_t{cache.max.tokens} + 1,
                  cache.max.tokens);
    }
  }
  const bool logs = call.plan != nullptr || call.plan_count != 0 || call.plan_out != nullptr ||
                    call.plan_out_count != nullptr;
  if (logs && (call.batch != 1 || call.slots[0] == -1))
    return invalid("plan", "a batch of one sequence", 1, call.batch);
  if (call.plan == nullptr && call.plan_count > 0)
    return invalid("plan", "not NULL with a plan_count");
  if (call.plan_out == nullptr && call.plan_capacity > 0)
    return invalid("plan_out", "not NULL with a plan_capacity");
  return ok_status();
}

// counts: [batch, layers, kv_heads, tiers], what every row takes; returns through the status
// whether it fits. Assigned in this order.
void count_pages(const CacheState& cache, std::uint32_t batch, std::uint32_t* counts) {
  for (std::uint32_t i = 0; i < batch; ++i) {
    const std::int32_t slot = cache.step.slots[i].slot;
    for (std::uint32_t layer = 0; layer < cache.group.layers; ++layer) {
      for (std::uint32_t head = 0; head < cache.group.kv_heads; ++head) {
        for (std::uint32_t tier = 0; tier < kMaxTiers; ++tier) {
          const bool used = slot >= 0 && tier < cache.group.layout.tier_count;
          *counts++ = used ? pages_to_take(cache,
                                           cache.plan(i, layer, head),
                                           cache.head_state(slot, layer, head),
                                           tier)
                           : 0;
        }
      }
    }
  }
}

void assign_pages(CacheState& cache,
                  std::uint32_t batch,
                  const std::uint32_t* offsets,
                  std::uint64_t total) {
  std::uint64_t at = 0;
  const std::uint64_t rows = batch * cache.group.heads() * kMaxTiers;
  for (std::uint32_t i = 0; i < batch; ++i) {
    const std::int32_t slot = cache.step.slots[i].slot;
    for (std::uint64_t r = 0; r < cache.group.heads(); ++r) {
      for (std::uint32_t tier = 0; tier < kMaxTiers; ++tier, ++at) {
        const std::uint64_t next = at + 1 < rows ? offsets[at + 1] : total;
        for (std::uint64_t p = offsets[at]; p < next; ++p) {
          cache.enter_page(slot, cache.row(slot, 0, 0) + r, tier, PageId{cache.free_pages.peek(p)});
        }
      }
    }
  }
  cache.free_pages.head += total;
}

Status step_begin(CacheState& cache, const BeginCall& call) {
  QUIRE_TRY(check_batch(cache, call));
  Step& step = cache.step;
  for (std::uint32_t i = 0; i < call.batch; ++i) {
    step.slots[i] = StepSlot{};
    step.slots[i].slot = call.slots[i];
    if (call.slots[i] < 0) continue;
    cache.refresh_shared(call.slots[i]);
    if (call.plan != nullptr) {
      QUIRE_TRY(plan_from_moves(cache, i, call.plan, call.plan_count));
    } else {
      plan_sequence(cache, i);
    }
  }
  Arena arena(cache.workspace);
  const std::uint64_t rows = call.batch * cache.group.heads() * kMaxTiers;
  auto* counts = arena.take<std::uint32_t>(rows);
  count_pages(cache, call.batch, counts);
  const std::uint64_t total = exclusive_scan(counts, rows);
  QUIRE_TRY(cache.reserve(total));
  step.replay = call.plan;
  step.replay_count = call.plan_count;
  if (call.plan_out != nullptr || call.plan_out_count != nullptr) {
    const std::uint64_t made = log_moves(cache, 0, call.plan_out, call.plan_capacity);
    if (call.plan_out_count != nullptr) *call.plan_out_count = made;
  }
  assign_pages(cache, call.batch, counts, total);
  step.open = true;
  step.batch = call.batch;
  step.layers_done = 0;
  std::fill(step.appended, step.appended + cache.group.layers, std::uint8_t{0});
  std::fill(step.scored, step.scored + cache.group.layers, std::uint8_t{0});
  for (std::uint32_t i = 0; i < call.batch; ++i) {
    if (call.slots[i] >= 0) cache.slots[call.slots[i]].state = SeqState::kStep;
  }
  return ok_status();
}

struct LayerAppend {
  std::uint32_t layer = 0;
  RowsView k;
  RowsView v;
  Parallel parallel;
};

// Padding rows are not looked at.
Status check_rows(const CacheState& cache,
                  const RowsView& rows,
                  std::uint32_t dim,
                  const char* name) {
  const float limit = cache.max.saturate ? kMaxSaturating : kHalfMax;
  for (std::uint32_t i = 0; i < cache.step.batch; ++i) {
    if (cache.step.slots[i].slot < 0) continue;
    RowsView one = rows;
    one.data = static_cast<const std::uint8_t*>(rows.data) +
               rows.offset(i, 0, 0) * static_cast<std::int64_t>(dtype_bytes(rows.dtype));
    const std::int64_t bad =
        cache.backend->find_bad_value(one, 1, 1, cache.group.kv_heads, dim, limit);
    if (bad < 0) continue;
    const std::uint64_t index =
        std::uint64_t{i} * cache.group.kv_heads * dim + static_cast<std::uint64_t>(bad);
    return fail(StatusCode::kBadValue,
                name,
                "finite numbers within +-65504 (or +-3e38 with QUIRE_CACHE_SATURATE)",
                0,
                index);
  }
  return ok_status();
}

AppendUnit append_unit(const CacheState& cache,
                       std::uint32_t index,
                       std::uint32_t layer,
                       std::uint32_t head) {
  const StepSlot& step = cache.step.slots[index];
  const Slot& s = cache.slots[step.slot];
  AppendUnit unit;
  unit.view = cache.view(step.slot, layer, head, s.tokens);
  unit.state = &cache.head_state(step.slot, layer, head);
  unit.plan = cache.plan(index, layer, head);
  unit.rule = cache.rule(step.slot, layer, head, s.tokens, step.factor);
  unit.sequence = index;
  unit.kv_head = head;
  if (cache.step.replay != nullptr) {
    const HeadMoves moves = moves_of(cache.step.replay, cache.step.replay_count, layer, head);
    unit.replay = moves.first;
    unit.replay_count = moves.count;
  }
  return unit;
}

struct AppendScratch {
  AppendUnit* units = nullptr;
  std::uint64_t* saturated = nullptr;
};

AppendScratch take_append_scratch(const Group& group,
                                  std::uint32_t batch,
                                  std::uint32_t threads,
                                  Arena& arena) {
  return {arena.take<AppendUnit>(std::uint64_t{batch} * group.kv_heads),
          arena.take<std::uint64_t>(threads)};
}

Status append(CacheState& cache, const LayerAppend& call) {
  Step& step = cache.step;
  QUIRE_TRY(check_rows(cache, call.k, cache.group.dim_k, "k"));
  QUIRE_TRY(check_rows(cache, call.v, cache.group.dim_v, "v"));
  Arena arena(cache.workspace);
  const AppendScratch scratch =
      take_append_scratch(cache.group, cache.max.batch, cache.max.threads, arena);
  AppendCall work;
  work.units = scratch.units;
  work.k = call.k;
  work.v = call.v;
  work.saturated = scratch.saturated;
  work.parallel = call.parallel;
  for (std::uint32_t i = 0; i < step.batch; ++i) {
    if (step.slots[i].slot < 0) continue;
    for (std::uint32_t head = 0; head < cache.group.kv_heads; ++head) {
      work.units[work.unit_count++] = append_unit(cache, i, call.layer, head);
    }
  }
  std::fill(scratch.saturated, scratch.saturated + cache.max.threads, 0);
  cache.backend->append(work);
  for (std::uint32_t u = 0; u < work.unit_count; ++u) {
    const AppendUnit& unit = work.units[u];
    cache.add_tier_tokens(
        cache.slots[step.slots[unit.sequence].slot], unit.view.tokens, unit.state->tokens);
    cache.counters.demoted.fetch_add(unit.demoted, std::memory_order_relaxed);
    cache.counters.dropped.fetch_add(unit.dropped, std::memory_order_relaxed);
  }
  for (std::uint32_t i = 0; i < cache.max.threads; ++i) {
    cache.counters.saturated.fetch_add(scratch.saturated[i], std::memory_order_relaxed);
  }
  step.appended[call.layer] = 1;
  ++step.layers_done;
  return ok_status();
}

void close_step(CacheState& cache, SeqState state) {
  for (std::uint32_t i = 0; i < cache.step.batch; ++i) {
    const std::int32_t slot = cache.step.slots[i].slot;
    if (slot < 0) continue;
    for (std::uint64_t r = 0; r < cache.group.heads(); ++r)
      cache.release_empty(slot, cache.row(slot, 0, 0) + r);
    cache.slots[slot].state = state;
  }
  cache.step.open = false;
}

Status step_end(CacheState& cache) {
  Step& step = cache.step;
  if (!step.open) return fail(StatusCode::kBadState, "step", "quire_step_begin first");
  if (step.layers_done != cache.group.layers) {
    return fail(StatusCode::kBadState,
                "layer",
                "quire_append of every layer first",
                cache.group.layers,
                step.layers_done);
  }
  close_step(cache, SeqState::kOpen);
  for (std::uint32_t i = 0; i < step.batch; ++i) {
    const StepSlot& done = step.slots[i];
    if (done.slot < 0) continue;
    Slot& s = cache.slots[done.slot];
    if (done.cadence != 0) {
      s.factor = done.factor;
      s.controlled_at = s.tokens;
    }
    ++s.tokens;
  }
  cache.counters.steps.fetch_add(1, std::memory_order_relaxed);
  return ok_status();
}

Status step_cancel(CacheState& cache) {
  if (!cache.step.open) return fail(StatusCode::kBadState, "step", "quire_step_begin first");
  close_step(cache, cache.step.layers_done == 0 ? SeqState::kOpen : SeqState::kBroken);
  return ok_status();
}

}  // namespace

std::uint64_t step_workspace(const Group& group, const Maxima& max) {
  Arena begin(Workspace{});
  begin.take<std::uint32_t>(max.batch * group.heads() * kMaxTiers);
  Arena append_arena(Workspace{});
  take_append_scratch(group, max.batch, max.threads, append_arena);
  return std::max(begin.used(), append_arena.used());
}

}  // namespace quire

using quire::Status;

extern "C" quire_status quire_step_begin(quire_cache* cache, const quire_step_begin_args* args) {
  return quire::guarded(quire::error_of(args), [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire_step_begin_args a;
    QUIRE_TRY(quire::read_args(args, "args", 0, a));
    static_assert(sizeof(quire_plan_move) == sizeof(quire::PlanMove) &&
                  offsetof(quire_plan_move, head) == offsetof(quire::PlanMove, head) &&
                  offsetof(quire_plan_move, position) == offsetof(quire::PlanMove, position) &&
                  offsetof(quire_plan_move, to) == offsetof(quire::PlanMove, to));
    quire::BeginCall call;
    call.slots = a.slots;
    call.batch = a.batch;
    call.plan = reinterpret_cast<const quire::PlanMove*>(a.plan);
    call.plan_count = a.plan_count;
    call.plan_out = reinterpret_cast<quire::PlanMove*>(a.plan_out);
    call.plan_capacity = a.plan_capacity;
    call.plan_out_count = a.plan_out_count;
    return quire::step_begin(*cache, call);
  });
}

extern "C" quire_status quire_append(quire_cache* cache, const quire_append_args* args) {
  return quire::guarded(quire::error_of(args), [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire_append_args a;
    QUIRE_TRY(quire::read_args(args, "args", 0, a));
    const quire::Group& g = cache->group;
    if (!cache->step.open)
      return quire::fail(quire::StatusCode::kBadState, "step", "quire_step_begin first");
    if (a.layer >= g.layers) return quire::invalid("layer", "below layers", g.layers, a.layer);
    if (cache->step.appended[a.layer] != 0) {
      return quire::fail(
          quire::StatusCode::kBadState, "layer", "append of a layer once per step", 0, a.layer);
    }
    quire::LayerAppend call;
    call.layer = a.layer;
    QUIRE_TRY(quire::read_rows(a.k, "k", {1, g.kv_heads, g.dim_k}, call.k));
    QUIRE_TRY(quire::read_rows(a.v, "v", {1, g.kv_heads, g.dim_v}, call.v));
    QUIRE_TRY(quire::read_parallel(a.parallel, cache->max.threads, call.parallel));
    return quire::append(*cache, call);
  });
}

extern "C" quire_status quire_step_end(quire_cache* cache, quire_error* error) {
  return quire::guarded(error, [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    return quire::step_end(*cache);
  });
}

extern "C" quire_status quire_step_cancel(quire_cache* cache, quire_error* error) {
  return quire::guarded(error, [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    return quire::step_cancel(*cache);
  });
}
