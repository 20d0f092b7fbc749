// A sequence into a cache. Everything is checked before anything is written.
#include <algorithm>
#include <cstring>

#include "src/args.hpp"
#include "src/checksum.hpp"
#include "src/frame.hpp"
#include "src/sequence.hpp"

namespace quire {
namespace {

struct Incoming {
  const std::uint8_t* frame = nullptr;
  std::uint64_t bytes = 0;
  FrameHeader header;
  Policy policy;
  RingShape shape;
  std::uint32_t in_ring = 0;
  std::uint64_t pages = 0;
};

Status corrupt(const char* what, std::uint64_t needed = 0, std::uint64_t given = 0) {
  return fail(StatusCode::kBadValue, "frame", what, needed, given);
}

Status read_header(Incoming& in) {
  if (in.frame == nullptr) return invalid("frame", "not NULL");
  if (in.bytes < sizeof(FrameHeader))
    return corrupt("at least the bytes of a header", sizeof(FrameHeader), in.bytes);
  std::memcpy(&in.header, in.frame, sizeof(in.header));
  if (std::memcmp(in.header.magic, kFrameMagic, sizeof(kFrameMagic)) != 0)
    return corrupt("a frame that quire_seq_export wrote");
  if (in.header.version != kFrameVersion) {
    return fail(StatusCode::kAbiMismatch,
                "frame.version",
                "the version of this library",
                kFrameVersion,
                in.header.version);
  }
  if (in.header.bytes != in.bytes)
    return corrupt("as many bytes as were exported", in.header.bytes, in.bytes);
  const std::uint64_t sum = checksum(in.frame + kFrameChecked, in.bytes - kFrameChecked);
  if (sum != in.header.checksum)
    return corrupt("what was exported, undamaged", in.header.checksum, sum);
  return ok_status();
}

// The first part of the identity that differs, by name.
Status check_identity(const FrameIdentity& frame, const FrameIdentity& cache) {
  struct Number {
    const char* field;
    std::uint32_t frame;
    std::uint32_t cache;
  };
  const Number numbers[] = {{"frame.layout_version", frame.layout_version, cache.layout_version},
                            {"frame.layers", frame.layers, cache.layers},
                            {"frame.kv_heads", frame.kv_heads, cache.kv_heads},
                            {"frame.q_heads", frame.q_heads, cache.q_heads},
                            {"frame.head_dim_k", frame.head_dim_k, cache.head_dim_k},
                            {"frame.head_dim_v", frame.head_dim_v, cache.head_dim_v},
                            {"frame.layout.flags", frame.fields, cache.fields},
                            {"frame.transform_seed", frame.transform_seed, cache.transform_seed},
                            {"frame.tier_count", frame.tier_count, cache.tier_count}};
  for (const Number& n : numbers)
    if (n.frame != n.cache) return invalid(n.field, "equal to the cache's", n.cache, n.frame);
  if (std::memcmp(frame.tier, cache.tier, sizeof(frame.tier)) != 0)
    return invalid("frame.tier", "the formats of the cache's tiers");
  if (std::memcmp(&frame.ring, &cache.ring, sizeof(frame.ring)) != 0)
    return invalid("frame.ring_format", "the format of the cache's ring");
  return ok_status();
}

Status check_sequence(const CacheState& cache, Incoming& in) {
  const FrameHeader& h = in.header;
  QUIRE_TRY(read_policy(&h.policy, in.policy));
  QUIRE_TRY(check_fit(cache.group, in.policy));
  if (h.tokens < 0 || static_cast<std::uint32_t>(h.tokens) > cache.max.tokens) {
    return fail(StatusCode::kCapacity,
                "max_tokens",
                "tokens of a sequence",
                static_cast<std::uint64_t>(h.tokens),
                cache.max.tokens);
  }
  const bool sane = h.prompt_tokens >= 0 && h.prompt_tokens <= h.tokens &&
                    h.controlled_at >= -static_cast<std::int32_t>(kMaxCadence) &&
                    h.controlled_at <= h.tokens && h.prompt_end_count <= 8 && h.factor >= 0.0f &&
                    h.marks <= 7 && h.ring_from >= 0 && h.ring_from <= h.tokens &&
                    h.unfinished >= -1 && h.unfinished < h.tokens;
  if (!sane) return corrupt("numbers of a sequence");
  in.shape = {in.policy.sink_tokens,
              in.policy.recent_window,
              in.policy.recent_window + cache.group.max_draft,
              h.ring_from};
  in.in_ring = ring_tokens(in.shape, h.tokens);
  return ok_status();
}

// Positions are those of tokens outside the ring, scores are numbers a statistic can have: finite
// and not negative. Both loops are without branches, so that compilers turn them into vectors.
bool scores_fit(const std::uint8_t* scores, std::uint32_t count) {
  constexpr std::uint32_t kInf = 0x7f800000u;
  constexpr std::uint32_t kMinusZero = 0x80000000u;
  std::uint32_t bad = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, scores + std::uint64_t{4} * i, 4);
    bad |=
        static_cast<std::uint32_t>(bits >= kInf) & static_cast<std::uint32_t>(bits != kMinusZero);
  }
  return bad == 0;
}

