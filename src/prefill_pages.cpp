// What a round of a prompt can take from the pool, in closed form.
#include <algorithm>

#include "src/prefill.hpp"

namespace quire {
namespace {

// What decides how many pages a round takes: a round with more to come only appends.
Policy paging_policy(const CacheState& cache, const PromptRound& round) {
  Policy policy = cache.slots[round.slot].policy;
  if (round.more) policy.kind = PolicyKind::kKeepAll;
  return policy;
}

LaterHead later_head(const CacheState& cache, const HeadState& state, std::uint64_t entering) {
  LaterHead head;
  head.high = state.tokens[0];
  head.low = state.tokens[1];
  head.frozen_high = std::uint64_t{state.shared_pages[0]} * cache.group.layout.tier[0].tokens;
  if (cache.group.layout.tier_count > 1)
    head.frozen_low = std::uint64_t{state.shared_pages[1]} * cache.group.layout.tier[1].tokens;
  head.entering = entering;
  return head;
}

// Thresholds of single heads may keep more than the policy.
Policy widest_policy(const CacheState& cache, std::int32_t slot) {
  Policy bound = cache.slots[slot].policy;
  for (std::uint64_t i = 0; i < cache.group.heads(); ++i) {
    const HeadState& head = cache.head_states[cache.row(slot, 0, 0) + i];
    bound.alpha_high = std::min(bound.alpha_high, head.alpha_high);
    bound.alpha_low = std::min(bound.alpha_low, head.alpha_low);
  }
  return bound;
}

// The first round of all: every head is empty, and all layers have equal shares.
bool is_first(const PromptRound& round) { return round.first == 0 && !round.more; }

}  // namespace

PromptRound open_round(const CacheState& cache, std::int32_t slot) {
  const Slot& s = cache.slots[slot];
  PromptRound round;
  round.slot = slot;
  round.first = static_cast<std::uint32_t>(s.tokens);
  round.tokens = static_cast<std::uint32_t>(s.prompt_tokens);
  round.begin = static_cast<std::uint32_t>(s.unfinished >= 0 ? s.unfinished : s.tokens);
  round.more = s.more;
  return round;
}

Entering entering(const CacheState& cache, const PromptRound& round) {
  const RingShape& shape = cache.slots[round.slot].shape;
  const auto length = static_cast<std::int32_t>(round.length());
  const std::int32_t last = std::min(shape.window_begin(length), length);
  const std::int32_t first =
      std::min(shape.window_begin(static_cast<std::int32_t>(round.first)), last);
  return {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(last)};
}

std::uint64_t round_layer_pages(const CacheState& cache,
                                const PromptRound& round,
                                std::uint32_t layer) {
  const Policy policy = paging_policy(cache, round);
  const AdmissionShape shape = cache.admission(policy);
  const std::uint32_t count = entering(cache, round).count();
  std::uint64_t pages = 0;
  for (std::uint32_t head = 0; head < cache.group.kv_heads; ++head) {
    pages += later_head_pages(policy,
                              shape,
                              later_head(cache, cache.head_state(round.slot, layer, head), count),
                              round.length(),
                              std::uint64_t{layer} * cache.group.kv_heads + head);
  }
  return pages;
}

std::uint64_t round_pages(const CacheState& cache, const PromptRound& round, std::uint32_t layer) {
  std::uint64_t pages = 0;
  for (; layer < cache.group.layers; ++layer) pages += round_layer_pages(cache, round, layer);
  return pages;
}

std::uint64_t reserved_pages(const CacheState& cache, const PromptRound& round) {
  const Policy bound = widest_policy(cache, round.slot);
  const AdmissionShape shape = cache.admission(bound);
  if (is_first(round)) return prompt_pages(bound, shape, round.length());
  const std::uint64_t any = round_pages(cache, round, 0);
  return round.more ? any : later_prompt_pages(bound, shape, round.length(), any);
}

std::uint64_t layer_share(const CacheState& cache, const PromptRound& round) {
  const Slot& s = cache.slots[round.slot];
  if (s.policy.has_controller() && !round.more) return s.credit;
  if (is_first(round)) return s.credit / (cache.group.layers - s.next_layer);
  return round_layer_pages(cache, round, s.next_layer);
}

std::uint32_t scoring_rows(const Policy& policy, const PromptRound& round) {
  if (policy.statistic == Statistic::kNone || round.more) return 0;
  return std::min(policy.tail_queries, round.prompt_tokens());
}

}  // namespace quire
