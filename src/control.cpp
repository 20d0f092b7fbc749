#include "src/control.hpp"

#include <algorithm>

#include "quire/pages/head_tokens.hpp"
#include "quire/policy/controller.hpp"

namespace quire {
namespace {

// One level of the search over all heads: bytes at the lower edge of every bin, at both moments.
class ControlLevel {
 public:
  ControlLevel(const CacheState& cache, const ControlRequest& request, const ControlBudget& budget)
      : cache_(cache), request_(request), budget_(budget) {}

  // The first bin that fits at both moments.
  std::uint32_t search(const BorderWindow& window) {
    std::fill(totals_[0], totals_[0] + kControllerBins, budget_.rest_bytes);
    std::fill(totals_[1], totals_[1] + kControllerBins, budget_.rest_bytes);
    for (std::uint32_t layer = 0; layer < request_.layers; ++layer) {
      for (std::uint32_t head = 0; head < cache_.group.kv_heads; ++head)
        add_head(window, layer, head);
    }
    const std::uint32_t first =
        first_fitting_bin(totals_[0], budget_at(cache_, request_, request_.first_growth));
    const std::uint32_t last =
        first_fitting_bin(totals_[1], budget_at(cache_, request_, request_.last_growth));
    return std::max(first, last);
  }

 private:
  void add_head(const BorderWindow& window, std::uint32_t layer, std::uint32_t head) {
    const HeadView view = cache_.view(request_.slot, layer, head, request_.length);
    const TierRule rule = cache_.rule(request_.slot, layer, head, request_.length, 1.0f);
    const HeadState& state = cache_.head_state(request_.slot, layer, head);
    histogram_ = BorderHistogram{};
    for (std::uint32_t tier = 0; tier < view.tier_count; ++tier) {
      for (std::uint32_t i = 0; i < view.tokens[tier]; ++i) {
        const TokenPlace place = place_of(view, tier, i);
        if (rule.on_probation(place.position())) continue;
        add_border(histogram_,
                   window,
                   static_cast<Tier>(tier),
                   rule.significance_at(place.score(), place.position()),
                   request_.length,
                   state.alpha_high,
                   state.alpha_low);
      }
    }
    const ControlledHead counts = {view.tokens[0], view.tokens[1]};
    add_head_cost(
        histogram_, counts, budget_.cost, budget_.physical, request_.first_growth, totals_[0]);
    add_head_cost(
        histogram_, counts, budget_.cost, budget_.physical, request_.last_growth, totals_[1]);
  }

  const CacheState& cache_;
  const ControlRequest& request_;
  const ControlBudget& budget_;
  BorderHistogram histogram_;
  std::uint64_t totals_[2][kControllerBins];
};

}  // namespace

ControlBudget ControlBudget::of(const CacheState& cache, const ControlRequest& request) {
  const Policy& policy = cache.slots[request.slot].policy;
  const AdmissionShape shape = cache.admission(policy);
  ControlBudget budget;
  budget.cost = shape.cost;
  budget.physical = policy.byte_target > 0.0;
  if (!budget.physical) {
    const std::uint64_t ring = std::uint64_t{shape.sinks} + shape.window;
    budget.cost.fixed_bytes = ring * shape.ring_record_bytes;
  }
  budget.rest_bytes =
      std::uint64_t{shape.layers - request.layers} * shape.kv_heads * budget.cost.fixed_bytes;
  return budget;
}

std::uint64_t budget_at(const CacheState& cache,
                        const ControlRequest& request,
                        std::uint32_t growth) {
  const Policy& policy = cache.slots[request.slot].policy;
  if (policy.byte_target <= 0.0) return policy.budget_bytes;
  return target_bytes(
      policy, cache.admission(policy), static_cast<std::uint64_t>(request.length) + growth);
}

float find_factor(const CacheState& cache, const ControlRequest& request) {
  const ControlBudget budget = ControlBudget::of(cache, request);
  const bool fits_now = within_budget(cache, request, [&](std::uint32_t layer, std::uint32_t head) {
    const HeadState& state = cache.head_state(request.slot, layer, head);
    RetierCounts counts;
    counts.tokens[0] = state.tokens[0];
    counts.tokens[1] = state.tokens[1];
    return counts;
  });
  if (fits_now) return 0.0f;
  ControlLevel level(cache, request, budget);
  const BorderWindow coarse;
  const std::uint32_t bin = level.search(coarse);
  if (bin == kControllerBins) return kDropAll;
  if (bin == 0) return coarse.edge(0);
  const BorderWindow fine = coarse.refine(bin - 1);
  const std::uint32_t sub = level.search(fine);
  return sub == kControllerBins ? coarse.edge(bin) : fine.edge(sub);
}

}  // namespace quire