bool positions_fit(const std::uint8_t* positions, std::uint32_t count, const Incoming& in) {
  const auto first = in.shape.sinks;  // a smaller one wraps and is too large, too
  const auto outside = static_cast<std::uint32_t>(in.shape.outside(in.header.tokens));
  std::uint32_t bad = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uint32_t position;
    std::memcpy(&position, positions + std::uint64_t{4} * i, 4);
    bad |= static_cast<std::uint32_t>(position - first >= outside);
  }
  return bad == 0;
}

Status check_fields(const CacheState& cache,
                    const Incoming& in,
                    const FrameHead& head,
                    const std::uint8_t* records) {
  for (std::uint32_t t = 0; t < cache.group.layout.tier_count; ++t) {
    const std::uint32_t count = head.tokens[t];
    const TierLayout block = frame_layout(cache.group.layout.tier[t], count);
    const bool fit = (!block.fields.score || scores_fit(records + block.score, count)) &&
                     (!block.fields.position || positions_fit(records + block.position, count, in));
    if (!fit) return corrupt("scores and positions of a sequence");
    records += block.bytes;
  }
  return ok_status();
}

// Every head against the bytes that are left; counts the pages.
Status check_heads(const CacheState& cache, Incoming& in) {
  const Group& g = cache.group;
  const auto outside = static_cast<std::uint32_t>(in.shape.outside(in.header.tokens));
  std::uint64_t at = sizeof(FrameHeader);
  for (std::uint64_t i = 0; i < g.heads(); ++i) {
    FrameHead head;
    if (in.bytes - at < sizeof(head)) return corrupt("all heads");
    std::memcpy(&head, in.frame + at, sizeof(head));
    QUIRE_TRY(detail::check_thresholds(head.alpha_high, head.alpha_low));
    std::uint64_t stored = 0;
    for (std::uint32_t t = 0; t < kMaxTiers; ++t) {
      if (t >= g.layout.tier_count && head.tokens[t] != 0) return corrupt("tokens of known tiers");
      stored += head.tokens[t];
    }
    const bool implied = !g.layout.tier[0].fields.position;
    if (stored > outside || (implied && stored != outside))
      return corrupt("tokens of a sequence", outside, stored);
    const std::uint64_t bytes = frame_head_bytes(g, in.in_ring, head.tokens);
    if (in.bytes - at < bytes) return corrupt("all heads");
    const std::uint64_t before = sizeof(FrameHead) + g.ring.offset_bytes +
                                 std::uint64_t{in.in_ring} * g.ring.tokens.record_bytes;
    QUIRE_TRY(check_fields(cache, in, head, in.frame + at + before));
    for (std::uint32_t t = 0; t < g.layout.tier_count; ++t)
      in.pages += ceil_div(head.tokens[t], g.layout.tier[t].tokens);
    at += bytes;
  }
  return at == in.bytes ? ok_status() : corrupt("nothing behind the last head", at, in.bytes);
}

void write_slot(CacheState& cache, const Incoming& in, std::int32_t slot) {
  const FrameHeader& h = in.header;
  Slot& s = cache.slots[slot];
  s = Slot{};
  s.state = SeqState::kOpen;
  s.tokens = h.tokens;
  s.prompt_tokens = h.prompt_tokens;
  s.policy = in.policy;
  s.shape = in.shape;
  std::copy(h.prompt_end, h.prompt_end + 8, s.ends.end);
  std::copy(h.prompt_begin, h.prompt_begin + 8, s.ends.begin);
  s.ends.count = h.prompt_end_count;
  s.unfinished = h.unfinished;
  s.factor = h.factor;
  s.controlled_at = h.controlled_at;
  s.unscored = h.unscored;
  s.given_k_offset = (h.marks & 1u) != 0;
  s.given_v_offset = (h.marks & 2u) != 0;
  s.replanned = (h.marks & 4u) != 0;
}

