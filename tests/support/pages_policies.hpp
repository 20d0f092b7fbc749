// Random policies that a cache takes, and random plans on what it stores.
#pragma once

#include <string>
#include <vector>

#include "support/pages_accounting.hpp"
#include "support/pages_cache.hpp"

namespace quire::test {

namespace detail {

inline void random_ring(const quire_group_desc& group, Rng& rng, quire_policy& policy) {
  const auto part = [&](std::uint32_t most, std::uint32_t standard) {
    const std::uint32_t limit = most == QUIRE_NONE ? 0 : (most == 0 ? standard : most);
    const std::uint32_t chosen = rng.below(2) == 0 ? limit : rng.below(limit + 1);
    return chosen == 0 ? QUIRE_NONE : chosen;
  };
  policy.sink_tokens = part(group.sink_tokens, 1);
  policy.recent_window = part(group.recent_window, 64);
}

inline void random_thresholds(Rng& rng, quire_policy& policy) {
  constexpr float kAlphas[] = {0.0f, 0.3f, 0.7f, 1.0f, 1.5f};
  policy.alpha_high = kAlphas[1 + rng.below(4)];
  policy.alpha_low = std::min(policy.alpha_high, kAlphas[rng.below(5)]);
}

// One of the three budgets; a small one in tokens or records, or a share of fp16.
inline void random_budget(const quire_group_desc& group, Rng& rng, quire_policy& policy) {
  const auto ring = [](std::uint32_t x) { return x == QUIRE_NONE ? 0u : x; };
  const std::uint32_t slots = ring(policy.sink_tokens) + ring(policy.recent_window);
  policy.budget_tokens = 0;
  policy.budget_bytes = 0;
  policy.byte_target = 0.0;
  const bool evicts = policy.kind == QUIRE_EVICT;
  const std::uint32_t kind = evicts ? rng.below(3) : 1 + rng.below(2);
  if (kind == 0) policy.budget_tokens = std::max(1u, slots + rng.below(60));
  if (kind == 1) policy.byte_target = 0.2 + 1.2 * rng.uniform();
  if (kind == 2) {  // no record is larger than fp16 with score and position
    const std::uint64_t record = 2ull * (group.layout.head_dim_k + group.layout.head_dim_v) + 8;
    policy.budget_bytes =
        std::uint64_t{group.layers} * group.kv_heads * record * (slots + 1 + rng.below(60));
  }
}

}  // namespace detail

// Any recipe that the group's layout can carry, with random numbers in it.
inline quire_policy random_policy(const quire_group_desc& group, Rng& rng) {
  const bool plain = (group.layout.flags & QUIRE_LAYOUT_NO_POSITION) != 0;
  const bool two_tiers = group.layout.tier_count > 1;
  std::uint32_t recipe = QUIRE_RECIPE_KEEP_ALL;
  if (!plain) {
    do {
      recipe = 1 + rng.below(QUIRE_RECIPE_FOREIGN);
    } while (!two_tiers &&
             (recipe == QUIRE_RECIPE_DIFFKV_PAPER || recipe == QUIRE_RECIPE_DIFFKV_UPSTREAM ||
              recipe == QUIRE_RECIPE_QUIRE_BUDGET));
  }
  quire_policy policy = QUIRE_POLICY_INIT;
  REQUIRE(quire_recipe_get(recipe, &policy, nullptr, nullptr) == QUIRE_OK);
  detail::random_ring(group, rng, policy);
  if (policy.tail_queries != 0 && policy.tail_queries != QUIRE_ALL)
    policy.tail_queries = 1 + rng.below(64);
  policy.cadence = 1 + rng.below(6);
  if (policy.kind == QUIRE_THRESHOLD) detail::random_thresholds(rng, policy);
  if (recipe == QUIRE_RECIPE_QUIRE_BUDGET) policy.min_queries = rng.below(20);
  if (recipe == QUIRE_RECIPE_QUIRE_BUDGET || policy.kind == QUIRE_EVICT)
    detail::random_budget(group, rng, policy);
  if (policy.kind == QUIRE_EVICT && rng.below(3) == 0) policy.flags |= QUIRE_POLICY_GROWS;
  return policy;
}

// A plan for some layers of a sequence: every stored token stays or goes down.
class RandomPlan {
 public:
  RandomPlan(const PoolCache& box, std::int32_t slot, std::uint32_t tokens, Rng& rng)
      : box_(box), slot_(slot), tokens_(tokens) {
    const quire_group_desc& g = box.spec.group;
    first_ = rng.below(g.layers);
    layers_ = 1 + rng.below(g.layers - first_);
    tiers_.assign(std::size_t{layers_} * g.kv_heads * tokens, 255);
    const CostSheet sheet(box.spec);
    const std::uint32_t moved = 1 + rng.below(16);
    for (std::uint32_t row = 0; row < layers_ * g.kv_heads; ++row) {
      const Listing before = list(row);
      std::uint64_t low_before = 0, low_after = 0;
      for (std::size_t i = 0; i < before.positions.size(); ++i) {
        const std::uint8_t now = before.tiers[i];
        if (now == 255) continue;
        std::uint8_t& to =
            tiers_[std::size_t{row} * tokens + static_cast<std::size_t>(before.positions[i])];
        if (rng.below(16) < moved) to = pick(now, rng);
        low_before += now == 1 ? 1 : 0;
        low_after += (to == 255 ? now : to) == 1 ? 1 : 0;
      }
      const std::uint64_t had = sheet.pages(1 % sheet.tier_count, low_before);
      const std::uint64_t needs = sheet.pages(1 % sheet.tier_count, low_after);
      low_pages_ += needs > had ? needs - had : 0;
      before_.push_back(before);
    }
  }

