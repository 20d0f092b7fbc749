// A prompt before its first and after its last layer: credit taken, the rest of it given back.
#include <algorithm>

#include "src/args.hpp"
#include "src/sequence.hpp"

namespace quire {
namespace {

// What a prompt reserves in one layer group; thresholds of single heads may keep more than the
// policy's.
std::uint64_t pages_of_prompt(const CacheState& cache, std::int32_t slot, std::uint32_t tokens) {
  const Slot& s = cache.slots[slot];
  Policy bound = s.policy;
  for (std::uint64_t i = 0; i < cache.group.heads(); ++i) {
    const HeadState& head = cache.head_states[cache.row(slot, 0, 0) + i];
    bound.alpha_high = std::min(bound.alpha_high, head.alpha_high);
    bound.alpha_low = std::min(bound.alpha_low, head.alpha_low);
  }
  return prompt_pages(bound, cache.admission(s.policy), tokens);
}

Status prefill_begin(quire_cache& cache, std::int32_t slot, std::uint32_t tokens) {
  QUIRE_TRY(find_slot(cache, slot, state_bit(SeqState::kOpen), "slot"));
  if (cache.slots[slot].tokens != 0) {
    return fail(StatusCode::kUnsupported,
                "slot",
                "an empty sequence: later prompts are not in this version",
                0,
                static_cast<std::uint64_t>(cache.slots[slot].tokens));
  }
  if (tokens < 1) return invalid("tokens", "at least 1", 1, tokens);
  if (tokens > cache.max.tokens) {
    return fail(StatusCode::kCapacity, "tokens", "not above max_tokens", tokens, cache.max.tokens);
  }
  QUIRE_TRY(try_groups(cache, [&](CacheState& group) {
    return group.reserve(pages_of_prompt(group, slot, tokens));
  }));
  for_groups(cache, [&](CacheState& group) {
    Slot& s = group.slots[slot];
    s.state = SeqState::kPrefill;
    s.prompt_tokens = static_cast<std::int32_t>(tokens);
    s.next_layer = 0;
    s.factor = initial_factor(s.policy);
    group.set_credit(s, pages_of_prompt(group, slot, tokens));
  });
  return ok_status();
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
  for_groups(cache, [&](CacheState& group) {
    Slot& s = group.slots[slot];
    s.state = SeqState::kOpen;
    s.tokens = s.prompt_tokens;
    s.controlled_at = s.tokens;
    group.set_credit(s, 0);
  });
  return ok_status();
}

Status prefill_cancel(quire_cache& cache, std::int32_t slot) {
  QUIRE_TRY(find_slot(cache, slot, state_bit(SeqState::kPrefill), "slot"));
  for_groups(cache, [&](CacheState& group) {
    Slot& s = group.slots[slot];
    group.release_all(slot);
    group.set_credit(s, 0);
    reset_empty(group, slot);
    s.state = SeqState::kOpen;
    s.next_layer = 0;
  });
  return ok_status();
}

}  // namespace
}  // namespace quire

using quire::Status;

extern "C" quire_status quire_prefill_begin(quire_cache* cache,
                                            int32_t slot,
                                            uint32_t tokens,
                                            quire_error* error) {
  return quire::guarded(error, [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    return quire::prefill_begin(*cache, slot, tokens);
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
