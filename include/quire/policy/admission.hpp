// Pages in closed form, before anything is stored: what an engine admits and preempts by.
#pragma once

#include <cstdint>

#include "quire/core/plan.hpp"
#include "quire/core/types.hpp"
#include "quire/policy/policy.hpp"

namespace quire {

// The numbers of a cache and a policy that reservations depend on.
struct AdmissionShape {
  std::uint32_t layers = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t sinks = 0;  // of the policy
  std::uint32_t window = 0;
  std::uint32_t tier_count = 1;
  std::uint32_t ring_record_bytes = 0;
  std::uint64_t fp16_token_bytes = 0;  // 2 (Dk + Dv) x kv_heads x layers
  ByteCost cost;

  std::uint64_t heads() const { return std::uint64_t{layers} * kv_heads; }

  // Tokens of a head that are not in the ring.
  std::uint64_t outside(std::uint64_t tokens) const {
    const std::uint64_t ring = std::uint64_t{sinks} + window;
    return tokens > ring ? tokens - ring : 0;
  }
};

// Physical bytes that a byte target allows a sequence of so many tokens.
inline std::uint64_t target_bytes(const Policy& policy,
                                  const AdmissionShape& shape,
                                  std::uint64_t tokens) {
  return static_cast<std::uint64_t>(policy.byte_target *
                                    static_cast<double>(shape.fp16_token_bytes * tokens));
}

// Tokens of the high tier that an evicting policy allows a head (its index among all heads of all
// layers) at a length of `tokens`. A byte target is dealt out in whole pages; what does not divide
// evenly goes to the first heads.
inline std::uint64_t evict_tokens(const Policy& policy,
                                  const AdmissionShape& shape,
                                  std::uint64_t tokens,
                                  std::uint64_t head) {
  const std::uint64_t ring = std::uint64_t{shape.sinks} + shape.window;
  if (policy.budget_tokens > 0)
    return policy.budget_tokens > ring ? policy.budget_tokens - ring : 0;
  if (policy.budget_bytes > 0) {
    const std::uint64_t share = policy.budget_bytes / shape.heads();
    const std::uint64_t ring_bytes = ring * shape.ring_record_bytes;
    return share > ring_bytes ? (share - ring_bytes) / shape.cost.record_bytes[0] : 0;
  }
  const std::uint64_t bytes = target_bytes(policy, shape, tokens);
  const std::uint64_t fixed = shape.cost.fixed_bytes * shape.heads();
  if (bytes <= fixed) return 0;
  // Every page costs itself and a share of a table chunk; one chunk per head may be part-filled.
  const std::uint64_t chunks = shape.cost.chunk_bytes * shape.heads();
  const std::uint64_t page =
      shape.cost.page_bytes + ceil_div(shape.cost.chunk_bytes, shape.cost.chunk_pages);
  const std::uint64_t pages = bytes - fixed > chunks ? (bytes - fixed - chunks) / page : 0;
  const std::uint64_t mine = pages / shape.heads() + (head < pages % shape.heads() ? 1 : 0);
  return mine * shape.cost.tokens_per_page[0];
}

// Pages of one head when the policy may put any split of n tokens into its tiers: those of the tier
// with fewer tokens to a page (mostly the high one; padding may turn it round), and one more.
inline std::uint64_t head_pages_bound(const AdmissionShape& shape, std::uint64_t n) {
  if (n == 0) return 0;
  if (shape.tier_count < 2) return shape.cost.pages(0, n);
  const std::uint64_t high = shape.cost.pages(0, n);
  const std::uint64_t low = shape.cost.pages(1, n);
  return (high > low ? high : low) + 1;
}

// Tokens of a head before a later prompt, and what the prompt brings.
struct LaterHead {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  std::uint64_t frozen_high = 0;  // of them, in pages that other sequences hold
  std::uint64_t frozen_low = 0;
  std::uint64_t entering = 0;  // tokens that leave the ring, or are new and outside it
};

// Pages that a head can take beyond those it has when a later prompt may put any split of entering
// tokens into its tiers, and may demote or drop what is not frozen. First demoted tokens find room,
// then emptied pages return, then tokens enter. In between both ends of the split the sum of pages
// is at most one above the larger end.
inline std::uint64_t later_pages_bound(const AdmissionShape& shape, const LaterHead& head) {
  const ByteCost& cost = shape.cost;
  const std::uint64_t has_high = cost.pages(0, head.high);
  if (shape.tier_count < 2) return cost.pages(0, head.high + head.entering) - has_high;
  const std::uint64_t has_low = cost.pages(1, head.low);
  const std::uint64_t free_high = head.high - head.frozen_high;
  if (free_high + head.entering == 0) return 0;
  const std::uint64_t all_high = cost.pages(0, head.high + head.entering) + has_low;
  const std::uint64_t all_low =
      cost.pages(0, head.frozen_high) + cost.pages(1, head.low + free_high + head.entering);
  const std::uint64_t most = (all_high > all_low ? all_high : all_low) + 1;
  const std::uint64_t entered = most > has_high + has_low ? most - has_high - has_low : 0;
  const std::uint64_t demoted = cost.pages(1, head.low + free_high) - has_low;
  return entered > demoted ? entered : demoted;
}

namespace detail {

// A controlled prompt is cut to its target after every layer. At its peak it holds what the target
// allows (or, where that cannot be met, all that the policy may not drop), one layer before it is
// cut, the low pages of the head that is being re-encoded, and a page per head for rounding while
// only some heads are cut.
inline std::uint64_t controlled_pages(const Policy& policy,
                                      const AdmissionShape& shape,
                                      std::uint64_t tokens) {
  const std::uint64_t n = shape.outside(tokens);
  const ByteCost& cost = shape.cost;
  std::uint64_t fit = 0;
  if (policy.byte_target > 0.0) {
    fit = target_bytes(policy, shape, tokens) / cost.page_bytes;
  } else {  // records alone: a full page may hold fewer bytes than it has
    std::uint64_t least = std::uint64_t{cost.tokens_per_page[0]} * cost.record_bytes[0];
    if (shape.tier_count > 1) {
      const std::uint64_t low = std::uint64_t{cost.tokens_per_page[1]} * cost.record_bytes[1];
      least = low < least ? low : least;
    }
    fit = policy.budget_bytes / least + shape.tier_count * shape.heads();
  }
  // Older tokens of a prompt have been seen by tail_queries, the last ones by fewer.
  std::uint64_t kept_high = 0;
  if (policy.alpha_high <= 0.0f || policy.min_queries > policy.tail_queries) {
    kept_high = n;
  } else if (policy.min_queries > shape.window) {
    kept_high = policy.min_queries - shape.window < n ? policy.min_queries - shape.window : n;
  }
  std::uint64_t kept = head_pages_bound(shape, kept_high);
  if (!(policy.alpha_low > 0.0f) && shape.tier_count > 1) kept += cost.pages(1, n - kept_high);
  const std::uint64_t floor = kept * shape.heads();
  const std::uint64_t resident = fit > floor ? fit : floor;
  const std::uint64_t moving = shape.tier_count > 1 ? cost.pages(1, n) : 0;
  const std::uint64_t layer = head_pages_bound(shape, n) * shape.kv_heads;
  const std::uint64_t all = head_pages_bound(shape, n) * shape.heads();
  const std::uint64_t peak = resident + layer + shape.heads();
  return (peak < all ? peak : all) + moving;
}

}  // namespace detail

// Pages that a prompt of `tokens` tokens reserves.
inline std::uint64_t prompt_pages(const Policy& policy,
                                  const AdmissionShape& shape,
                                  std::uint64_t tokens) {
  const std::uint64_t n = shape.outside(tokens);
  if (policy.kind == PolicyKind::kKeepAll) return shape.cost.pages(0, n) * shape.heads();
  if (policy.kind == PolicyKind::kEvict) {  // the first head has the largest budget
    const std::uint64_t budget = evict_tokens(policy, shape, tokens, 0);
    return shape.cost.pages(0, n < budget ? n : budget) * shape.heads();
  }
  if (policy.has_controller()) return detail::controlled_pages(policy, shape, tokens);
  return head_pages_bound(shape, n) * shape.heads();
}

// Pages that one head can take in a later prompt that makes the sequence `tokens` long. Sequences
// with a byte budget or target: later_prompt_pages().
inline std::uint64_t later_head_pages(const Policy& policy,
                                      const AdmissionShape& shape,
                                      const LaterHead& head,
                                      std::uint64_t tokens,
                                      std::uint64_t head_index) {
  const auto grown = [&](std::uint64_t high) {
    const std::uint64_t has = shape.cost.pages(0, head.high);
    const std::uint64_t needs = shape.cost.pages(0, high);
    return needs > has ? needs - has : 0;
  };
  const std::uint64_t most = head.high + head.entering;
  if (policy.kind == PolicyKind::kKeepAll) return grown(most);
  if (policy.kind != PolicyKind::kEvict) return later_pages_bound(shape, head);
  const std::uint64_t budget = evict_tokens(policy, shape, tokens, head_index);
  const std::uint64_t frozen = head.frozen_high + head.frozen_low;
  const std::uint64_t kept = head.frozen_high + (budget > frozen ? budget - frozen : 0);
  return grown(most < kept ? most : kept);
}

// Pages that a later prompt reserves, from the sum over all heads of later_pages_bound(): under a
// byte controller layers that are stored already keep to the budget (controlled_pages), those not
// reached hold what they held.
inline std::uint64_t later_prompt_pages(const Policy& policy,
                                        const AdmissionShape& shape,
                                        std::uint64_t tokens,
                                        std::uint64_t any_split) {
  if (!policy.has_controller()) return any_split;
  const std::uint64_t n = shape.outside(tokens);
  const std::uint64_t moving = shape.tier_count > 1 ? shape.cost.pages(1, n) : 0;
  const std::uint64_t peak = detail::controlled_pages(policy, shape, tokens);
  return peak < any_split + moving ? peak : any_split + moving;
}

// Pages that one step can take for one head with so many tokens in its high tier: one token enters,
// and one may change its tier; a cadence step may demote all of the high tier.
inline std::uint64_t step_pages_bound(const Policy& policy,
                                      const AdmissionShape& shape,
                                      std::uint64_t high_tokens,
                                      bool cadence_step) {
  const std::uint64_t moved = cadence_step ? shape.cost.pages(1, high_tokens) : 0;
  return 1 + moved + (policy.kind == PolicyKind::kThreshold && cadence_step ? 1 : 0);
}

}  // namespace quire
