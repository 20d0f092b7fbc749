// Reading a cache: statistics, contents, admission.
#include <algorithm>
#include <cstdio>

#include "quire/pages/head_tokens.hpp"
#include "src/args.hpp"
#include "src/control.hpp"
#include "src/drafts.hpp"
#include "src/sequence.hpp"

namespace quire {
namespace {

std::uint64_t record_bytes(const Group& group, const std::uint64_t* tier_tokens) {
  std::uint64_t bytes = 0;
  for (std::uint32_t t = 0; t < group.layout.tier_count; ++t) {
    bytes += tier_tokens[t] * group.layout.tier[t].record_bytes;
  }
  return bytes;
}

// Directories and head states of one open sequence.
std::uint64_t row_bytes(const CacheState& cache) {
  return cache.group.heads() * (std::uint64_t{cache.max.directory_length} * 4 + sizeof(HeadState));
}

std::uint64_t sequence_ring_bytes(const Group& g) {
  return g.heads() * (g.ring.bytes - g.ring.offset_bytes);
}

// Adds one layer group.
void add_stats(const CacheState& cache, quire_stats& out) {
  const auto get = [](const std::atomic<std::uint64_t>& x) {
    return x.load(std::memory_order_relaxed);
  };
  const Counters& c = cache.counters;
  const Group& g = cache.group;
  const std::uint64_t sequences = get(c.sequences);
  const std::uint64_t live = get(c.live_pages);
  const std::uint64_t tokens[kMaxTiers] = {get(c.tier_tokens[0]), get(c.tier_tokens[1])};
  out.pages += cache.max.pages;
  out.live_pages += live;
  out.promised_pages += get(c.promised);
  out.record_bytes += record_bytes(g, tokens);
  out.page_bytes += live * g.layout.page_bytes;
  out.ring_bytes += sequences * sequence_ring_bytes(g);
  out.offset_bytes += sequences * g.heads() * g.ring.offset_bytes;
  out.table_bytes += sequences * row_bytes(cache) + get(c.chunks) * kChunkBytes;
  out.free_bytes += (cache.max.pages - std::min(live, cache.max.pages)) * g.layout.page_bytes;
  out.workspace_bytes =
      std::max(out.workspace_bytes, workspace_bytes(g, cache.max, *cache.backend));
  out.tokens_dropped += get(c.dropped);
  out.tokens_demoted += get(c.demoted);
  out.values_saturated += get(c.saturated);
  out.shortages += get(c.shortages);
  out.shared_pages += get(c.shared_pages);
}

quire_stats stats_of(const quire_cache& cache) {
  quire_stats out = QUIRE_STATS_INIT;
  for_groups(cache, [&](const CacheState& group) { add_stats(group, out); });
  const std::atomic<std::uint64_t>& sequences = cache.counters.sequences;
  out.sequences = static_cast<std::uint32_t>(sequences.load(std::memory_order_relaxed));
  out.handles = static_cast<std::uint32_t>(cache.counters.handles.load(std::memory_order_relaxed));
  out.steps = cache.counters.steps.load(std::memory_order_relaxed);
  out.fragmentation = out.page_bytes == 0 ? 0.0
                                          : 1.0 - static_cast<double>(out.record_bytes) /
                                                      static_cast<double>(out.page_bytes);
  return out;
}

void add_info(const CacheState& cache, std::int32_t slot, quire_seq_info& out) {
  const Slot& s = cache.slots[slot];
  const Group& g = cache.group;
  const auto tokens = static_cast<std::uint64_t>(s.tokens);
  out.high_tokens += s.tier_tokens[0];
  out.low_tokens += s.tier_tokens[1];
  out.ring_tokens += (tokens - static_cast<std::uint64_t>(s.shape.outside(s.tokens))) * g.heads();
  out.live_pages += s.live_pages;
  out.record_bytes += record_bytes(g, s.tier_tokens);
  out.page_bytes += s.live_pages * g.layout.page_bytes;
  out.ring_bytes += sequence_ring_bytes(g);
  out.offset_bytes += g.heads() * g.ring.offset_bytes;
  out.table_bytes += row_bytes(cache) + s.chunks * kChunkBytes;
  out.fp16_bytes += 2 * (std::uint64_t{g.dim_k} + g.dim_v) * tokens * g.heads();
}

quire_seq_info info_of(const quire_cache& cache, std::int32_t slot) {
  quire_seq_info out = QUIRE_SEQ_INFO_INIT;
  for_groups(cache, [&](const CacheState& group) { add_info(group, slot, out); });
  out.state = static_cast<std::uint32_t>(cache.slots[slot].state);
  out.tokens = static_cast<std::uint32_t>(cache.slots[slot].tokens);
  out.readers = cache.slots[slot].prefix.readers;
  out.total_bytes = out.page_bytes + out.ring_bytes + out.offset_bytes + out.table_bytes;
  return out;
}

// One head of one layer group.
struct HeadPlace {
  const CacheState* state = nullptr;
  std::int32_t slot = 0;
  std::uint32_t layer = 0;
  std::uint32_t head = 0;
};

// Checks the three coordinates of one head; out.slot and out.head are set.
Status find_head(const quire_cache& cache, std::uint32_t layer, HeadPlace& out) {
  constexpr std::uint32_t kReadable = state_bit(SeqState::kOpen) | state_bit(SeqState::kPrefill) |
                                      state_bit(SeqState::kStep) | state_bit(SeqState::kDraft) |
                                      state_bit(SeqState::kFrozen);
  QUIRE_TRY(find_slot(cache, out.slot, kReadable, "slot"));
  QUIRE_TRY(find_layer(cache, layer, out.state, out.layer));
  const std::uint32_t heads = out.state->group.kv_heads;
  if (out.head >= heads) return invalid("head", "below kv_heads", heads, out.head);
  return ok_status();
}

// What a head holds now: during a step of which this layer was appended, the new token as well.
HeadView current_view(const HeadPlace& at) {
  const CacheState& cache = *at.state;
  const Slot& s = cache.slots[at.slot];
  std::int32_t length = s.tokens;
  if (s.state == SeqState::kStep && cache.step.appended[at.layer] != 0) ++length;
  if (s.state == SeqState::kPrefill) length += at.layer < s.next_layer ? s.prompt_tokens : 0;
  return cache.view(at.slot, at.layer, at.head, length);
}

template <class VisitorT>
std::uint32_t visit_tokens(const HeadView& view, VisitorT&& visit) {
  std::uint32_t index = 0;
  for (std::uint32_t i = 0; i < view.segment_count(); ++i) {
    const Segment s = view.segment(i);
    for (std::uint32_t t = 0; t < s.count; ++t) visit(index++, s, t);
  }
  return index;
}

void query(const HeadView& view, const quire_query_args& a) {
  *a.count = visit_tokens(view, [&](std::uint32_t i, const Segment& s, std::uint32_t t) {
    if (i >= a.capacity) return;
    if (a.positions != nullptr) a.positions[i] = s.position(t);
    if (a.tiers != nullptr)
      a.tiers[i] = s.tier == kRingTier ? 255 : static_cast<std::uint8_t>(s.tier);
    if (a.scores != nullptr)
      a.scores[i] = s.layout->fields.score ? score_array(*s.layout, s.base)[s.first + t] : 0.0f;
  });
}

void gather_vector(const VectorFormat& format,
                   std::uint32_t dim,
                   const VectorSlot& slot,
                   const HeadTransform& transform,
                   const MutableRowsView& out,
                   std::uint32_t index) {
  float x[kMaxHeadDim];
  decode_vector(format, dim, as_const(slot), x);
  transform_back(transform, dim, x);
  const std::int64_t at = out.offset(0, index, 0);
  for (std::uint32_t d = 0; d < dim; ++d) store_from_float(out.data, out.dtype, at + d, x[d]);
}

Status gather(const CacheState& cache, const HeadView& view, const quire_gather_args& a) {
  MutableRowsView k;
  MutableRowsView v;
  if (a.k.data != nullptr) QUIRE_TRY(read_rows(a.k, "k", {a.capacity, 1, cache.group.dim_k}, k));
  if (a.v.data != nullptr) QUIRE_TRY(read_rows(a.v, "v", {a.capacity, 1, cache.group.dim_v}, v));
  *a.count = visit_tokens(view, [&](std::uint32_t i, const Segment& s, std::uint32_t t) {
    if (i >= a.capacity) return;
    const TierLayout& layout = *s.layout;
    if (k.data != nullptr) {
      gather_vector(
          layout.format.k, layout.head_dim_k, k_slot(layout, s.base, s.first + t), view.k, k, i);
    }
    if (v.data != nullptr) {
      gather_vector(
          layout.format.v, layout.head_dim_v, v_slot(layout, s.base, s.first + t), view.v, v, i);
    }
    if (a.positions != nullptr) a.positions[i] = s.position(t);
  });
  return ok_status();
}

// Pages that one sequence's next step takes at most.
std::uint64_t headroom(const CacheState& cache, std::int32_t slot, std::uint32_t rows) {
  const Slot& s = cache.slots[slot];
  const AdmissionShape shape = cache.admission(s.policy);
  const bool due = controller_due(cache, slot, rows);
  const std::uint64_t drafts = rows - 1;
  std::uint64_t pages = drafts == 0 ? 0 : shape.heads() * shape.cost.pages(0, drafts);
  if (drafts > 0 && s.policy.kind == PolicyKind::kThreshold && shape.tier_count > 1)
    pages += shape.heads() * shape.cost.pages(1, drafts);
  for (std::uint64_t r = 0; r < cache.group.heads(); ++r) {
    pages += step_pages_bound(
        s.policy, shape, cache.head_states[cache.row(slot, 0, 0) + r].tokens[0], due);
  }
  return pages;
}

struct Headroom {
  std::uint64_t needed = 0;
  std::uint64_t available = 0;

