// A second sequence on the pages of a first one.
#include <cstring>

#include "src/args.hpp"
#include "src/prefix.hpp"
#include "src/sequence.hpp"

namespace quire {
namespace {

struct ForkRequest {
  std::int32_t parent = 0;
  ThresholdList thresholds;
};

// Tiers whose last page has room: the child gets a copy of it.
std::uint64_t open_pages(const CacheState& cache, std::int32_t slot) {
  std::uint64_t pages = 0;
  for (std::uint64_t i = 0; i < cache.group.heads(); ++i) {
    const HeadState& state = cache.head_states[cache.row(slot, 0, 0) + i];
    for (std::uint32_t t = 0; t < cache.group.layout.tier_count; ++t)
      pages += state.tokens[t] % cache.group.layout.tier[t].tokens != 0 ? 1 : 0;
  }
  return pages;
}

void fork_tier(CacheState& cache,
               const ForkRequest& request,
               std::int32_t child,
               std::uint64_t head,
               std::uint32_t tier) {
  const std::uint64_t from = cache.row(request.parent, 0, 0) + head;
  const std::uint64_t to = cache.row(child, 0, 0) + head;
  HeadState& parent = cache.head_states[from];
  const std::uint32_t per_page = cache.group.layout.tier[tier].tokens;
  const std::uint32_t full = parent.tokens[tier] / per_page;
  const PageRow row = cache.table.row(from);
  cache.share_pages(child, from, to, tier, full);
  parent.shared_pages[tier] = cache.head_states[to].shared_pages[tier] = full;
  const std::uint32_t rest = parent.tokens[tier] % per_page;
  if (rest == 0) return;
  const PageId copy{cache.free_pages.take()};
  cache.enter_page(child, to, tier, copy);
  std::memcpy(cache.space.address(copy, HeadId{0}),
              cache.space.address(row.page(tier, full), HeadId{0}),
              cache.group.layout.page_bytes);
  cache.counters.tier_tokens[tier].fetch_add(rest, std::memory_order_relaxed);
}

// What the child has of its own: everything but pages, which fork_tier enters.
void copy_sequence(CacheState& cache, const ForkRequest& request, std::int32_t child) {
  const Group& g = cache.group;
  const Slot& parent = cache.slots[request.parent];
  Slot& s = cache.slots[child];
  s = parent;
  s.state = SeqState::kOpen;
  s.live_pages = 0;
  s.chunks = 0;
  const std::uint64_t from = cache.row(request.parent, 0, 0);
  const std::uint64_t to = cache.row(child, 0, 0);
  std::memcpy(
      cache.rings + to * g.ring.bytes, cache.rings + from * g.ring.bytes, g.heads() * g.ring.bytes);
  for (std::uint64_t i = 0; i < g.heads(); ++i) {
    // The least significant tokens may be frozen from now on, on both sides.
    cache.head_states[from + i].lowest_length = -1;
    HeadState& state = cache.head_states[to + i];
    state = cache.head_states[from + i];
    state.pages[0] = state.pages[1] = 0;
  }
}

// From here on nothing can fail.
void fork_group(CacheState& cache, const ForkRequest& request, std::int32_t child) {
  copy_sequence(cache, request, child);
  for (std::uint64_t head = 0; head < cache.group.heads(); ++head) {
    for (std::uint32_t t = 0; t < cache.group.layout.tier_count; ++t)
      fork_tier(cache, request, child, head, t);
  }
  set_thresholds(cache, child, request.thresholds);
  // What it holds was planned by those of its parent.
  Slot& s = cache.slots[child];
  s.replanned = s.replanned || (request.thresholds.count > 0 && s.tokens > 0);
  cache.counters.sequences.fetch_add(1, std::memory_order_relaxed);
}

Status fork(quire_cache& cache, const ForkRequest& request, std::int32_t* slot) {
  if (!cache.max.sharing) {
    return fail(StatusCode::kUnsupported, "cache", "a cache created with QUIRE_CACHE_SHARING");
  }
  constexpr std::uint32_t kForkable = state_bit(SeqState::kOpen) | state_bit(SeqState::kFrozen);
  QUIRE_TRY(find_slot(cache, request.parent, kForkable, "slot"));
  QUIRE_TRY(check_threshold_layers(cache, request.thresholds));
  QUIRE_TRY(try_groups(cache, [&](const CacheState& group) {
    return check_thresholds(group, group.slots[request.parent].policy, request.thresholds);
  }));
  std::int32_t child = 0;
  QUIRE_TRY(find_free_slot(cache, &child));
  QUIRE_TRY(try_groups(
      cache, [&](CacheState& group) { return group.reserve(open_pages(group, request.parent)); }));
  for_groups(cache, [&](CacheState& group) { fork_group(group, request, child); });
  join_prefix(cache, request.parent, child);
  *slot = child;
  return ok_status();
}

}  // namespace
}  // namespace quire

extern "C" quire_status quire_seq_fork(quire_cache* cache,
                                       const quire_seq_fork_args* args,
                                       int32_t* slot) {
  return quire::guarded(quire::error_of(args), [&]() -> quire::Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire_seq_fork_args a;
    QUIRE_TRY(quire::read_args(args, "args", 0, a));
    if (slot == nullptr) return quire::invalid("slot", "not NULL");
    return quire::fork(*cache, {a.slot, {a.thresholds, a.threshold_count}}, slot);
  });
}
