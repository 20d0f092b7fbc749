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

Status check_batch(const quire_cache& cache, const BeginCall& call) {
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
    if (cache.slots[slot].unfinished >= 0) {
      return fail(StatusCode::kBadState,
                  "slots",
                  "the last round of the prompt first",
                  0,
                  static_cast<std::uint64_t>(slot));
    }
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
  if (logs && cache.group_count > 1)
    return fail(StatusCode::kUnsupported, "plan", "a cache of one layer group");
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

// Plans of the batch in one layer group.
Status plan_batch(CacheState& cache, const BeginCall& call) {
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
  return ok_status();
}

// Pages of a planned sequence in one layer group: for the step itself, and for drafts that may be
// accepted after it.
std::uint64_t pages_needed(const CacheState& cache, std::uint32_t index) {
  const std::int32_t slot = cache.step.slots[index].slot;
  if (slot < 0) return 0;
  std::uint64_t pages = draft_pages(cache, index);
  for (std::uint64_t r = 0; r < cache.group.heads(); ++r) {
    const HeadState& state = cache.head_states[cache.row(slot, 0, 0) + r];
    const HeadPlan& plan = cache.step.plans[index * cache.group.heads() + r];
    for (std::uint32_t t = 0; t < cache.group.layout.tier_count; ++t)
      pages += pages_to_take(cache, plan, state, t);
  }
  return pages;
}

// What is free in every layer group beside promises.
struct PagesLeft {
  std::uint64_t in_group[kMaxLayerGroups] = {};

  explicit PagesLeft(const quire_cache& cache) {
    for (std::uint32_t g = 0; g < cache.group_count; ++g) {
      const CacheState& state = cache.at(g);
      const std::uint64_t free = state.free_pages.free_count();
      in_group[g] = free > state.credit ? free - state.credit : 0;
    }
  }

  // Takes what a sequence needs in all groups, or nothing.
  bool take(const quire_cache& cache, std::uint32_t index) {
    std::uint64_t needed[kMaxLayerGroups];
    for (std::uint32_t g = 0; g < cache.group_count; ++g) {
      needed[g] = pages_needed(cache.at(g), index);
      if (needed[g] > in_group[g]) return false;
    }
    for (std::uint32_t g = 0; g < cache.group_count; ++g) in_group[g] -= needed[g];
    return true;
  }
};

// Sequences in the order of the batch as far as pages reach; the others become padding. All or none
// unless the caller allows some.
Status admit(quire_cache& cache, const BeginCall& call) {
  const Status whole = try_groups(cache, [&](CacheState& group) {
    std::uint64_t pages = 0;
    for (std::uint32_t i = 0; i < call.batch; ++i) pages += pages_needed(group, i);
    return group.reserve(pages);
  });
  if (!whole.ok() && !call.admits_some) return whole;
  PagesLeft left(cache);
  std::uint32_t taken = 0;
  for (std::uint32_t i = 0; i < call.batch; ++i) {
    if (call.slots[i] < 0) continue;
    const bool fits = left.take(cache, i);
    taken += fits ? 1 : 0;
    if (!fits) for_groups(cache, [&](CacheState& group) { group.step.slots[i].slot = -1; });
  }
  if (taken == 0 && !whole.ok()) return whole;
  for (std::uint32_t i = 0; call.admitted != nullptr && i < call.batch; ++i)
    call.admitted[i] = cache.step.slots[i].slot >= 0 ? 1 : 0;
  return ok_status();
}

// From here on nothing can fail.
void open_step(CacheState& cache, const BeginCall& call) {
  Step& step = cache.step;
  Arena arena(cache.workspace);
  const std::uint64_t rows = call.batch * cache.group.heads() * kMaxTiers;
  auto* counts = arena.take<std::uint32_t>(rows);
  count_pages(cache, call.batch, counts);
  for (std::uint32_t i = 0; i < call.batch; ++i) {
    const std::int32_t slot = step.slots[i].slot;
    if (slot >= 0) cache.set_credit(cache.slots[slot], draft_pages(cache, i));
    if (slot >= 0) cache.slots[slot].state = SeqState::kStep;
  }
  assign_pages(cache, call.batch, counts, exclusive_scan(counts, rows));
  step.replay = call.plan;
  step.replay_count = call.plan_count;
  step.open = true;
  step.batch = call.batch;
  step.rows = call.rows.rows;
  step.layers_done = 0;
  std::fill(step.appended, step.appended + cache.group.layers, std::uint8_t{0});
  std::fill(step.scored, step.scored + cache.group.layers, std::uint8_t{0});
}

Status step_begin(quire_cache& cache, const BeginCall& call) {
  QUIRE_TRY(check_batch(cache, call));
  QUIRE_TRY(try_groups(cache, [&](CacheState& group) { return plan_batch(group, call); }));
  QUIRE_TRY(admit(cache, call));
  if (call.plan_out != nullptr || call.plan_out_count != nullptr) {
    cache.step.replay = call.plan;
    cache.step.replay_count = call.plan_count;
    const std::uint64_t made = log_moves(cache, 0, call.plan_out, call.plan_capacity);
    if (call.plan_out_count != nullptr) *call.plan_out_count = made;
  }
  for_groups(cache, [&](CacheState& group) { open_step(group, call); });
  return ok_status();
}

void close_sequence(CacheState& cache, std::int32_t slot, SeqState state) {
  for (std::uint64_t r = 0; r < cache.group.heads(); ++r)
    cache.release_empty(slot, cache.row(slot, 0, 0) + r);
  cache.slots[slot].state = state;
  if (state != SeqState::kDraft) cache.set_credit(cache.slots[slot], 0);
}

Status check_ended(const CacheState& cache) {
  const Step& step = cache.step;
  if (!step.open) return fail(StatusCode::kBadState, "step", "quire_step_begin first");
  if (step.layers_done == cache.group.layers) return ok_status();
  return fail(StatusCode::kBadState,
              "layer",
              "quire_append of every layer first",
              cache.group.layers,
              step.layers_done);
}

void end_step(CacheState& cache) {
  Step& step = cache.step;
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
}

void cancel_step(CacheState& cache, SeqState state) {
  for (std::uint32_t i = 0; i < cache.step.batch; ++i) {
    if (cache.step.slots[i].slot >= 0) close_sequence(cache, cache.step.slots[i].slot, state);
  }
  cache.step.open = false;
  cache.step.replay = nullptr;
}

Status step_end(quire_cache& cache) {
  QUIRE_TRY(try_groups(cache, check_ended));
  for_groups(cache, end_step);
  cache.counters.steps.fetch_add(1, std::memory_order_relaxed);
  return ok_status();
}

Status step_cancel(quire_cache& cache) {
  if (!cache.step.open) return fail(StatusCode::kBadState, "step", "quire_step_begin first");
  std::uint32_t done = 0;
  for_groups(cache, [&](const CacheState& group) { done += group.step.layers_done; });
  const SeqState state = done == 0 ? SeqState::kOpen : SeqState::kBroken;
  for_groups(cache, [&](CacheState& group) { cancel_step(group, state); });
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
