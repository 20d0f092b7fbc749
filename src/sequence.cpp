#include "src/sequence.hpp"

#include <algorithm>
#include <cmath>

#include "src/args.hpp"
#include "src/prefix.hpp"

namespace quire {
Status check_fit(const Group& group, const Policy& policy) {
  const TokenFields& fields = group.layout.tier[0].fields;
  if (policy.statistic != Statistic::kNone && !fields.score) {
    return fail(
        StatusCode::kUnsupported, "policy.statistic", "a layout without QUIRE_LAYOUT_NO_SCORE");
  }
  if (policy.kind != PolicyKind::kKeepAll && !fields.position) {
    return fail(
        StatusCode::kUnsupported, "policy.kind", "a layout without QUIRE_LAYOUT_NO_POSITION");
  }
  if (policy.sink_tokens > group.sinks) {
    return invalid("policy.sink_tokens", "not above the group's", group.sinks, policy.sink_tokens);
  }
  if (policy.recent_window > group.window) {
    return invalid(
        "policy.recent_window", "not above the group's", group.window, policy.recent_window);
  }
  const std::uint32_t ring = policy.sink_tokens + policy.recent_window;
  if (policy.budget_tokens != 0 && policy.budget_tokens < ring) {
    return invalid(
        "policy.budget_tokens", "at least sink_tokens + recent_window", ring, policy.budget_tokens);
  }
  const std::uint64_t ring_bytes = group.heads() * ring * group.ring.tokens.record_bytes;
  if (policy.budget_bytes != 0 && policy.budget_bytes < ring_bytes) {
    return invalid(
        "policy.budget_bytes", "at least the records of the ring", ring_bytes, policy.budget_bytes);
  }
  return ok_status();
}

Status check_thresholds(const CacheState& cache, const Policy& policy, const ThresholdList& list) {
  const Group& group = cache.group;
  const bool needs_low = policy.kind == PolicyKind::kThreshold && group.layout.tier_count < 2;
  if (needs_low && policy.alpha_high != policy.alpha_low) {
    return invalid("policy.alpha_low", "equal to alpha_high in a layout without a low tier");
  }
  const std::uint32_t* ids = cache.layer_ids;
  for (std::uint64_t i = 0; i < list.count; ++i) {
    const quire_threshold& t = list.data[i];
    if (t.layer != QUIRE_ALL && std::find(ids, ids + group.layers, t.layer) == ids + group.layers)
      continue;
    if (t.head != QUIRE_ALL && t.head >= group.kv_heads) {
      return invalid("thresholds.head", "below kv_heads, or QUIRE_ALL", group.kv_heads, t.head);
    }
    QUIRE_TRY(detail::check_thresholds(t.alpha_high, t.alpha_low));
    if (needs_low && t.alpha_high != t.alpha_low) {
      return invalid("thresholds.alpha_low", "equal to alpha_high in a layout without a low tier");
    }
  }
  return ok_status();
}

Status check_threshold_layers(const quire_cache& cache, const ThresholdList& list) {
  if (list.count > 0 && list.data == nullptr) return invalid("thresholds", "not NULL");
  for (std::uint64_t i = 0; i < list.count; ++i) {
    const std::uint32_t layer = list.data[i].layer;
    if (layer != QUIRE_ALL && layer >= cache.layer_count)
      return invalid("thresholds.layer", "below layers, or QUIRE_ALL", cache.layer_count, layer);
  }
  return ok_status();
}

Policy policy_in(const Group& group, Policy policy) {
  if (group.sliding_window == 0) return policy;
  Policy windowed;
  windowed.kind = PolicyKind::kEvict;
  windowed.step_rule = StepRule::kEvict;
  windowed.significance = Significance::kPosition;
  windowed.statistic = Statistic::kNone;
  windowed.sink_tokens = 0;
  windowed.recent_window = std::min(policy.recent_window, group.sliding_window);
  windowed.budget_tokens = group.sliding_window;
  return windowed;
}

Status find_free_slot(const CacheState& cache, std::int32_t* slot) {
  std::uint32_t index = 0;
  while (index < cache.max.sequences && cache.slots[index].state != SeqState::kClosed) ++index;
  if (index == cache.max.sequences) {
    return fail(StatusCode::kCapacity,
                "max_sequences",
                "sequences open at once",
                std::uint64_t{index} + 1,
                index);
  }
  *slot = static_cast<std::int32_t>(index);
  return ok_status();
}

Alphas alphas_of(const CacheState& cache,
                 const Alphas& policy,
                 const ThresholdList& list,
                 std::uint32_t layer,
                 std::uint32_t head) {
  Alphas out = policy;
  for (std::uint64_t i = 0; i < list.count; ++i) {
    const quire_threshold& t = list.data[i];
    const bool mine = (t.layer == QUIRE_ALL || t.layer == cache.layer_ids[layer]) &&
                      (t.head == QUIRE_ALL || t.head == head);
    if (mine) out = {t.alpha_high, t.alpha_low};
  }
  return out;
}

void set_thresholds(CacheState& cache, std::int32_t slot, const ThresholdList& list) {
  for (std::uint32_t layer = 0; layer < cache.group.layers; ++layer) {
    for (std::uint32_t head = 0; head < cache.group.kv_heads; ++head) {
      HeadState& state = cache.head_state(slot, layer, head);
      const Alphas alphas =
          alphas_of(cache, {state.alpha_high, state.alpha_low}, list, layer, head);
      state.alpha_high = alphas.high;
      state.alpha_low = alphas.low;
    }
  }
}

namespace {

// Offsets that were the means of a prompt that is gone.
void clear_means(CacheState& cache, std::int32_t slot) {
  const Group& g = cache.group;
  const Slot& s = cache.slots[slot];
  for (std::uint32_t layer = 0; layer < g.layers; ++layer) {
    for (std::uint32_t head = 0; head < g.kv_heads; ++head) {
      std::uint8_t* block = cache.ring_block(slot, layer, head);
      std::uint16_t* k = k_offset_of(g.ring, block);
      std::uint16_t* v = v_offset_of(g.ring, block);
      if (k != nullptr && !s.given_k_offset) std::fill_n(k, g.dim_k, std::uint16_t{0});
      if (v != nullptr && !s.given_v_offset) std::fill_n(v, g.dim_v, std::uint16_t{0});
    }
  }
}

}  // namespace

void reset_empty(CacheState& cache, std::int32_t slot) {
  Slot& s = cache.slots[slot];
  clear_means(cache, slot);
  s.prompt_tokens = 0;
  s.ends = PromptEnds{};
  s.shape.from = 0;
  s.unscored = 0;
  s.replanned = false;
  s.unfinished = -1;
  s.factor = initial_factor(s.policy);
  s.controlled_at = initial_control(s.policy);
}

namespace {

Status check_offset(const float* offset, std::uint64_t count, bool wanted, const char* name) {
  if (offset == nullptr) return ok_status();
  if (!wanted) return invalid(name, "NULL: the format has no QUIRE_TRANSFORM_OFFSET");
  for (std::uint64_t i = 0; i < count; ++i) {
    if (!(std::fabs(offset[i]) <= kHalfMax)) {
      return fail(StatusCode::kBadValue, name, "finite numbers within +-65504", 0, i);
    }
  }
  return ok_status();
}

void write_offsets(CacheState& cache, std::int32_t slot, const OpenRequest& request) {
  const Group& g = cache.group;
  for (std::uint64_t i = 0; i < g.heads(); ++i) {
    std::uint8_t* block = cache.rings + (cache.row(slot, 0, 0) + i) * g.ring.bytes;
    std::uint16_t* k = k_offset_of(g.ring, block);
    std::uint16_t* v = v_offset_of(g.ring, block);
    for (std::uint32_t d = 0; k != nullptr && d < g.dim_k; ++d) {
      k[d] = request.k_offset == nullptr ? std::uint16_t{0}
                                         : float_to_half(request.k_offset[i * g.dim_k + d]);
    }
    for (std::uint32_t d = 0; v != nullptr && d < g.dim_v; ++d) {
      v[d] = request.v_offset == nullptr ? std::uint16_t{0}
                                         : float_to_half(request.v_offset[i * g.dim_v + d]);
    }
  }
}

void reset_heads(CacheState& cache, std::int32_t slot, const Policy& policy) {
  for (std::uint64_t i = 0; i < cache.group.heads(); ++i) {
    HeadState& state = cache.head_states[cache.row(slot, 0, 0) + i];
    state = HeadState{};
    state.lowest_length = -1;
    state.alpha_high = policy.alpha_high;
    state.alpha_low = policy.alpha_low;
  }
}

Status check_open(const CacheState& cache, const OpenRequest& request) {
  const Group& g = cache.group;
  QUIRE_TRY(check_fit(g, request.policy));
  QUIRE_TRY(check_thresholds(cache, request.policy, request.thresholds));
  QUIRE_TRY(check_offset(request.k_offset, g.heads() * g.dim_k, g.ring.has_k_offset, "k_offset"));
  return check_offset(request.v_offset, g.heads() * g.dim_v, g.ring.has_v_offset, "v_offset");
}

void open(CacheState& cache, const OpenRequest& request, std::int32_t id) {
  const Group& g = cache.group;
  Slot& s = cache.slots[id];
  s = Slot{};
  s.state = SeqState::kOpen;
  s.policy = request.policy;
  s.factor = initial_factor(request.policy);
  s.controlled_at = initial_control(request.policy);
  s.shape = {request.policy.sink_tokens,
             request.policy.recent_window,
             request.policy.recent_window + g.max_draft};
  s.given_k_offset = request.k_offset != nullptr;
  s.given_v_offset = request.v_offset != nullptr;
  reset_heads(cache, id, request.policy);
  set_thresholds(cache, id, request.thresholds);
  write_offsets(cache, id, request);
  cache.counters.sequences.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

Status GroupRequests::read(const quire_cache& cache, const quire_seq_open_args& args) {
  const float* k = args.k_offset;
  const float* v = args.v_offset;
  for (std::uint32_t i = 0; i < cache.group_count; ++i) {
    const Group& g = cache.at(i).group;
    const quire_policy* own = args.group_policies == nullptr ? nullptr : args.group_policies[i];
    OpenRequest& out = request[i];
    QUIRE_TRY(read_policy(own == nullptr ? args.policy : own, out.policy));
    if (cache.group_count > 1 && own == nullptr && out.policy.budget_bytes > 0) {
      return fail(StatusCode::kUnsupported,
                  "policy.budget_bytes",
                  "0 in a cache of several layer groups, but in group_policies");
    }
    out.policy = policy_in(g, out.policy);
    out.thresholds = {args.thresholds, args.threshold_count};
    const bool alone = cache.group_count == 1;
    if (k != nullptr && (alone || g.ring.has_k_offset)) out.k_offset = k;
    if (v != nullptr && (alone || g.ring.has_v_offset)) out.v_offset = v;
    if (out.k_offset != nullptr) k += g.heads() * g.dim_k;
    if (out.v_offset != nullptr) v += g.heads() * g.dim_v;
  }
  return ok_status();
}

Status GroupRequests::check(const quire_cache& cache) const {
  QUIRE_TRY(check_threshold_layers(cache, request[0].thresholds));
  for (std::uint32_t i = 0; i < cache.group_count; ++i)
    QUIRE_TRY(check_open(cache.at(i), request[i]));
  return ok_status();
}

namespace {

Status open(quire_cache& cache, const quire_seq_open_args& args, std::int32_t* slot) {
  GroupRequests all;
  QUIRE_TRY(all.read(cache, args));
  QUIRE_TRY(all.check(cache));
  std::int32_t id = 0;
  QUIRE_TRY(find_free_slot(cache, &id));
  for (std::uint32_t i = 0; i < cache.group_count; ++i) open(cache.at(i), all.request[i], id);
  *slot = id;
  return ok_status();
}

void close(CacheState& cache, std::int32_t slot) {
  Slot& s = cache.slots[slot];
  cache.release_all(slot);
  cache.set_credit(s, 0);
  s = Slot{};
  cache.counters.sequences.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace

Status close_sequence(quire_cache& cache, std::int32_t slot) {
  constexpr std::uint32_t kClosable = state_bit(SeqState::kOpen) | state_bit(SeqState::kPrefill) |
                                      state_bit(SeqState::kDraft) | state_bit(SeqState::kBroken) |
                                      state_bit(SeqState::kFrozen);
  QUIRE_TRY(find_slot(cache, slot, kClosable, "slot"));
  leave_prefix(cache, slot);
  for_groups(cache, [&](CacheState& group) { close(group, slot); });
  return ok_status();
}

}  // namespace quire

extern "C" quire_status quire_seq_open(quire_cache* cache,
                                       const quire_seq_open_args* args,
                                       int32_t* slot) {
  return quire::guarded(quire::error_of(args), [&]() -> quire::Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire_seq_open_args a;
    QUIRE_TRY(quire::read_args(args, "args", 0, a));
    if (slot == nullptr) return quire::invalid("slot", "not NULL");
    return quire::open(*cache, a, slot);
  });
}

extern "C" quire_status quire_seq_close(quire_cache* cache, int32_t slot, quire_error* error) {
  return quire::guarded(error, [&]() -> quire::Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    return quire::close_sequence(*cache, slot);
  });
}