void write_heads(CacheState& cache, const Incoming& in, std::int32_t slot) {
  const std::uint32_t none[kMaxTiers] = {};
  // Only read: the same walk serves both directions.
  auto* at = const_cast<std::uint8_t*>(in.frame) + sizeof(FrameHeader);
  for (std::uint32_t layer = 0; layer < cache.group.layers; ++layer) {
    for (std::uint32_t head = 0; head < cache.group.kv_heads; ++head) {
      FrameHead entry;
      std::memcpy(&entry, at, sizeof(entry));
      at += sizeof(entry);
      HeadState& state = cache.head_state(slot, layer, head);
      state = HeadState{};
      state.lowest_length = -1;
      state.alpha_high = entry.alpha_high;
      state.alpha_low = entry.alpha_low;
      for (std::uint32_t t = 0; t < cache.group.layout.tier_count; ++t) {
        state.tokens[t] = entry.tokens[t];
        const std::uint32_t pages = ceil_div(entry.tokens[t], cache.group.layout.tier[t].tokens);
        for (std::uint32_t p = 0; p < pages; ++p)
          cache.enter_page(slot, cache.row(slot, layer, head), t, PageId{cache.free_pages.take()});
      }
      cache.add_tier_tokens(cache.slots[slot], none, state.tokens);
      const HeadView view = cache.view(slot, layer, head, in.header.tokens);
      at = move_head(view, at, Direction::kIn, nullptr);
    }
  }
}

// The frames of all layer groups.
struct AllIncoming {
  Incoming group[kMaxLayerGroups];

  Status read(const quire_cache& cache, const std::uint8_t* frame, std::uint64_t bytes) {
    for (std::uint32_t i = 0; i < cache.group_count; ++i) {
      Incoming& in = group[i];
      in.frame = frame;
      in.bytes = bytes;
      if (i + 1 < cache.group_count) QUIRE_TRY(cut_first(in));
      QUIRE_TRY(read_header(in));
      QUIRE_TRY(check_identity(in.header.identity, identity_of(cache, i)));
      if (in.header.tokens != group[0].header.tokens) return corrupt("one sequence");
      QUIRE_TRY(check_sequence(cache.at(i), in));
      QUIRE_TRY(check_heads(cache.at(i), in));
      frame += in.bytes;
      bytes -= in.bytes;
    }
    return ok_status();
  }

 private:
  // Another frame follows: this one ends where its header says.
  static Status cut_first(Incoming& in) {
    if (in.frame == nullptr) return invalid("frame", "not NULL");
    if (in.bytes < sizeof(FrameHeader))
      return corrupt("at least the bytes of a header", sizeof(FrameHeader), in.bytes);
    std::uint64_t bytes;
    std::memcpy(&bytes, in.frame + offsetof(FrameHeader, bytes), sizeof(bytes));
    if (bytes > in.bytes) return corrupt("as many bytes as were exported", bytes, in.bytes);
    if (bytes < sizeof(FrameHeader))
      return corrupt("at least the bytes of a header", sizeof(FrameHeader), bytes);
    in.bytes = bytes;
    return ok_status();
  }
};

Status import_sequence(quire_cache& cache,
                       const std::uint8_t* frame,
                       std::uint64_t bytes,
                       std::int32_t* slot) {
  AllIncoming in;
  QUIRE_TRY(in.read(cache, frame, bytes));
  std::int32_t id = 0;
  QUIRE_TRY(find_free_slot(cache, &id));
  for (std::uint32_t i = 0; i < cache.group_count; ++i)
    QUIRE_TRY(cache.at(i).reserve(in.group[i].pages));
  for (std::uint32_t i = 0; i < cache.group_count; ++i) {
    CacheState& group = cache.at(i);
    write_slot(group, in.group[i], id);
    write_heads(group, in.group[i], id);
    group.counters.sequences.fetch_add(1, std::memory_order_relaxed);
  }
  *slot = id;
  return ok_status();
}

}  // namespace
}  // namespace quire

extern "C" quire_status quire_seq_import(
    quire_cache* cache, const void* frame, uint64_t bytes, int32_t* slot, quire_error* error) {
  return quire::guarded(error, [&]() -> quire::Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    if (slot == nullptr) return quire::invalid("slot", "not NULL");
    return quire::import_sequence(*cache, static_cast<const std::uint8_t*>(frame), bytes, slot);
  });
}