  // Whether this pool will be short before the other one is.
  bool tighter_than(const Headroom& other) const {
    return available + other.needed < other.available + needed;
  }
};

// Of the layer groups that whose pool will be short first; needed_in(group) gives its pages.
template <class NeededT>
Headroom tightest_headroom(const quire_cache& cache, NeededT&& needed_in) {
  Headroom tightest;
  for (std::uint32_t g = 0; g < cache.group_count; ++g) {
    const CacheState& group = cache.at(g);
    const std::uint64_t free = group.free_pages.free_count();
    const Headroom mine = {needed_in(group), free > group.credit ? free - group.credit : 0};
    if (g == 0 || mine.tighter_than(tightest)) tightest = mine;
  }
  return tightest;
}

}  // namespace

std::uint64_t prefill_workspace(const Group& group, const Maxima& max, const Backend& backend);
std::uint64_t step_workspace(const Group& group, const Maxima& max);

std::uint64_t workspace_bytes(const Group& group, const Maxima& max, const Backend& backend) {
  return std::max({prefill_workspace(group, max, backend),
                   step_workspace(group, max),
                   attend_workspace(group, max, backend)});
}

}  // namespace quire

using quire::Status;

extern "C" quire_status quire_stats_get(const quire_cache* cache,
                                        quire_stats* stats,
                                        quire_error* error) {
  return quire::guarded(error, [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire_stats out;
    QUIRE_TRY(quire::read_args<quire_stats>(stats, "stats", 0xffffffffu, out));
    const std::uint32_t size = out.struct_size;
    out = quire::stats_of(*cache);
    out.struct_size = size;
    *stats = out;
    return quire::ok_status();
  });
}

