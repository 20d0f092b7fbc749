// Drafted rows: they lie in the ring behind the last token, where nothing else reads them, until
// accept makes tokens of some and forgets the others.
#include "src/drafts.hpp"

#include <algorithm>
#include <cstring>

#include "quire/pages/records.hpp"
#include "src/append.hpp"
#include "src/args.hpp"
#include "src/step_plan.hpp"

namespace quire {

std::uint32_t most_rows(const quire_cache& cache) {
  std::uint32_t most = kMaxDecodeRows;
  for_groups(cache,
             [&](const CacheState& group) { most = std::min(most, group.group.max_draft + 1); });
  return most;
}

Status read_step_rows(const quire_cache& cache, const quire_step_begin_args& args, StepRows& out) {
  const std::uint32_t most = most_rows(cache);
  out.rows = args.rows == 0 ? 1 : args.rows;
  if (out.rows > most)
    return invalid("rows", "0 to 16, drafts (rows - 1) up to max_draft", most, out.rows);
  out.counts = args.row_counts;
  out.masks = args.draft_mask;
  return ok_status();
}

Status check_rows_of(const StepRows& rows, std::uint32_t index) {
  const std::uint32_t count = rows.count(index);
  if (count < 1 || count > rows.rows) return invalid("row_counts", "1 to rows", rows.rows, count);
  if (rows.masks == nullptr) return ok_status();
  const std::uint32_t* sees = rows.masks + std::uint64_t{index} * rows.rows;
  for (std::uint32_t r = 0; r < count; ++r) {
    const std::uint32_t before = sees[r] & ((1u << r) - 1);
    const std::uint32_t parent =
        before == 0 ? 0 : 31u - static_cast<std::uint32_t>(__builtin_clz(before));
    const std::uint32_t want = (r == 0 ? 0 : sees[parent]) | (1u << r);
    if (sees[r] != want) {
      return invalid("draft_mask",
                     "per row itself and what an earlier row (its parent) sees; row 0 itself",
                     want,
                     sees[r]);
    }
  }
  return ok_status();
}

void set_rows(const StepRows& rows, std::uint32_t index, StepSlot& out) {
  out.rows = rows.count(index);
  out.tree = linear_drafts();
  if (rows.masks == nullptr) return;
  out.branches = true;
  const std::uint32_t* sees = rows.masks + std::uint64_t{index} * rows.rows;
  for (std::uint32_t r = 0; r < kMaxDecodeRows; ++r)
    out.tree.sees[r] = r < out.rows ? static_cast<std::uint16_t>(sees[r]) : std::uint16_t{0};
}

// A token more raises the count of one tier, or of both where it pushes another one down.
std::uint64_t draft_pages(const CacheState& cache, std::uint32_t index) {
  const StepSlot& step = cache.step.slots[index];
  const Policy& policy = cache.slots[step.slot].policy;
  const std::uint32_t more = step.rows - 1;
  const std::uint32_t tiers =
      policy.kind == PolicyKind::kThreshold ? cache.group.layout.tier_count : 1;
  std::uint64_t pages = 0;
  for (std::uint32_t layer = 0; more > 0 && layer < cache.group.layers; ++layer) {
    for (std::uint32_t head = 0; head < cache.group.kv_heads; ++head) {
      const HeadPlan& plan = cache.plan(index, layer, head);
      for (std::uint32_t t = 0; t < tiers; ++t) {
        const std::uint32_t per_page = cache.group.layout.tier[t].tokens;
        const auto after = static_cast<std::uint32_t>(t == 0 ? plan.high_after : plan.low_after);
        pages += ceil_div(after + more, per_page) - ceil_div(after, per_page);
      }
    }
  }
  return pages;
}

namespace {

// The rows of one sequence that become tokens, in order.
struct AcceptedRows {
  std::int32_t slot = -1;
  std::uint32_t count = 0;
  const std::uint32_t* rows = nullptr;  // nullptr: 1 to count

  std::uint32_t row(std::uint32_t i) const { return rows == nullptr ? i + 1 : rows[i]; }
};

struct AcceptCall {
  const std::int32_t* slots = nullptr;
  std::uint32_t batch = 0;
  const std::uint32_t* counts = nullptr;
  const std::uint32_t* rows = nullptr;
  std::uint32_t row_stride = 0;
  Parallel parallel;

