// A foreign plan on tokens that are stored already.
#include "quire/pages/head_tokens.hpp"
#include "src/args.hpp"
#include "src/cache.hpp"

namespace quire {
namespace {

struct ReplanCall {
  std::int32_t slot = 0;
  std::uint32_t first_layer = 0;
  std::uint32_t layer_count = 0;
  const std::uint8_t* tiers = nullptr;  // [layer_count, kv_heads, tokens]
};

const std::uint8_t* tiers_of(const CacheState& cache,
                             const ReplanCall& call,
                             std::uint32_t layer,
                             std::uint32_t head) {
  const auto tokens = static_cast<std::uint64_t>(cache.slots[call.slot].tokens);
  return call.tiers +
         ((std::uint64_t{layer} - call.first_layer) * cache.group.kv_heads + head) * tokens;
}

// Every entry is a tier there is, the ring stays, and no stored token rises.
Status check_head(const CacheState& cache,
                  const ReplanCall& call,
                  std::uint32_t layer,
                  std::uint32_t head) {
  const Slot& s = cache.slots[call.slot];
  const std::uint8_t* tiers = tiers_of(cache, call, layer, head);
  for (std::int32_t p = 0; p < s.tokens; ++p) {
    const bool known = tiers[p] < cache.group.layout.tier_count ||
                       tiers[p] == static_cast<std::uint8_t>(Tier::kDropped) ||
                       tiers[p] == static_cast<std::uint8_t>(Tier::kKeep);
    if (!known)
      return invalid(
          "tiers", "0 high, 1 low (with a low tier), 254 dropped, 255 leave", 0, tiers[p]);
    if (tiers[p] != static_cast<std::uint8_t>(Tier::kKeep) && s.shape.holds(p, s.tokens)) {
      return invalid(
          "tiers", "255 for sinks and the recent window", 0, static_cast<std::uint64_t>(p));
    }
  }
  Status status = ok_status();
  const HeadView view = cache.view(call.slot, layer, head, s.tokens);
  for (std::uint32_t tier = 0; tier < view.tier_count; ++tier) {
    for (std::uint32_t i = 0; i < view.frozen[tier]; ++i) {
      const std::int32_t p = place_of(view, tier, i).position();
      if (tiers[p] == tier || tiers[p] == static_cast<std::uint8_t>(Tier::kKeep)) continue;
      return invalid("tiers",
                     "255 or its own tier for a token in a page that other sequences hold",
                     tier,
                     static_cast<std::uint64_t>(p));
    }
  }
  count_retier(view, [&](float, std::int32_t p, Tier now) {
    const auto to = static_cast<Tier>(tiers[p]);
    if (to == Tier::kHigh && now == Tier::kLow) {
      status = invalid("tiers",
                       "no tier above the token's: tiers only go down",
                       1,
                       static_cast<std::uint64_t>(p));
    }
    return now;
  });
  return status;
}

RetierCounts count_head(const CacheState& cache,
                        const ReplanCall& call,
                        std::uint32_t layer,
                        std::uint32_t head) {
  const std::uint8_t* tiers = tiers_of(cache, call, layer, head);
  const HeadView view = cache.view(call.slot, layer, head, cache.slots[call.slot].tokens);
  return count_retier(view,
                      [&](float, std::int32_t p, Tier) { return static_cast<Tier>(tiers[p]); });
}

std::uint32_t low_pages_to_take(const CacheState& cache,
                                const HeadState& state,
                                const RetierCounts& after) {
  if (cache.group.layout.tier_count < 2) return 0;
  const std::uint32_t needed = ceil_div(after.tokens[1], cache.group.layout.tier[1].tokens);
  return needed > state.pages[1] ? needed - state.pages[1] : 0;
}

void carry_out(CacheState& cache, const ReplanCall& call, std::uint32_t layer, std::uint32_t head) {
  Slot& s = cache.slots[call.slot];
  const std::uint64_t row = cache.row(call.slot, layer, head);
  HeadState& state = cache.head_states[row];
  const RetierCounts after = count_head(cache, call, layer, head);
  for (std::uint32_t i = low_pages_to_take(cache, state, after); i > 0; --i) {
    cache.enter_page(call.slot, row, 1, PageId{cache.free_pages.take()});
  }
  const std::uint8_t* tiers = tiers_of(cache, call, layer, head);
  CodecEvents events;
  retier(
      cache.view(call.slot, layer, head, s.tokens),
      [&](float, std::int32_t p, Tier) { return static_cast<Tier>(tiers[p]); },
      events);
  cache.counters.saturated.fetch_add(events.saturated, std::memory_order_relaxed);
  cache.add_tier_tokens(s, state.tokens, after.tokens);
  state.tokens[0] = after.tokens[0];
  state.tokens[1] = after.tokens[1];
  state.lowest_length = -1;
  cache.counters.demoted.fetch_add(after.demoted, std::memory_order_relaxed);
  cache.counters.dropped.fetch_add(after.dropped, std::memory_order_relaxed);
  cache.release_empty(call.slot, row);
}

Status replan(CacheState& cache, const ReplanCall& call) {
  std::uint64_t needed = 0;
  for (std::uint32_t layer = call.first_layer; layer < call.first_layer + call.layer_count;
       ++layer) {
    for (std::uint32_t head = 0; head < cache.group.kv_heads; ++head) {
      QUIRE_TRY(check_head(cache, call, layer, head));
      needed += low_pages_to_take(
          cache, cache.head_state(call.slot, layer, head), count_head(cache, call, layer, head));
    }
  }
  QUIRE_TRY(cache.reserve(needed));
  for (std::uint32_t layer = call.first_layer; layer < call.first_layer + call.layer_count;
       ++layer) {
    for (std::uint32_t head = 0; head < cache.group.kv_heads; ++head)
      carry_out(cache, call, layer, head);
  }
  return ok_status();
}

// The layers of a plan: one after another in calls and in one layer group.
Status find_layers(quire_cache& cache,
                   const quire_plan_apply_args& args,
                   CacheState*& state,
                   std::uint32_t& first) {
  const bool known = args.first_layer < cache.layer_count &&
                     args.layer_count <= cache.layer_count - args.first_layer;
  if (!known) {
    return invalid("layer_count",
                   "layers of the cache",
                   cache.layer_count,
                   std::uint64_t{args.first_layer} + args.layer_count);
  }
  QUIRE_TRY(find_layer(cache, args.first_layer, state, first));
  for (std::uint32_t i = 1; i < args.layer_count; ++i) {
    CacheState* other = nullptr;
    std::uint32_t layer = 0;
    QUIRE_TRY(find_layer(cache, args.first_layer + i, other, layer));
    if (other != state || layer != first + i)
      return invalid("layer_count", "layers of one group, in its order", i, args.layer_count);
  }
  return ok_status();
}

}  // namespace
}  // namespace quire