extern "C" quire_status quire_seq_info_get(const quire_cache* cache,
                                           int32_t slot,
                                           quire_seq_info* info,
                                           quire_error* error) {
  return quire::guarded(error, [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire_seq_info out;
    QUIRE_TRY(quire::read_args<quire_seq_info>(info, "info", 0xffffffffu, out));
    QUIRE_TRY(quire::find_slot(*cache, slot, ~quire::state_bit(quire::SeqState::kClosed), "slot"));
    const std::uint32_t size = out.struct_size;
    out = quire::info_of(*cache, slot);
    out.struct_size = size;
    *info = out;
    return quire::ok_status();
  });
}

extern "C" quire_status quire_query(const quire_cache* cache, const quire_query_args* args) {
  return quire::guarded(quire::error_of(args), [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire_query_args a;
    QUIRE_TRY(quire::read_args(args, "args", 0, a));
    quire::HeadPlace at{nullptr, a.slot, 0, a.head};
    QUIRE_TRY(quire::find_head(*cache, a.layer, at));
    if (a.count == nullptr) return quire::invalid("count", "not NULL");
    quire::query(quire::current_view(at), a);
    return quire::ok_status();
  });
}

extern "C" quire_status quire_gather(quire_cache* cache, const quire_gather_args* args) {
  return quire::guarded(quire::error_of(args), [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire_gather_args a;
    QUIRE_TRY(quire::read_args(args, "args", 0, a));
    quire::HeadPlace at{nullptr, a.slot, 0, a.head};
    QUIRE_TRY(quire::find_head(*cache, a.layer, at));
    if (a.count == nullptr) return quire::invalid("count", "not NULL");
    return quire::gather(*at.state, quire::current_view(at), a);
  });
}