  AcceptedRows at(std::uint32_t i) const {
    return {slots[i], counts[i], rows == nullptr ? nullptr : rows + std::uint64_t{i} * row_stride};
  }
};

Status check_accepted(const CacheState& cache, const AcceptedRows& accepted) {
  QUIRE_TRY(find_slot(cache, accepted.slot, state_bit(SeqState::kDraft), "slots"));
  const Slot& s = cache.slots[accepted.slot];
  if (accepted.count > s.drafts)
    return invalid("counts", "up to the sequence's drafts", s.drafts, accepted.count);
  std::uint32_t last = 0;
  for (std::uint32_t i = 0; i < accepted.count; ++i) {
    const std::uint32_t row = accepted.row(i);
    if (row < 1 || row > s.drafts)
      return invalid("rows", "1 to the sequence's drafts", s.drafts, row);
    if (s.tree.parent(row) != static_cast<std::int32_t>(last))
      return invalid("rows", "each row a child of the one before (the first of row 0)", last, row);
    last = row;
  }
  return ok_status();
}

Status check_accept(const quire_cache& cache, const AcceptCall& call) {
  if (cache.step.open)
    return fail(StatusCode::kBadState, "step", "quire_step_end of the open step first");
  if (call.batch < 1 || call.batch > cache.max.batch)
    return invalid("batch", "1 to max_batch", cache.max.batch, call.batch);
  if (call.slots == nullptr) return invalid("slots", "not NULL");
  if (call.counts == nullptr) return invalid("counts", "not NULL");
  for (std::uint32_t i = 0; i < call.batch; ++i) {
    if (call.slots[i] == -1) continue;
    if (call.rows != nullptr && call.counts[i] > call.row_stride)
      return invalid("counts", "up to row_stride", call.row_stride, call.counts[i]);
    QUIRE_TRY(check_accepted(cache, call.at(i)));
    for (std::uint32_t j = 0; j < i; ++j) {
      if (call.slots[j] == call.slots[i])
        return invalid(
            "slots", "each slot once in a batch", 0, static_cast<std::uint64_t>(call.slots[i]));
    }
  }
  return ok_status();
}

// Accepted rows move up to where tokens in a row would lie. Rows only move towards row 1.
void close_up(CacheState& cache, const AcceptedRows& accepted) {
  const RingLayout& ring = cache.group.ring;
  const RingShape& shape = cache.slots[accepted.slot].shape;
  const std::int32_t first = cache.slots[accepted.slot].tokens;  // position of an accepted row 1
  for (std::uint32_t i = 0; i < accepted.count; ++i) {
    const auto to = first + static_cast<std::int32_t>(i);
    const auto from = first + static_cast<std::int32_t>(accepted.row(i)) - 1;
    if (from == to) continue;
    for (std::uint64_t r = 0; r < cache.group.heads(); ++r) {
      std::uint8_t* block = cache.rings + (cache.row(accepted.slot, 0, 0) + r) * ring.bytes;
      for_each_segment(ring.tokens, [&](const RecordSegment& segment) {
        std::uint8_t* array = block + segment.offset;
        std::memcpy(array + shape.slot(to) * segment.bytes,
                    array + shape.slot(from) * segment.bytes,
                    segment.bytes);
      });
      if (ring.tokens.fields.position) position_array(ring.tokens, block)[shape.slot(to)] = to;
    }
  }
}

// Pages of a planned token, out of the promise that step_begin took.
void take_promised(CacheState& cache, std::int32_t slot) {
  Slot& s = cache.slots[slot];
  for (std::uint64_t r = 0; r < cache.group.heads(); ++r) {
    const std::uint64_t row = cache.row(slot, 0, 0) + r;
    for (std::uint32_t t = 0; t < cache.group.layout.tier_count; ++t) {
      const std::uint32_t pages =
          pages_to_take(cache, cache.step.plans[r], cache.head_states[row], t);
      cache.set_credit(s, s.credit - pages);
      for (std::uint32_t p = 0; p < pages; ++p)
        cache.enter_page(slot, row, t, PageId{cache.free_pages.take()});
    }
  }
}

// One accepted row becomes a token: what a step does, but for the token, which is there.
void commit_row(CacheState& cache, std::int32_t slot, const Parallel& parallel) {
  Slot& s = cache.slots[slot];
  StepSlot& step = cache.step.slots[0];
  step = StepSlot{};
  step.slot = slot;
  step.factor = s.factor;
  plan_all_heads(cache, 0, s.factor, false);
  take_promised(cache, slot);
  for (std::uint32_t layer = 0; layer < cache.group.layers; ++layer)
    append_layer(cache, {layer, 1, true, RowsView{}, RowsView{}, parallel});
  ++s.tokens;
  ++s.unscored;
}

void accept(CacheState& cache, const AcceptedRows& accepted, const Parallel& parallel) {
  Slot& s = cache.slots[accepted.slot];
  cache.refresh_shared(accepted.slot);
  close_up(cache, accepted);
  for (std::uint32_t i = 0; i < accepted.count; ++i) commit_row(cache, accepted.slot, parallel);
  for (std::uint64_t r = 0; r < cache.group.heads(); ++r)
    cache.release_empty(accepted.slot, cache.row(accepted.slot, 0, 0) + r);
  cache.set_credit(s, 0);
  s.drafts = 0;
  s.state = SeqState::kOpen;
}

}  // namespace
}  // namespace quire

extern "C" quire_status quire_accept(quire_cache* cache, const quire_accept_args* args) {
  return quire::guarded(quire::error_of(args), [&]() -> quire::Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire_accept_args a;
    QUIRE_TRY(quire::read_args(args, "args", 0, a));
    quire::AcceptCall call;
    call.slots = a.slots;
    call.batch = a.batch;
    call.counts = a.counts;
    call.rows = a.rows;
    call.row_stride = a.row_stride;
    QUIRE_TRY(quire::read_parallel(a.parallel, cache->max.threads, call.parallel));
    QUIRE_TRY(quire::check_accept(*cache, call));
    for (std::uint32_t i = 0; i < call.batch; ++i) {
      if (call.slots[i] == -1) continue;
      quire::for_groups(*cache, [&](quire::CacheState& group) {
        quire::accept(group, call.at(i), call.parallel);
      });
    }
    return quire::ok_status();
  });
}