  quire_plan_apply_args args() const {
    quire_plan_apply_args a = QUIRE_PLAN_APPLY_ARGS_INIT;
    a.slot = slot_;
    a.first_layer = first_;
    a.layer_count = layers_;
    a.tokens = tokens_;
    a.tiers = tiers_.data() == nullptr ? &kNothing : tiers_.data();
    return a;
  }

  std::uint64_t low_pages_taken() const { return low_pages_; }

  // Every token is where the plan says.
  bool carried_out() const {
    for (std::uint32_t row = 0; row < before_.size(); ++row) {
      std::vector<std::uint8_t> want(tokens_, 254), got(tokens_, 254);
      const Listing& before = before_[row];
      for (std::size_t i = 0; i < before.positions.size(); ++i) {
        const auto p = static_cast<std::size_t>(before.positions[i]);
        const std::uint8_t to = tiers_[std::size_t{row} * tokens_ + p];
        want[p] = to == 255 ? before.tiers[i] : to;
      }
      const Listing after = list(row);
      for (std::size_t i = 0; i < after.positions.size(); ++i)
        got[static_cast<std::size_t>(after.positions[i])] = after.tiers[i];
      if (got != want) return false;
    }
    return true;
  }

 private:
  static constexpr std::uint8_t kNothing = 255;

  struct Listing {
    std::vector<std::int32_t> positions;
    std::vector<std::uint8_t> tiers;
  };

  std::uint8_t pick(std::uint8_t now, Rng& rng) const {
    const bool to_low = now == 0 && box_.spec.group.layout.tier_count > 1 && rng.below(4) != 0;
    return to_low ? 1 : (rng.below(3) == 0 ? now : 254);
  }

  Listing list(std::uint32_t row) const {
    Listing l;
    std::uint32_t count = 0;
    l.positions.resize(tokens_);
    l.tiers.resize(tokens_);
    quire_query_args args = QUIRE_QUERY_ARGS_INIT;
    args.slot = slot_;
    args.layer = first_ + row / box_.spec.group.kv_heads;
    args.head = row % box_.spec.group.kv_heads;
    args.capacity = tokens_;
    args.positions = l.positions.data();
    args.tiers = l.tiers.data();
    args.count = &count;
    PoolCache::need(box_.cache.query(args));
    l.positions.resize(count);
    l.tiers.resize(count);
    return l;
  }

  const PoolCache& box_;
  std::int32_t slot_;
  std::uint32_t tokens_;
  std::uint32_t first_ = 0;
  std::uint32_t layers_ = 1;
  std::uint64_t low_pages_ = 0;
  std::vector<std::uint8_t> tiers_;  // [layers, kv_heads, tokens]
  std::vector<Listing> before_;
};

}  // namespace quire::test
