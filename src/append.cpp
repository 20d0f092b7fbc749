// One layer of a step: plans carried out, new rows stored.
#include "src/append.hpp"

#include <algorithm>

#include "src/args.hpp"
#include "src/step_plan.hpp"

namespace quire {
namespace {

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
    const std::int64_t bad = cache.backend->find_bad_value(
        one, 1, cache.step.slots[i].rows, cache.group.kv_heads, dim, limit);
    if (bad < 0) continue;
    const std::uint64_t index = std::uint64_t{i} * cache.step.rows * cache.group.kv_heads * dim +
                                static_cast<std::uint64_t>(bad);
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
                       const LayerAppend& call,
                       std::uint32_t head) {
  const std::uint32_t layer = call.layer;
  const StepSlot& step = cache.step.slots[index];
  const Slot& s = cache.slots[step.slot];
  AppendUnit unit;
  unit.view = cache.view(step.slot, layer, head, s.tokens);
  unit.state = &cache.head_state(step.slot, layer, head);
  unit.plan = cache.plan(index, layer, head);
  unit.rule = cache.rule(step.slot, layer, head, s.tokens, step.factor);
  unit.sequence = index;
  unit.kv_head = head;
  unit.drafts = step.rows - 1;
  unit.stored = call.stored;
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

}  // namespace

void append_layer(CacheState& cache, const LayerAppend& call) {
  const Step& step = cache.step;
  Arena arena(cache.workspace);
  const AppendScratch scratch =
      take_append_scratch(cache.group, cache.max.batch, cache.max.threads, arena);
  AppendCall work;
  work.units = scratch.units;
  work.k = call.k;
  work.v = call.v;
  work.saturated = scratch.saturated;
  work.parallel = call.parallel;
  for (std::uint32_t i = 0; i < call.batch; ++i) {
    if (step.slots[i].slot < 0) continue;
    for (std::uint32_t head = 0; head < cache.group.kv_heads; ++head) {
      work.units[work.unit_count++] = append_unit(cache, i, call, head);
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
}

std::uint64_t append_workspace(const Group& group, const Maxima& max) {
  Arena arena(Workspace{});
  take_append_scratch(group, max.batch, max.threads, arena);
  return arena.used();
}

}  // namespace quire

using quire::Status;

extern "C" quire_status quire_append(quire_cache* cache, const quire_append_args* args) {
  return quire::guarded(quire::error_of(args), [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire_append_args a;
    QUIRE_TRY(quire::read_args(args, "args", 0, a));
    if (!cache->step.open)
      return quire::fail(quire::StatusCode::kBadState, "step", "quire_step_begin first");
    quire::CacheState* state = nullptr;
    quire::LayerAppend call;
    QUIRE_TRY(quire::find_layer(*cache, a.layer, state, call.layer));
    const quire::Group& g = state->group;
    quire::Step& step = state->step;
    if (step.appended[call.layer] != 0) {
      return quire::fail(
          quire::StatusCode::kBadState, "layer", "append of a layer once per step", 0, a.layer);
    }
    call.batch = step.batch;
    QUIRE_TRY(quire::read_rows(a.k, "k", {step.rows, g.kv_heads, g.dim_k}, call.k));
    QUIRE_TRY(quire::read_rows(a.v, "v", {step.rows, g.kv_heads, g.dim_v}, call.v));
    QUIRE_TRY(quire::read_parallel(a.parallel, state->max.threads, call.parallel));
    QUIRE_TRY(quire::check_rows(*state, call.k, g.dim_k, "k"));
    QUIRE_TRY(quire::check_rows(*state, call.v, g.dim_v, "v"));
    quire::append_layer(*state, call);
    step.appended[call.layer] = 1;
    ++step.layers_done;
    return quire::ok_status();
  });
}
