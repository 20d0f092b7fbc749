// Reading a cache: statistics, contents, admission.
#include <algorithm>
#include <cstdio>

#include "quire/pages/head_tokens.hpp"
#include "src/args.hpp"
#include "src/control.hpp"
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

void fill_stats(const CacheState& cache, quire_stats& out) {
  const auto get = [](const std::atomic<std::uint64_t>& x) {
    return x.load(std::memory_order_relaxed);
  };
  const Counters& c = cache.counters;
  const Group& g = cache.group;
  const std::uint64_t sequences = get(c.sequences);
  const std::uint64_t tokens[kMaxTiers] = {get(c.tier_tokens[0]), get(c.tier_tokens[1])};
  out.sequences = static_cast<std::uint32_t>(sequences);
  out.pages = cache.max.pages;
  out.live_pages = get(c.live_pages);
  out.promised_pages = get(c.promised);
  out.record_bytes = record_bytes(g, tokens);
  out.page_bytes = out.live_pages * g.layout.page_bytes;
  out.ring_bytes = sequences * sequence_ring_bytes(g);
  out.offset_bytes = sequences * g.heads() * g.ring.offset_bytes;
  out.table_bytes = sequences * row_bytes(cache) + get(c.chunks) * kChunkBytes;
  out.free_bytes =
      (cache.max.pages - std::min(out.live_pages, cache.max.pages)) * g.layout.page_bytes;
  out.workspace_bytes = workspace_bytes(g, cache.max, *cache.backend);
  out.fragmentation = out.page_bytes == 0 ? 0.0
                                          : 1.0 - static_cast<double>(out.record_bytes) /
                                                      static_cast<double>(out.page_bytes);
  out.tokens_dropped = get(c.dropped);
  out.tokens_demoted = get(c.demoted);
  out.values_saturated = get(c.saturated);
  out.shortages = get(c.shortages);
  out.steps = get(c.steps);
  out.shared_pages = get(c.shared_pages);
}

void fill_info(const CacheState& cache, std::int32_t slot, quire_seq_info& out) {
  const Slot& s = cache.slots[slot];
  const Group& g = cache.group;
  const auto tokens = static_cast<std::uint64_t>(s.tokens);
  out.state = static_cast<std::uint32_t>(s.state);
  out.tokens = static_cast<std::uint32_t>(s.tokens);
  out.high_tokens = s.tier_tokens[0];
  out.low_tokens = s.tier_tokens[1];
  out.ring_tokens = (tokens - static_cast<std::uint64_t>(s.shape.outside(s.tokens))) * g.heads();
  out.live_pages = s.live_pages;
  out.record_bytes = record_bytes(g, s.tier_tokens);
  out.page_bytes = s.live_pages * g.layout.page_bytes;
  out.ring_bytes = sequence_ring_bytes(g);
  out.offset_bytes = g.heads() * g.ring.offset_bytes;
  out.table_bytes = row_bytes(cache) + s.chunks * kChunkBytes;
  out.total_bytes = out.page_bytes + out.ring_bytes + out.offset_bytes + out.table_bytes;
  out.fp16_bytes = 2 * (std::uint64_t{g.dim_k} + g.dim_v) * tokens * g.heads();
}

// Checks the three coordinates of one head.
Status find_head(const CacheState& cache,
                 std::int32_t slot,
                 std::uint32_t layer,
                 std::uint32_t head) {
  constexpr std::uint32_t kReadable = state_bit(SeqState::kOpen) | state_bit(SeqState::kPrefill) |
                                      state_bit(SeqState::kStep) | state_bit(SeqState::kDraft);
  QUIRE_TRY(find_slot(cache, slot, kReadable, "slot"));
  if (layer >= cache.group.layers)
    return invalid("layer", "below layers", cache.group.layers, layer);
  if (head >= cache.group.kv_heads)
    return invalid("head", "below kv_heads", cache.group.kv_heads, head);
  return ok_status();
}

// What a head holds now: during a step of which this layer was appended, the new token as well.
HeadView current_view(const CacheState& cache,
                      std::int32_t slot,
                      std::uint32_t layer,
                      std::uint32_t head) {
  const Slot& s = cache.slots[slot];
  std::int32_t length = s.tokens;
  if (s.state == SeqState::kStep && cache.step.appended[layer] != 0) ++length;
  if (s.state == SeqState::kPrefill) length = layer < s.next_layer ? s.prompt_tokens : 0;
  return cache.view(slot, layer, head, length);
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
    quire::fill_stats(*cache, out);
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
    quire::fill_info(*cache, slot, out);
    *info = out;
    return quire::ok_status();
  });
}

extern "C" quire_status quire_query(const quire_cache* cache, const quire_query_args* args) {
  return quire::guarded(quire::error_of(args), [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire_query_args a;
    QUIRE_TRY(quire::read_args(args, "args", 0, a));
    QUIRE_TRY(quire::find_head(*cache, a.slot, a.layer, a.head));
    if (a.count == nullptr) return quire::invalid("count", "not NULL");
    quire::query(quire::current_view(*cache, a.slot, a.layer, a.head), a);
    return quire::ok_status();
  });
}

extern "C" quire_status quire_gather(quire_cache* cache, const quire_gather_args* args) {
  return quire::guarded(quire::error_of(args), [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire_gather_args a;
    QUIRE_TRY(quire::read_args(args, "args", 0, a));
    QUIRE_TRY(quire::find_head(*cache, a.slot, a.layer, a.head));
    if (a.count == nullptr) return quire::invalid("count", "not NULL");
    return quire::gather(*cache, quire::current_view(*cache, a.slot, a.layer, a.head), a);
  });
}

extern "C" quire_status quire_pages_for(const quire_cache* cache,
                                        const quire_policy* policy,
                                        uint32_t tokens,
                                        uint64_t* pages,
                                        quire_error* error) {
  return quire::guarded(error, [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire::Policy p;
    QUIRE_TRY(quire::read_policy(policy, p));
    QUIRE_TRY(quire::check_fit(cache->group, p));
    if (tokens > cache->max.tokens) {
      return quire::fail(quire::StatusCode::kCapacity,
                         "tokens",
                         "not above max_tokens",
                         tokens,
                         cache->max.tokens);
    }
    if (pages == nullptr) return quire::invalid("pages", "not NULL");
    *pages = quire::prompt_pages(p, cache->admission(p), tokens);
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
    const std::uint32_t most = std::min(quire::kMaxDecodeRows, cache->group.max_draft + 1);
    if (rows > most)
      return quire::invalid("rows", "0 to 16, drafts (rows - 1) up to max_draft", most, rows);
    if (needed == nullptr) return quire::invalid("needed", "not NULL");
    if (available == nullptr) return quire::invalid("available", "not NULL");
    std::uint64_t pages = 0;
    for (uint32_t i = 0; i < count; ++i) {
      if (slots[i] == -1) continue;
      QUIRE_TRY(
          quire::find_slot(*cache, slots[i], quire::state_bit(quire::SeqState::kOpen), "slots"));
      pages += quire::headroom(*cache, slots[i], rows == 0 ? 1 : rows);
    }
    const std::uint64_t free = cache->free_pages.free_count();
    *needed = pages;
    *available = free > cache->credit ? free - cache->credit : 0;
    return quire::ok_status();
  });
}
