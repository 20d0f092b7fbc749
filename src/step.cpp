// A step: begin (plan, count, assign), end or cancel. What happens per layer is in append.cpp and
// attend.cpp.
#include <algorithm>
#include <cstddef>

#include "src/append.hpp"
#include "src/args.hpp"
#include "src/cache.hpp"
#include "src/drafts.hpp"
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
  StepRows rows;
  bool admits_some = false;
  std::uint8_t* admitted = nullptr;
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
    QUIRE_TRY(check_rows_of(call.rows, i));
    const std::uint64_t longest =
        static_cast<std::uint64_t>(cache.slots[slot].tokens) + call.rows.count(i);
    if (longest > cache.max.tokens) {
      return fail(
          StatusCode::kCapacity, "max_tokens", "tokens of a sequence", longest, cache.max.tokens);
    }
  }
  const bool logs = call.plan != nullptr || call.plan_count != 0 || call.plan_out != nullptr ||
                    call.plan_out_count != nullptr;
  if (logs && (call.batch != 1 || call.slots[0] == -1))
    return invalid("plan", "a batch of one sequence", 1, call.batch);
  if (logs && call.rows.rows > 1)
    return invalid("plan", "a step without drafts", 1, call.rows.rows);
  if (call.admits_some && call.admitted == nullptr)
    return invalid("admitted", "not NULL with QUIRE_SHORTAGE_PREFIX");
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

// Pages for the step itself and for drafts that may be accepted after it.
struct BatchNeed {
  std::uint64_t now = 0;
  std::uint64_t later = 0;
};

BatchNeed need_of(const CacheState& cache, std::uint32_t index, const std::uint32_t* counts) {
  const std::uint64_t rows = cache.group.heads() * kMaxTiers;
  BatchNeed need;
  for (std::uint64_t r = 0; r < rows; ++r) need.now += counts[index * rows + r];
  if (cache.step.slots[index].slot >= 0) need.later = draft_pages(cache, index);
  return need;
}

// Sequences in the order of the batch as long as they fit; the others become padding. All or none
// unless the caller allows some. The credit of drafts is set.
Status admit(CacheState& cache, const BeginCall& call, std::uint32_t* counts) {
  const std::uint64_t rows = cache.group.heads() * kMaxTiers;
  std::uint64_t all = 0;
  for (std::uint32_t i = 0; i < call.batch; ++i) {
    const BatchNeed need = need_of(cache, i, counts);
    all += need.now + need.later;
  }
  const Status whole = cache.reserve(all);
  if (!whole.ok() && !call.admits_some) return whole;
  const std::uint64_t free = cache.free_pages.free_count();
  std::uint64_t left = free > cache.credit ? free - cache.credit : 0;
  std::uint32_t taken = 0;
  for (std::uint32_t i = 0; i < call.batch; ++i) {
    const BatchNeed need = need_of(cache, i, counts);
    const bool fits = cache.step.slots[i].slot >= 0 && need.now + need.later <= left;
    left -= fits ? need.now + need.later : 0;
    taken += fits ? 1 : 0;
    if (!fits) std::fill(counts + i * rows, counts + (i + 1) * rows, 0);
    if (!fits) cache.step.slots[i].slot = -1;
  }
  if (taken == 0 && !whole.ok()) return whole;
  for (std::uint32_t i = 0; i < call.batch; ++i) {
    const std::int32_t slot = cache.step.slots[i].slot;
    if (call.admitted != nullptr) call.admitted[i] = slot >= 0 ? 1 : 0;
    if (slot >= 0) cache.set_credit(cache.slots[slot], draft_pages(cache, i));
  }
  return ok_status();
}

Status step_begin(CacheState& cache, const BeginCall& call) {
  QUIRE_TRY(check_batch(cache, call));
  Step& step = cache.step;
  for (std::uint32_t i = 0; i < call.batch; ++i) {
    step.slots[i] = StepSlot{};
    step.slots[i].slot = call.slots[i];
    if (call.slots[i] < 0) continue;
    set_rows(call.rows, i, step.slots[i]);
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
  QUIRE_TRY(admit(cache, call, counts));
  const std::uint64_t total = exclusive_scan(counts, rows);
  step.replay = call.plan;
  step.replay_count = call.plan_count;
  if (call.plan_out != nullptr || call.plan_out_count != nullptr) {
    const std::uint64_t made = log_moves(cache, 0, call.plan_out, call.plan_capacity);
    if (call.plan_out_count != nullptr) *call.plan_out_count = made;
  }
  assign_pages(cache, call.batch, counts, total);
  step.open = true;
  step.batch = call.batch;
  step.rows = call.rows.rows;
  step.layers_done = 0;
  std::fill(step.appended, step.appended + cache.group.layers, std::uint8_t{0});
  std::fill(step.scored, step.scored + cache.group.layers, std::uint8_t{0});
  for (std::uint32_t i = 0; i < call.batch; ++i) {
    if (step.slots[i].slot >= 0) cache.slots[step.slots[i].slot].state = SeqState::kStep;
  }
  return ok_status();
}

void close_sequence(CacheState& cache, std::int32_t slot, SeqState state) {
  for (std::uint64_t r = 0; r < cache.group.heads(); ++r)
    cache.release_empty(slot, cache.row(slot, 0, 0) + r);
  cache.slots[slot].state = state;
  if (state != SeqState::kDraft) cache.set_credit(cache.slots[slot], 0);
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
  const bool scored = std::any_of(
      step.scored, step.scored + cache.group.layers, [](std::uint8_t layer) { return layer != 0; });
  for (std::uint32_t i = 0; i < step.batch; ++i) {
    const StepSlot& done = step.slots[i];
    if (done.slot < 0) continue;
    Slot& s = cache.slots[done.slot];
    close_sequence(cache, done.slot, done.rows > 1 ? SeqState::kDraft : SeqState::kOpen);
    s.drafts = done.rows - 1;
    s.tree = done.tree;
    if (scored) s.unscored = 0;
    if (done.cadence != 0) {
      s.factor = done.factor;
      s.controlled_at = s.tokens;
    }
    ++s.tokens;
  }
  step.open = false;
  step.replay = nullptr;
  cache.counters.steps.fetch_add(1, std::memory_order_relaxed);
  return ok_status();
}

Status step_cancel(CacheState& cache) {
  if (!cache.step.open) return fail(StatusCode::kBadState, "step", "quire_step_begin first");
  const SeqState state = cache.step.layers_done == 0 ? SeqState::kOpen : SeqState::kBroken;
  for (std::uint32_t i = 0; i < cache.step.batch; ++i) {
    if (cache.step.slots[i].slot >= 0) close_sequence(cache, cache.step.slots[i].slot, state);
  }
  cache.step.open = false;
  cache.step.replay = nullptr;
  return ok_status();
}

}  // namespace

std::uint64_t step_workspace(const Group& group, const Maxima& max) {
  Arena begin(Workspace{});
  begin.take<std::uint32_t>(max.batch * group.heads() * kMaxTiers);
  return std::max(begin.used(), append_workspace(group, max));
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
    QUIRE_TRY(quire::read_step_rows(*cache, a, call.rows));
    if (a.on_shortage > QUIRE_SHORTAGE_PREFIX)
      return quire::invalid("on_shortage", "a quire_on_shortage, 0 or 1", 1, a.on_shortage);
    call.admits_some = a.on_shortage == QUIRE_SHORTAGE_PREFIX;
    call.admitted = a.admitted;
    return quire::step_begin(*cache, call);
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