extern "C" quire_status quire_plan_apply(quire_cache* cache, const quire_plan_apply_args* args) {
  return quire::guarded(quire::error_of(args), [&]() -> quire::Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire_plan_apply_args a;
    QUIRE_TRY(quire::read_args(args, "args", 0, a));
    QUIRE_TRY(quire::find_slot(*cache, a.slot, quire::state_bit(quire::SeqState::kOpen), "slot"));
    quire::CacheState* state = nullptr;
    std::uint32_t first = 0;
    QUIRE_TRY(quire::find_layers(*cache, a, state, first));
    const auto tokens = static_cast<std::uint32_t>(cache->slots[a.slot].tokens);
    if (a.tokens != tokens)
      return quire::invalid("tokens", "the sequence's tokens (a stale plan?)", tokens, a.tokens);
    if (!state->group.layout.tier[0].fields.position) {
      return quire::fail(
          quire::StatusCode::kUnsupported, "tiers", "a layout without QUIRE_LAYOUT_NO_POSITION");
    }
    if (a.tiers == nullptr) return quire::invalid("tiers", "not NULL");
    state->refresh_shared(a.slot);
    QUIRE_TRY(quire::replan(*state, {a.slot, first, a.layer_count, a.tiers}));
    cache->slots[a.slot].replanned = true;
    return quire::ok_status();
  });
}
