// Positions taken out of a sequence: its end, or a span in the middle.
#include <algorithm>
#include <cstring>

#include "quire/pages/head_tokens.hpp"
#include "src/args.hpp"
#include "src/sequence.hpp"

namespace quire {
namespace {

// Positions [first, end) of a sequence that go.
struct Removal {
  std::int32_t slot = 0;
  std::int32_t first = 0;
  std::int32_t end = 0;

  bool takes(std::int32_t position) const { return position >= first && position < end; }
};

// What a removal does to one tier of one head.
struct TierCut {
  std::uint32_t kept = 0;      // tokens
  std::uint32_t own_from = 0;  // shared pages [own_from, own_to) have to be copied first: a hole
  std::uint32_t own_to = 0;    // is filled in one of them, or the last one has room from now on
};

std::int32_t position_at(const HeadView& view, std::uint32_t tier, std::uint32_t index) {
  if (!view.tiers[tier].fields.position) return static_cast<std::int32_t>(view.shape.sinks + index);
  return place_of(view, tier, index).position();
}

TierCut plan_cut(const HeadView& view, const Removal& removal, std::uint32_t tier) {
  const std::uint32_t per_page = view.tiers[tier].tokens;
  std::uint32_t first_hole = view.tokens[tier];
  TierCut cut;
  for (std::uint32_t i = 0; i < view.tokens[tier]; ++i) {
    if (!removal.takes(position_at(view, tier, i))) {
      ++cut.kept;
    } else if (i < first_hole) {
      first_hole = i;
    }
  }
  const std::uint32_t shared = view.frozen[tier] / per_page;
  std::uint32_t from = cut.kept / per_page;  // the page that is open afterwards
  if (first_hole < cut.kept) from = std::min(from, first_hole / per_page);
  cut.own_to = std::min(shared, ceil_div(cut.kept, per_page));
  cut.own_from = std::min(from, cut.own_to);
  return cut;
}

// Fills holes from the end; writes below `kept` only.
void close_holes(const HeadView& view,
                 const Removal& removal,
                 std::uint32_t tier,
                 std::uint32_t kept) {
  CodecEvents events;  // both places are coded alike
  std::uint32_t last = view.tokens[tier];
  for (std::uint32_t i = 0; i < kept; ++i) {
    if (!removal.takes(position_at(view, tier, i))) continue;
    do {
      --last;
    } while (removal.takes(position_at(view, tier, last)));
    move_record(place_of(view, tier, last), place_of(view, tier, i), events);
  }
}

std::uint64_t pages_to_copy(const CacheState& cache, const Removal& removal) {
  std::uint64_t pages = 0;
  for (std::uint32_t layer = 0; layer < cache.group.layers; ++layer) {
    for (std::uint32_t head = 0; head < cache.group.kv_heads; ++head) {
      const HeadView view = cache.view(removal.slot, layer, head, cache.slots[removal.slot].tokens);
      for (std::uint32_t t = 0; t < view.tier_count; ++t) {
        const TierCut cut = plan_cut(view, removal, t);
        pages += cut.own_to - cut.own_from;
      }
    }
  }
  return pages;
}

// Tokens of pages that others hold count once for all of them.
void count_tokens(CacheState& cache,
                  Slot& s,
                  std::uint32_t tier,
                  const HeadState& before,
                  const HeadState& after) {
  const std::uint64_t per_page = cache.group.layout.tier[tier].tokens;
  const auto own = [&](const HeadState& state) {
    return state.tokens[tier] - state.shared_pages[tier] * per_page;
  };
  // Both differences wrap for a decrease, as meant.
  s.tier_tokens[tier] += std::uint64_t{after.tokens[tier]} - before.tokens[tier];
  cache.counters.tier_tokens[tier].fetch_add(own(after) - own(before), std::memory_order_relaxed);
}

void remove_from_head(CacheState& cache,
                      const Removal& removal,
                      std::uint32_t layer,
                      std::uint32_t head) {
  Slot& s = cache.slots[removal.slot];
  const std::uint64_t row = cache.row(removal.slot, layer, head);
  HeadState& state = cache.head_states[row];
  const HeadState before = state;
  for (std::uint32_t t = 0; t < cache.group.layout.tier_count; ++t) {
    const TierCut cut = plan_cut(cache.view(removal.slot, layer, head, s.tokens), removal, t);
    for (std::uint32_t p = cut.own_from; p < cut.own_to; ++p) cache.own_page(row, t, p);
    state.shared_pages[t] = cut.own_from < cut.own_to ? cut.own_from : cut.own_to;
    close_holes(cache.view(removal.slot, layer, head, s.tokens), removal, t, cut.kept);
    state.tokens[t] = cut.kept;
    count_tokens(cache, s, t, before, state);
  }
  state.lowest_length = -1;
  cache.release_empty(removal.slot, row);
}

Status reserve_copies(CacheState& cache, const Removal& removal) {
  cache.refresh_shared(removal.slot);
  return cache.reserve(pages_to_copy(cache, removal));
}

void remove_positions(CacheState& cache, const Removal& removal) {
  for (std::uint32_t layer = 0; layer < cache.group.layers; ++layer) {
    for (std::uint32_t head = 0; head < cache.group.kv_heads; ++head)
      remove_from_head(cache, removal, layer, head);
  }
}

// True when the sequence would not be what it was at `tokens`: tokens that are left have changed
// their place since, or scores have steered what was kept.
bool is_lossy(const Slot& s, std::int32_t tokens) {
  if (tokens == s.tokens || tokens == 0) return false;
  const std::int32_t moved_end = std::min(s.shape.window_begin(s.tokens), tokens);
  const bool keeps = s.policy.kind == PolicyKind::kKeepAll || s.policy.kind == PolicyKind::kForeign;
  return moved_end > s.shape.window_begin(tokens) || !keeps ||
         s.policy.statistic != Statistic::kNone;
}

// Sums of probabilities also hold those of queries that are gone now. They shrink to the number of
// queries that are left, so that means stay; scores in shared pages stay frozen.
void rescale_scores(const CacheState& cache,
                    std::int32_t slot,
                    const PromptEnds& before,
                    std::int32_t length) {
  const Slot& s = cache.slots[slot];
  if (s.policy.statistic == Statistic::kNone) return;
  for (std::uint64_t i = 0; i < cache.group.heads(); ++i) {
    const auto layer = static_cast<std::uint32_t>(i / cache.group.kv_heads);
    const auto head = static_cast<std::uint32_t>(i % cache.group.kv_heads);
    const HeadView view = cache.view(slot, layer, head, s.tokens);
    for (std::uint32_t n = 0; n < view.segment_count(); ++n) {
      const Segment segment = view.segment(n);
      if (view.is_frozen(segment)) continue;
      float* scores = score_array(*segment.layout, segment.base) + segment.first;
      for (std::uint32_t t = 0; t < segment.count; ++t) {
        const std::int32_t p = segment.position(t);
        const std::int32_t was = query_count(before, s.policy.tail_queries, p, length);
        const std::int32_t is = query_count(s.ends, s.policy.tail_queries, p, s.tokens);
        if (was > is) scores[t] *= static_cast<float>(is) / static_cast<float>(was);
      }
    }
  }
}

PromptEnds ends_within(const PromptEnds& ends, std::int32_t tokens) {
  PromptEnds out;
  for (std::uint32_t i = 0; i < ends.count; ++i) {
    if (ends.begin[i] >= tokens) break;
    out.add(std::min(ends.end[i], tokens), ends.begin[i]);
  }
  return out;
}

struct TruncateRequest {
  std::int32_t slot = 0;
  std::uint32_t tokens = 0;
  bool strict = false;
};

void cut_back(CacheState& cache, std::int32_t slot, std::int32_t tokens) {
  Slot& s = cache.slots[slot];
  const std::int32_t length = s.tokens;
  const PromptEnds ends = s.ends;
  remove_positions(cache, {slot, tokens, length});
  s.shape.from = std::min(s.shape.window_begin(length), tokens);
  s.tokens = tokens;
  s.prompt_tokens = std::min(s.prompt_tokens, tokens);
  s.controlled_at = std::min(s.controlled_at, tokens);
  s.ends = ends_within(ends, tokens);
  s.replanned = true;
  if (s.unfinished >= tokens) s.unfinished = -1;
  rescale_scores(cache, slot, ends, length);
  if (tokens == 0) reset_empty(cache, slot);
}

Status truncate(quire_cache& cache, const TruncateRequest& request, std::uint32_t* lossy) {
  const std::int32_t length = cache.slots[request.slot].tokens;
  if (request.tokens > static_cast<std::uint32_t>(length)) {
    return invalid(
        "tokens", "not above the sequence's", static_cast<std::uint64_t>(length), request.tokens);
  }
  const auto tokens = static_cast<std::int32_t>(request.tokens);
  bool loses = false;
  for_groups(cache, [&](const CacheState& group) {
    loses = loses || is_lossy(group.slots[request.slot], tokens);
  });
  if (loses && request.strict) {
    return fail(StatusCode::kNotReversible,
                "tokens",
                "a length from which no token has left the ring, under a policy without scores",
                static_cast<std::uint64_t>(length),
                request.tokens);
  }
  if (tokens < length) {
    const Removal removal = {request.slot, tokens, length};
    QUIRE_TRY(try_groups(cache, [&](CacheState& group) { return reserve_copies(group, removal); }));
    for_groups(cache, [&](CacheState& group) { cut_back(group, request.slot, tokens); });
  }
  if (lossy != nullptr) *lossy = loses ? 1 : 0;
  return ok_status();
}

Status check_span(const CacheState& cache, const Removal& removal) {
  const Slot& s = cache.slots[removal.slot];
  const auto sinks = static_cast<std::int32_t>(s.policy.sink_tokens);
  const std::int32_t limit = s.shape.window_begin(s.tokens);
  if (removal.first < sinks || removal.first > removal.end) {
    return invalid("first",
                   "from sink_tokens to end: sinks stay",
                   s.policy.sink_tokens,
                   static_cast<std::uint64_t>(removal.first));
  }
  if (removal.end > limit) {
    return invalid("end",
                   "up to the first token of the recent window",
                   static_cast<std::uint64_t>(limit),
                   static_cast<std::uint64_t>(removal.end));
  }
  if (!cache.group.layout.tier[0].fields.position) {
    return fail(StatusCode::kUnsupported, "first", "a layout without QUIRE_LAYOUT_NO_POSITION");
  }
  return ok_status();
}

Status remove_span(quire_cache& cache, const Removal& removal, std::uint64_t* removed) {
  QUIRE_TRY(try_groups(cache, [&](const CacheState& group) { return check_span(group, removal); }));
  QUIRE_TRY(try_groups(cache, [&](CacheState& group) { return reserve_copies(group, removal); }));
  std::uint64_t count = 0;
  for_groups(cache, [&](CacheState& group) {
    const Slot& s = group.slots[removal.slot];
    const std::uint64_t before = s.tier_tokens[0] + s.tier_tokens[1];
    remove_positions(group, removal);
    group.slots[removal.slot].replanned = true;
    count += before - s.tier_tokens[0] - s.tier_tokens[1];
  });
  if (removed != nullptr) *removed = count;
  return ok_status();
}

}  // namespace
}  // namespace quire

extern "C" quire_status quire_seq_truncate(quire_cache* cache,
                                           const quire_seq_truncate_args* args) {
  return quire::guarded(quire::error_of(args), [&]() -> quire::Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire_seq_truncate_args a;
    QUIRE_TRY(quire::read_args(args, "args", QUIRE_TRUNCATE_STRICT, a));
    QUIRE_TRY(quire::find_slot(*cache, a.slot, quire::state_bit(quire::SeqState::kOpen), "slot"));
    const bool strict = (a.flags & QUIRE_TRUNCATE_STRICT) != 0;
    return quire::truncate(*cache, {a.slot, a.tokens, strict}, a.lossy);
  });
}

extern "C" quire_status quire_seq_remove_span(quire_cache* cache,
                                              const quire_seq_remove_span_args* args) {
  return quire::guarded(quire::error_of(args), [&]() -> quire::Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire_seq_remove_span_args a;
    QUIRE_TRY(quire::read_args(args, "args", 0, a));
    QUIRE_TRY(quire::find_slot(*cache, a.slot, quire::state_bit(quire::SeqState::kOpen), "slot"));
    return quire::remove_span(*cache, {a.slot, a.first, a.end}, a.removed);
  });
}
