// Prefix handles: sequences that are read by others and change no more.
#include "src/prefix.hpp"

#include <algorithm>
#include <cstring>

#include "src/args.hpp"
#include "src/frame.hpp"
#include "src/identity.hpp"
#include "src/sequence.hpp"

namespace quire {
namespace {

// The handle that a sequence came from, if it is still there.
PrefixState* origin_of(quire_cache& cache, const PrefixState& reader) {
  if (reader.origin < 0) return nullptr;
  PrefixState& handle = cache.slots[reader.origin].prefix;
  return handle.serial == reader.origin_serial ? &handle : nullptr;
}

}  // namespace

void join_prefix(quire_cache& cache, std::int32_t parent, std::int32_t child) {
  const PrefixState from = cache.slots[parent].prefix;
  PrefixState& to = cache.slots[child].prefix;
  to = PrefixState{};
  const bool of_handle = from.serial != 0;
  to.origin = of_handle ? parent : from.origin;
  to.origin_serial = of_handle ? from.serial : from.origin_serial;
  PrefixState* handle = origin_of(cache, to);
  if (handle == nullptr) {
    to = PrefixState{};
    return;
  }
  ++handle->readers;
  handle->used_at = ++cache.prefix_clock;
}

void leave_prefix(quire_cache& cache, std::int32_t slot) {
  const PrefixState& state = cache.slots[slot].prefix;
  if (PrefixState* handle = origin_of(cache, state)) --handle->readers;
  if (state.serial != 0) cache.counters.handles.fetch_sub(1, std::memory_order_relaxed);
}

namespace {

// All that a prefix depends on beside its tokens, in one layer group.
void add_group(Identity& name,
               const quire_cache& cache,
               std::uint32_t index,
               const Policy& policy) {
  const FrameIdentity shape = identity_of(cache, index);
  std::uint32_t words[sizeof(shape) / 4];
  std::memcpy(words, &shape, sizeof(shape));
  for (const std::uint32_t word : words) name.add(word);
  const CacheState& group = cache.at(index);
  name.add(group.group.sliding_window);
  for (std::uint32_t layer = 0; layer < group.group.layers; ++layer)
    name.add(group.layer_ids[layer]);
  quire_policy plain = QUIRE_POLICY_INIT;
  write_policy(policy, &plain);
  std::uint32_t numbers[sizeof(plain) / 4];
  std::memcpy(numbers, &plain, sizeof(plain));
  for (std::size_t i = 1; i < sizeof(plain) / 4; ++i) name.add(numbers[i]);  // without the size
}

void add_float(Identity& name, float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  name.add(bits);
}

// The description of a sequence that is there.
Identity name_of_sequence(const quire_cache& cache, std::int32_t slot) {
  Identity name;
  for (std::uint32_t i = 0; i < cache.group_count; ++i) {
    const CacheState& group = cache.at(i);
    const Group& g = group.group;
    const Slot& s = group.slots[slot];
    add_group(name, cache, i, s.policy);
    for (std::uint64_t h = 0; h < g.heads(); ++h) {
      const std::uint64_t row = group.row(slot, 0, 0) + h;
      add_float(name, group.head_states[row].alpha_high);
      add_float(name, group.head_states[row].alpha_low);
      std::uint8_t* block = group.rings + row * g.ring.bytes;
      name.add(s.given_k_offset ? 1 : 0);
      for (std::uint32_t d = 0; s.given_k_offset && d < g.dim_k; ++d)
        name.add(k_offset_of(g.ring, block)[d]);
      name.add(s.given_v_offset ? 1 : 0);
      for (std::uint32_t d = 0; s.given_v_offset && d < g.dim_v; ++d)
        name.add(v_offset_of(g.ring, block)[d]);
    }
  }
  return name;
}

void add_offset(Identity& name, const float* offset, std::uint64_t head, std::uint32_t dim) {
  name.add(offset != nullptr ? 1 : 0);
  for (std::uint32_t d = 0; offset != nullptr && d < dim; ++d)
    name.add(float_to_half(offset[head * dim + d]));
}

// The description of one that would be opened.
Identity name_of_request(const quire_cache& cache, const GroupRequests& all) {
  Identity name;
  for (std::uint32_t i = 0; i < cache.group_count; ++i) {
    const Group& g = cache.at(i).group;
    const OpenRequest& request = all.request[i];
    add_group(name, cache, i, request.policy);
    for (std::uint64_t h = 0; h < g.heads(); ++h) {
      const auto layer = static_cast<std::uint32_t>(h / g.kv_heads);
      const auto head = static_cast<std::uint32_t>(h % g.kv_heads);
      const Alphas alphas = alphas_of(cache.at(i),
                                      {request.policy.alpha_high, request.policy.alpha_low},
                                      request.thresholds,
                                      layer,
                                      head);
      add_float(name, alphas.high);
      add_float(name, alphas.low);
      add_offset(name, request.k_offset, h, g.dim_k);
      add_offset(name, request.v_offset, h, g.dim_v);
    }
  }
  return name;
}

Status check_sharing(const quire_cache& cache) {
  if (cache.max.sharing) return ok_status();
  return fail(StatusCode::kUnsupported, "cache", "a cache created with QUIRE_CACHE_SHARING");
}

Status freeze(quire_cache& cache, const quire_seq_freeze_args& a) {
  QUIRE_TRY(check_sharing(cache));
  QUIRE_TRY(find_slot(cache, a.slot, state_bit(SeqState::kOpen), "slot"));
  Slot& s = cache.slots[a.slot];
  const auto tokens = static_cast<std::uint32_t>(s.tokens);
  const bool one_prompt = tokens > 0 && s.unfinished < 0 && s.ends.count == 1 &&
                          s.ends.begin[0] == 0 && s.ends.end[0] == s.tokens;
  bool replanned = false;
  for_groups(cache,
             [&](const CacheState& g) { replanned = replanned || g.slots[a.slot].replanned; });
  if (!one_prompt || replanned) {
    return fail(StatusCode::kBadState,
                "slot",
                "a sequence with one prompt under its own policy and thresholds: no plan of "
                "the caller's, no steps or cuts since",
                0,
                static_cast<std::uint64_t>(a.slot));
  }
  if (a.token_count != tokens)
    return invalid("token_count", "the sequence's tokens", tokens, a.token_count);
  if (a.token_ids == nullptr) return invalid("token_ids", "not NULL");
  Identity name = name_of_sequence(cache, a.slot);
  for (std::uint32_t t = 0; t < tokens; ++t) name.add(static_cast<std::uint32_t>(a.token_ids[t]));
  PrefixState& prefix = s.prefix;
  name.finish(tokens, prefix.identity);
  prefix.serial = prefix.used_at = ++cache.prefix_clock;
  for_groups(cache, [&](CacheState& group) { group.slots[a.slot].state = SeqState::kFrozen; });
  cache.counters.handles.fetch_add(1, std::memory_order_relaxed);
  if (a.identity != nullptr) std::copy_n(prefix.identity, 2, a.identity);
  return ok_status();
}

// The shortest handle longer than `tokens`; 0: none.
std::uint32_t next_length(const quire_cache& cache, std::uint32_t tokens, std::uint32_t limit) {
  std::uint32_t next = 0;
  for (std::uint32_t i = 0; i < cache.max.sequences; ++i) {
    const auto n = static_cast<std::uint32_t>(cache.slots[i].tokens);
    const bool candidate = cache.slots[i].state == SeqState::kFrozen && n > tokens && n <= limit;
    if (candidate && (next == 0 || n < next)) next = n;
  }
  return next;
}

std::int32_t handle_named(const quire_cache& cache,
                          std::uint32_t tokens,
                          const std::uint64_t* identity) {
  for (std::uint32_t i = 0; i < cache.max.sequences; ++i) {
    const Slot& s = cache.slots[i];
    if (s.state == SeqState::kFrozen && static_cast<std::uint32_t>(s.tokens) == tokens &&
        std::equal(identity, identity + 2, s.prefix.identity))
      return static_cast<std::int32_t>(i);
  }
  return -1;
}

Status find_prefix(quire_cache& cache, const quire_prefix_find_args& a) {
  QUIRE_TRY(check_sharing(cache));
  if (a.token_ids == nullptr && a.token_count > 0) return invalid("token_ids", "not NULL");
  if (a.slot == nullptr) return invalid("slot", "not NULL");
  quire_seq_open_args open;
  QUIRE_TRY(read_args(a.open, "open", 0, open));
  GroupRequests requests;
  QUIRE_TRY(requests.read(cache, open));
  QUIRE_TRY(requests.check(cache));
  Identity name = name_of_request(cache, requests);
  std::int32_t found = -1;
  std::uint32_t tokens = 0;
  std::uint32_t hashed = 0;
  while (const std::uint32_t length = next_length(cache, hashed, a.token_count)) {
    for (; hashed < length; ++hashed) name.add(static_cast<std::uint32_t>(a.token_ids[hashed]));
    std::uint64_t identity[2];
    name.finish(length, identity);
    const std::int32_t slot = handle_named(cache, length, identity);
    if (slot >= 0) found = slot;
    if (slot >= 0) tokens = length;
  }
  if (found >= 0) cache.slots[found].prefix.used_at = ++cache.prefix_clock;
  *a.slot = found;
  if (a.tokens != nullptr) *a.tokens = tokens;
  return ok_status();
}

// The handle that has been of no use for longest; -1: all are read.
std::int32_t oldest_unread(const quire_cache& cache) {
  std::int32_t oldest = -1;
  for (std::uint32_t i = 0; i < cache.max.sequences; ++i) {
    const Slot& s = cache.slots[i];
    if (s.state != SeqState::kFrozen || s.prefix.readers > 0) continue;
    if (oldest < 0 || s.prefix.used_at < cache.slots[oldest].prefix.used_at)
      oldest = static_cast<std::int32_t>(i);
  }
  return oldest;
}

std::uint64_t least_free(const quire_cache& cache) {
  std::uint64_t least = ~std::uint64_t{0};
  for_groups(cache, [&](const CacheState& group) {
    const std::uint64_t free = group.free_pages.free_count();
    least = std::min(least, free > group.credit ? free - group.credit : 0);
  });
  return least;
}

std::uint64_t all_free(const quire_cache& cache) {
  std::uint64_t pages = 0;
  for_groups(cache, [&](const CacheState& group) { pages += group.free_pages.free_count(); });
  return pages;
}

}  // namespace
}  // namespace quire

