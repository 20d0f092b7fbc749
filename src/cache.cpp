#include "src/cache.hpp"

#include <algorithm>

namespace quire {
namespace {

HeadTransform transform_of(const VectorFormat& format,
                           std::uint32_t seed,
                           const std::uint16_t* offset) {
  return {format.transform, seed, offset};
}

}  // namespace

HeadView CacheState::view(std::int32_t slot,
                          std::uint32_t layer,
                          std::uint32_t head,
                          std::int32_t length) const {
  const std::uint64_t index = row(slot, layer, head);
  const Format& format = group.layout.tier[0].format;
  HeadView v;
  v.tiers = group.layout.tier;
  v.tier_count = group.layout.tier_count;
  v.tokens[0] = head_states[index].tokens[0];
  v.tokens[1] = head_states[index].tokens[1];
  for (std::uint32_t t = 0; t < v.tier_count; ++t)
    v.frozen[t] = head_states[index].shared_pages[t] * v.tiers[t].tokens;
  v.row = table.row(index);
  v.space = space;
  v.head = HeadId{0};  // a page of this cache belongs to one head
  v.ring = &group.ring;
  v.ring_block = rings + index * group.ring.bytes;
  v.shape = slots[slot].shape;
  v.length = length;
  v.k = transform_of(format.k, group.seed, k_offset_of(group.ring, v.ring_block));
  v.v = transform_of(format.v, group.seed, v_offset_of(group.ring, v.ring_block));
  return v;
}

TierRule CacheState::rule(std::int32_t slot,
                          std::uint32_t layer,
                          std::uint32_t head,
                          std::int32_t length,
                          float factor) const {
  const Slot& s = slots[slot];
  const HeadState& state = head_state(slot, layer, head);
  TierRule rule;
  rule.significance = s.policy.significance;
  rule.tail_queries = s.policy.tail_queries;
  rule.min_queries = s.policy.min_queries;
  rule.ends = s.ends;
  rule.length = length;
  rule.thresholds = thresholds_at(state.alpha_high, state.alpha_low, factor, length);
  return rule;
}

AdmissionShape CacheState::admission(const Policy& policy) const {
  AdmissionShape shape;
  shape.layers = group.layers;
  shape.kv_heads = group.kv_heads;
  shape.sinks = policy.sink_tokens;
  shape.window = policy.recent_window;
  shape.tier_count = group.layout.tier_count;
  shape.ring_record_bytes = group.ring.tokens.record_bytes;
  shape.fp16_token_bytes = 2 * (std::uint64_t{group.dim_k} + group.dim_v) * group.heads();
  shape.cost.page_bytes = group.layout.page_bytes;
  for (std::uint32_t t = 0; t < group.layout.tier_count; ++t) {
    shape.cost.tokens_per_page[t] = group.layout.tier[t].tokens;
    shape.cost.record_bytes[t] = group.layout.tier[t].record_bytes;
  }
  shape.cost.chunk_bytes = kChunkBytes;
  shape.cost.chunk_pages = kChunkPages;
  shape.cost.row_chunks = max.directory_length;
  shape.cost.fixed_bytes =
      group.ring.bytes + std::uint64_t{max.directory_length} * 4 + sizeof(HeadState);
  return shape;
}

void CacheState::append_pages(std::int32_t slot,
                              std::uint64_t index,
                              std::uint32_t tier,
                              const PageId* pages,
                              std::uint32_t count) {
  const std::uint64_t chunks_before = table.free_chunks.free_count();
  for (std::uint32_t p = 0; p < count; ++p)
    set_page(table, index, tier, head_states[index].pages[tier] + p, pages[p]);
  head_states[index].pages[tier] += count;
  const std::uint64_t taken = chunks_before - table.free_chunks.free_count();
  slots[slot].live_pages += count;
  slots[slot].chunks += taken;
  counters.chunks.fetch_add(taken, std::memory_order_relaxed);
}

void CacheState::enter_page(std::int32_t slot,
                            std::uint64_t index,
                            std::uint32_t tier,
                            PageId page) {
  append_pages(slot, index, tier, &page, 1);
  if (page_holders != nullptr) page_holders[page.value] = 1;
  counters.live_pages.fetch_add(1, std::memory_order_relaxed);
}

// In runs as long as a chunk: counters that other threads read cost more than the page.
void CacheState::share_pages(std::int32_t slot,
                             std::uint64_t from,
                             std::uint64_t to,
                             std::uint32_t tier,
                             std::uint32_t count) {
  const PageRow row = table.row(from);
  for (std::uint32_t first = 0; first < count; first += kChunkPages) {
    PageId run[kChunkPages];
    const std::uint32_t length = std::min(kChunkPages, count - first);
    std::uint32_t second = 0;  // holders that make a page a shared one
    for (std::uint32_t p = 0; p < length; ++p) {
      run[p] = row.page(tier, first + p);
      if (++page_holders[run[p].value] == 2) ++second;
    }
    append_pages(slot, to, tier, run, length);
    counters.shared_pages.fetch_add(second, std::memory_order_relaxed);
  }
}

// True when nobody holds the page any more.
bool CacheState::let_go(PageId page) {
  if (page_holders == nullptr) return true;
  const std::uint32_t left = --page_holders[page.value];
  if (left == 1) counters.shared_pages.fetch_sub(1, std::memory_order_relaxed);
  return left == 0;
}

void CacheState::own_page(std::uint64_t index, std::uint32_t tier, std::uint32_t page) {
  const PageId theirs = table.row(index).page(tier, page);
  const PageId mine{free_pages.take()};
  std::memcpy(
      space.address(mine, HeadId{0}), space.address(theirs, HeadId{0}), group.layout.page_bytes);
  set_page(table, index, tier, page, mine);
  page_holders[mine.value] = 1;
  const bool last = let_go(theirs);
  QUIRE_ASSERT(!last);
  counters.live_pages.fetch_add(1, std::memory_order_relaxed);
}

std::uint32_t CacheState::shrink(std::int32_t slot,
                                 std::uint64_t index,
                                 std::uint32_t tier,
                                 std::uint32_t keep) {
  HeadState& state = head_states[index];
  const std::uint64_t chunks_before = table.free_chunks.free_count();
  std::uint32_t freed = 0;
  while (state.pages[tier] > keep) {
    const std::uint32_t last = --state.pages[tier];
    const PageId page = table.row(index).page(tier, last);
    if (let_go(page)) {
      free_pages.put(page.value);
      ++freed;
    }
    --slots[slot].live_pages;
    drop_chunk_if_empty(table, index, tier, last, state.pages[1 - tier]);
  }
  const std::uint64_t given = table.free_chunks.free_count() - chunks_before;
  slots[slot].chunks -= given;
  counters.live_pages.fetch_sub(freed, std::memory_order_relaxed);
  counters.chunks.fetch_sub(given, std::memory_order_relaxed);
  return freed;
}

// A page is held by nobody else only if that is true of all pages behind it: a fork takes all of a
// row, and a row loses no page while it is shared.
void CacheState::refresh_shared(std::int32_t slot) {
  if (page_holders == nullptr) return;
  for (std::uint64_t i = row(slot, 0, 0); i < row(slot, 0, 0) + group.heads(); ++i) {
    HeadState& state = head_states[i];
    for (std::uint32_t t = 0; t < group.layout.tier_count; ++t) {
      std::uint32_t& shared = state.shared_pages[t];
      const std::uint32_t before = shared;
      while (shared > 0 && page_holders[table.row(i).page(t, shared - 1).value] == 1) --shared;
      if (shared != before) state.lowest_length = -1;  // there are more tokens to choose from
    }
  }
}

std::uint32_t CacheState::release_empty(std::int32_t slot, std::uint64_t index) {
  std::uint32_t returned = 0;
  for (std::uint32_t t = 0; t < group.layout.tier_count; ++t) {
    returned +=
        shrink(slot, index, t, ceil_div(head_states[index].tokens[t], group.layout.tier[t].tokens));
  }
  return returned;
}

void CacheState::release_all(std::int32_t slot) {
  refresh_shared(slot);
  for (std::uint64_t i = row(slot, 0, 0); i < row(slot, 0, 0) + group.heads(); ++i) {
    HeadState& state = head_states[i];
    for (std::uint32_t t = 0; t < group.layout.tier_count; ++t) {
      // Tokens of shared pages are still there.
      const std::uint64_t gone =
          state.tokens[t] - std::uint64_t{state.shared_pages[t]} * group.layout.tier[t].tokens;
      slots[slot].tier_tokens[t] -= state.tokens[t];
      counters.tier_tokens[t].fetch_sub(gone, std::memory_order_relaxed);
      state.tokens[t] = 0;
      state.shared_pages[t] = 0;
    }
    state.lowest_length = -1;
    release_empty(slot, i);
  }
}

Status CacheState::reserve(std::uint64_t needed) {
  const bool fault = fault_countdown > 0 && --fault_countdown == 0;
  Status status = check_pages(free_pages, credit, needed);
  if (fault) status = fail(StatusCode::kOutOfPages, "pages", "no injected fault", needed, 0);
  if (!status.ok()) counters.shortages.fetch_add(1, std::memory_order_relaxed);
  return status;
}

void CacheState::set_credit(Slot& slot, std::uint64_t pages) {
  credit = credit - slot.credit + pages;
  slot.credit = pages;
  counters.promised.store(credit, std::memory_order_relaxed);
}

void CacheState::add_tier_tokens(Slot& slot,
                                 const std::uint32_t* before,
                                 const std::uint32_t* after) {
  for (std::uint32_t t = 0; t < kMaxTiers; ++t) {
    const std::uint64_t change =
        std::uint64_t{after[t]} - before[t];  // wraps for a decrease, as meant
    slot.tier_tokens[t] += change;
    counters.tier_tokens[t].fetch_add(change, std::memory_order_relaxed);
  }
}

Status find_slot(const CacheState& cache,
                 std::int32_t slot,
                 std::uint32_t allowed_states,
                 const char* name) {
  if (slot < 0 || static_cast<std::uint32_t>(slot) >= cache.max.sequences) {
    return invalid(name,
                   "an open sequence's slot below max_sequences",
                   cache.max.sequences,
                   static_cast<std::uint64_t>(slot));
  }
  const SeqState state = cache.slots[slot].state;
  if ((allowed_states & state_bit(state)) != 0) return ok_status();
  static constexpr const char* kWhy[] = {"the sequence is closed",
                                         "the sequence is open, not in a prompt or step",
                                         "the sequence is in a prompt",
                                         "the sequence is in a step",
                                         "drafted rows wait for accept",
                                         "a step or prompt was given up half-way: close it",
                                         "the sequence is frozen: a prefix for others"};
  return fail(StatusCode::kBadState,
              name,
              kWhy[static_cast<std::uint32_t>(state)],
              0,
              static_cast<std::uint64_t>(slot));
}

}  // namespace quire
