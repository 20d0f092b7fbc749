// A sequence out of a cache.
#include <algorithm>
#include <cstring>

#include "src/args.hpp"
#include "src/checksum.hpp"
#include "src/frame.hpp"

namespace quire {

constexpr std::uint32_t kExportable = state_bit(SeqState::kOpen) | state_bit(SeqState::kFrozen);

namespace {

std::uint64_t frame_bytes(const CacheState& cache, std::int32_t slot) {
  const Slot& s = cache.slots[slot];
  const std::uint32_t in_ring = ring_tokens(s.shape, s.tokens);
  std::uint64_t bytes = sizeof(FrameHeader);
  for (std::uint64_t i = 0; i < cache.group.heads(); ++i)
    bytes +=
        frame_head_bytes(cache.group, in_ring, cache.head_states[cache.row(slot, 0, 0) + i].tokens);
  return bytes;
}

FrameHeader header_of(const quire_cache& all, std::uint32_t group_index, std::int32_t slot) {
  const CacheState& cache = all.at(group_index);
  const Slot& s = cache.slots[slot];
  FrameHeader header = {};
  std::memcpy(header.magic, kFrameMagic, sizeof(kFrameMagic));
  header.bytes = frame_bytes(cache, slot);
  header.version = kFrameVersion;
  header.tokens = s.tokens;
  header.identity = identity_of(all, group_index);
  header.prompt_tokens = s.prompt_tokens;
  header.controlled_at = s.controlled_at;
  header.factor = s.factor;
  header.marks =
      (s.given_k_offset ? 1u : 0u) | (s.given_v_offset ? 2u : 0u) | (s.replanned ? 4u : 0u);
  std::copy(s.ends.end, s.ends.end + s.ends.count, header.prompt_end);
  std::copy(s.ends.begin, s.ends.begin + s.ends.count, header.prompt_begin);
  header.prompt_end_count = s.ends.count;
  header.ring_from = s.shape.from;
  header.unscored = s.unscored;
  header.unfinished = s.unfinished;
  write_policy(s.policy, &header.policy);
  return header;
}

Status check_frame_size(const CacheState& cache, std::int32_t slot) {
  const std::uint64_t heads = cache.group.heads();
  for (std::uint64_t i = 0; i < heads; ++i) {
    const HeadState& state = cache.head_states[cache.row(slot, 0, 0) + i];
    for (std::uint32_t t = 0; t < cache.group.layout.tier_count; ++t) {
      const std::uint64_t bytes =
          std::uint64_t{state.tokens[t]} * cache.group.layout.tier[t].record_bytes;
      if (bytes > 0xffffffffu)
        return fail(StatusCode::kUnsupported, "slot", "4 GiB of records per head", bytes, 0);
    }
  }
  return ok_status();
}

// One layer group; returns where the next one begins.
std::uint8_t* export_group(const quire_cache& all,
                           std::uint32_t group_index,
                           std::int32_t slot,
                           std::uint8_t* frame) {
  const CacheState& cache = all.at(group_index);
  const FrameHeader header = header_of(all, group_index, slot);
  const Group& g = cache.group;
  const Slot& s = cache.slots[slot];
  std::memcpy(frame, &header, sizeof(header));
  std::uint8_t* at = frame + sizeof(header);
  Checksum sum(frame + kFrameChecked);
  for (std::uint32_t layer = 0; layer < g.layers; ++layer) {
    for (std::uint32_t head = 0; head < g.kv_heads; ++head) {
      const HeadState& state = cache.head_state(slot, layer, head);
      const FrameHead entry = {
          {state.tokens[0], state.tokens[1]}, state.alpha_high, state.alpha_low};
      std::memcpy(at, &entry, sizeof(entry));
      at += sizeof(entry);
      const HeadView view = cache.view(slot, layer, head, s.tokens);
      at = move_head(view, at, Direction::kOut, &sum);
    }
  }
  const std::uint64_t whole = sum.finish(at);
  std::memcpy(frame + offsetof(FrameHeader, checksum), &whole, sizeof(whole));
  return at;
}

std::uint64_t all_frame_bytes(const quire_cache& cache, std::int32_t slot) {
  std::uint64_t bytes = 0;
  for_groups(cache, [&](const CacheState& group) { bytes += frame_bytes(group, slot); });
  return bytes;
}

Status export_sequence(const quire_cache& cache,
                       std::int32_t slot,
                       std::uint8_t* frame,
                       std::uint64_t bytes) {
  QUIRE_TRY(
      try_groups(cache, [&](const CacheState& group) { return check_frame_size(group, slot); }));
  const std::uint64_t needed = all_frame_bytes(cache, slot);
  if (frame == nullptr) return invalid("frame", "not NULL", needed, 0);
  if (bytes < needed) {
    return fail(
        StatusCode::kMemoryTooSmall, "bytes", "as quire_seq_export_bytes says", needed, bytes);
  }
  for (std::uint32_t i = 0; i < cache.group_count; ++i) frame = export_group(cache, i, slot, frame);
  return ok_status();
}

}  // namespace
}  // namespace quire

extern "C" quire_status quire_seq_export_bytes(const quire_cache* cache,
                                               int32_t slot,
                                               uint64_t* bytes,
                                               quire_error* error) {
  return quire::guarded(error, [&]() -> quire::Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    if (bytes == nullptr) return quire::invalid("bytes", "not NULL");
    QUIRE_TRY(quire::find_slot(*cache, slot, quire::kExportable, "slot"));
    *bytes = quire::all_frame_bytes(*cache, slot);
    return quire::ok_status();
  });
}

extern "C" quire_status quire_seq_export(
    const quire_cache* cache, int32_t slot, void* frame, uint64_t bytes, quire_error* error) {
  return quire::guarded(error, [&]() -> quire::Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    QUIRE_TRY(quire::find_slot(*cache, slot, quire::kExportable, "slot"));
    return quire::export_sequence(*cache, slot, static_cast<std::uint8_t*>(frame), bytes);
  });
}