extern "C" quire_status quire_pages_for(const quire_cache* cache,
                                        const quire_policy* policy,
                                        uint32_t tokens,
                                        uint64_t* pages,
                                        uint64_t* available,
                                        quire_error* error) {
  return quire::guarded(error, [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire::Policy p;
    QUIRE_TRY(quire::read_policy(policy, p));
    QUIRE_TRY(quire::try_groups(*cache, [&](const quire::CacheState& group) {
      return quire::check_fit(group.group, quire::policy_in(group.group, p));
    }));
    if (tokens > cache->max.tokens) {
      return quire::fail(quire::StatusCode::kCapacity,
                         "tokens",
                         "not above max_tokens",
                         tokens,
                         cache->max.tokens);
    }
    if (pages == nullptr) return quire::invalid("pages", "not NULL");
    const quire::Headroom room =
        quire::tightest_headroom(*cache, [&](const quire::CacheState& group) {
          const quire::Policy own = quire::policy_in(group.group, p);
          return quire::prompt_pages(own, group.admission(own), tokens);
        });
    *pages = room.needed;
    if (available != nullptr) *available = room.available;
    return quire::ok_status();
  });
}

extern "C" quire_status quire_headroom_pages(const quire_cache* cache,
                                             const int32_t* slots,
                                             uint32_t count,
                                             uint32_t rows,
                                             uint64_t* needed,
                                             uint64_t* available,
                                             quire_error* error) {
  return quire::guarded(error, [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    if (slots == nullptr && count > 0) return quire::invalid("slots", "not NULL");
    const std::uint32_t most = quire::most_rows(*cache);
    if (rows > most)
      return quire::invalid("rows", "0 to 16, drafts (rows - 1) up to max_draft", most, rows);
    if (needed == nullptr) return quire::invalid("needed", "not NULL");
    if (available == nullptr) return quire::invalid("available", "not NULL");
    for (std::uint32_t i = 0; i < count; ++i) {
      if (slots[i] == -1) continue;
      QUIRE_TRY(
          quire::find_slot(*cache, slots[i], quire::state_bit(quire::SeqState::kOpen), "slots"));
    }
    const quire::Headroom room =
        quire::tightest_headroom(*cache, [&](const quire::CacheState& group) {
          std::uint64_t pages = 0;
          for (std::uint32_t i = 0; i < count; ++i)
            if (slots[i] != -1) pages += quire::headroom(group, slots[i], rows == 0 ? 1 : rows);
          return pages;
        });
    *needed = room.needed;
    *available = room.available;
    return quire::ok_status();
  });
}