using quire::Status;

extern "C" quire_status quire_seq_freeze(quire_cache* cache, const quire_seq_freeze_args* args) {
  return quire::guarded(quire::error_of(args), [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire_seq_freeze_args a;
    QUIRE_TRY(quire::read_args(args, "args", 0, a));
    return quire::freeze(*cache, a);
  });
}

extern "C" quire_status quire_prefix_find(quire_cache* cache, const quire_prefix_find_args* args) {
  return quire::guarded(quire::error_of(args), [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire_prefix_find_args a;
    QUIRE_TRY(quire::read_args(args, "args", 0, a));
    return quire::find_prefix(*cache, a);
  });
}

extern "C" quire_status quire_prefix_evict(
    quire_cache* cache, uint64_t pages, uint64_t* freed, uint32_t* closed, quire_error* error) {
  return quire::guarded(error, [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    const std::uint64_t before = quire::all_free(*cache);
    std::uint32_t count = 0;
    while (quire::least_free(*cache) < pages) {
      const std::int32_t slot = quire::oldest_unread(*cache);
      if (slot < 0) break;
      QUIRE_TRY(quire::close_sequence(*cache, slot));
      ++count;
    }
    if (freed != nullptr) *freed = quire::all_free(*cache) - before;
    if (closed != nullptr) *closed = count;
    return quire::ok_status();
  });
}
