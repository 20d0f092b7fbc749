// A prompt: credit at the start of every round, then layer by layer (prefill_layer.cpp), then its
// end.
#include "src/prefill.hpp"

#include "src/args.hpp"
#include "src/sequence.hpp"

namespace quire {
namespace {

// The round that would be opened.
PromptRound next_round(const CacheState& cache, const quire_prefill_begin_args& a) {
  PromptRound round = open_round(cache, a.slot);
  round.tokens = a.tokens;
  round.more = (a.flags & QUIRE_PREFILL_MORE) != 0;
  return round;
}

Status prefill_begin(quire_cache& cache, const quire_prefill_begin_args& a) {
  QUIRE_TRY(find_slot(cache, a.slot, state_bit(SeqState::kOpen), "slot"));
  if (a.tokens < 1) return invalid("tokens", "at least 1", 1, a.tokens);
  const std::uint64_t length = static_cast<std::uint64_t>(cache.slots[a.slot].tokens) + a.tokens;
  if (length > cache.max.tokens) {
    return fail(StatusCode::kCapacity,
                "tokens",
                "with those stored not above max_tokens",
                length,
                cache.max.tokens);
  }
  const bool asks = (a.flags & QUIRE_PREFILL_CHECK) != 0;
  QUIRE_TRY(try_groups(cache, [&](CacheState& group) {
    group.refresh_shared(a.slot);
    const std::uint64_t pages = reserved_pages(group, next_round(group, a));
    return asks ? check_pages(group.free_pages, group.credit, pages) : group.reserve(pages);
  }));
  if (asks) return ok_status();
  for_groups(cache, [&](CacheState& group) {
    Slot& s = group.slots[a.slot];
    const PromptRound round = next_round(group, a);
    group.set_credit(s, reserved_pages(group, round));
    s.state = SeqState::kPrefill;
    s.prompt_tokens = static_cast<std::int32_t>(a.tokens);
    s.more = round.more;
    s.next_layer = 0;
  });
  return ok_status();
}

void end_round(CacheState& cache, std::int32_t slot) {
  Slot& s = cache.slots[slot];
  const PromptRound round = open_round(cache, slot);
  s.state = SeqState::kOpen;
  s.tokens = static_cast<std::int32_t>(round.length());
  s.unfinished = round.more ? static_cast<std::int32_t>(round.begin) : -1;
  s.more = false;
  if (!round.more) s.controlled_at = s.tokens;
  cache.set_credit(s, 0);
}

Status prefill_end(quire_cache& cache, std::int32_t slot) {
  QUIRE_TRY(find_slot(cache, slot, state_bit(SeqState::kPrefill), "slot"));
  QUIRE_TRY(try_groups(cache, [&](const CacheState& group) -> Status {
    const std::uint32_t done = group.slots[slot].next_layer;
    if (done == group.group.layers) return ok_status();
    return fail(StatusCode::kBadState,
                "layer",
                "quire_prefill_layer of every layer first",
                group.group.layers,
                done);
  }));
  for_groups(cache, [&](CacheState& group) { end_round(group, slot); });
  return ok_status();
}

void cancel_round(CacheState& cache, std::int32_t slot, SeqState state) {
  Slot& s = cache.slots[slot];
  cache.set_credit(s, 0);
  s.more = false;
  s.prompt_tokens = 0;
  s.next_layer = 0;
  s.state = state;
  if (s.tokens > 0) return;
  cache.release_all(slot);
  reset_empty(cache, slot);
}

Status prefill_cancel(quire_cache& cache, std::int32_t slot) {
  QUIRE_TRY(find_slot(cache, slot, state_bit(SeqState::kPrefill), "slot"));
  std::uint32_t stored = 0;
  for_groups(cache, [&](const CacheState& group) { stored += group.slots[slot].next_layer; });
  // Layers that are stored have moved the past.
  const bool lost = stored > 0 && cache.slots[slot].tokens > 0;
  const SeqState state = lost ? SeqState::kBroken : SeqState::kOpen;
  for_groups(cache, [&](CacheState& group) { cancel_round(group, slot, state); });
  return ok_status();
}

}  // namespace
}  // namespace quire

using quire::Status;

extern "C" quire_status quire_prefill_begin(quire_cache* cache,
                                            const quire_prefill_begin_args* args) {
  return quire::guarded(quire::error_of(args), [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire_prefill_begin_args a;
    QUIRE_TRY(quire::read_args(
        args, "args", QUIRE_PREFILL_MORE | QUIRE_PREFILL_EXACT | QUIRE_PREFILL_CHECK, a));
    if ((a.flags & QUIRE_PREFILL_EXACT) != 0) {
      return quire::fail(quire::StatusCode::kUnsupported,
                         "flags",
                         "no QUIRE_PREFILL_EXACT: hand the prompt in as one round instead");
    }
    return quire::prefill_begin(*cache, a);
  });
}

extern "C" quire_status quire_prefill_end(quire_cache* cache, int32_t slot, quire_error* error) {
  return quire::guarded(error, [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    return quire::prefill_end(*cache, slot);
  });
}

extern "C" quire_status quire_prefill_cancel(quire_cache* cache, int32_t slot, quire_error* error) {
  return quire::guarded(error, [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    return quire::prefill_cancel(*cache, slot);
  });
}
