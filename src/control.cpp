#include "src/control.hpp"

#include <algorithm>

#include "quire/pages/head_tokens.hpp"
#include "quire/policy/controller.hpp"

namespace quire {
namespace {

// One level of the search over all heads: bytes at the lower edge of every bin, at every moment.
class ControlLevel {
 public:
  ControlLevel(const CacheState& cache, const ControlRequest& request, const ControlBudget& budget)
      : cache_(cache), request_(request), budget_(budget) {}

  // The first bin that fits at every moment: pages come in jumps, so the ends alone would not do.
  std::uint32_t search(const BorderWindow& window) {
    std::fill(fits_, fits_ + kControllerBins, true);
    for (std::uint32_t first = request_.first_growth; first <= request_.last_growth;
         first += kMoments) {
      check_run(window, {first, std::min(kMoments, request_.last_growth - first + 1)});
    }
    return static_cast<std::uint32_t>(std::find(fits_, fits_ + kControllerBins, true) - fits_);
  }

 private:
  static constexpr std::uint32_t kMoments = 17;  // 0 to 16: the default cadence in one run

  void check_run(const BorderWindow& window, const GrowthRun& run) {
    std::fill(totals_, totals_ + run.count * kControllerBins, budget_.rest_bytes);
    for (std::uint32_t layer = 0; layer < request_.layers; ++layer) {
      for (std::uint32_t head = 0; head < cache_.group.kv_heads; ++head)
        add_head(window, layer, head, run);
    }
    for (std::uint32_t i = 0; i < run.count; ++i) {
      const std::uint64_t allowed =
          budget_at(cache_, request_, run.first + i) + budget_.others_bytes;
      for (std::uint32_t bin = 0; bin < kControllerBins; ++bin)
        fits_[bin] = fits_[bin] && totals_[i * kControllerBins + bin] <= allowed;
    }
  }

  void add_head(const BorderWindow& window,
                std::uint32_t layer,
                std::uint32_t head,
                const GrowthRun& run) {
    const HeadView view = cache_.view(request_.slot, layer, head, request_.length);
    const TierRule rule = cache_.rule(request_.slot, layer, head, request_.length, 1.0f);
    const HeadState& state = cache_.head_state(request_.slot, layer, head);
    histogram_ = BorderHistogram{};
    for (std::uint32_t tier = 0; tier < view.tier_count; ++tier) {
      const auto add = [&](float score, std::int32_t position, std::uint32_t) {
        if (rule.on_probation(position)) return;
        add_border(histogram_,
                   window,
                   static_cast<Tier>(tier),
                   rule.significance_at(score, position),
                   request_.length,
                   state.alpha_high,
                   state.alpha_low);
      };
      for_each_token(view, tier, view.frozen[tier], add);
    }
    const ControlledHead counts = {view.tokens[0], view.tokens[1]};
    add_head_cost(histogram_, counts, budget_.cost, budget_.physical, run, totals_);
  }

  const CacheState& cache_;
  const ControlRequest& request_;
  const ControlBudget& budget_;
  BorderHistogram histogram_;
  bool fits_[kControllerBins];
  std::uint64_t totals_[kMoments * kControllerBins];
};

// What the other holders of a sequence's shared pages answer for, in layers priced by tokens.
std::uint64_t bytes_of_others(const CacheState& cache,
                              const ControlRequest& request,
                              bool physical) {
  if (cache.page_holders == nullptr) return 0;
  std::uint64_t bytes = 0;
  const std::uint64_t first = cache.row(request.slot, 0, 0);
  const std::uint64_t rows = std::uint64_t{request.layers} * cache.group.kv_heads;
  for (std::uint64_t row = first; row < first + rows; ++row) {
    for (std::uint32_t t = 0; t < cache.group.layout.tier_count; ++t) {
      const TierLayout& tier = cache.group.layout.tier[t];
      const std::uint64_t page =
          physical ? cache.group.layout.page_bytes : std::uint64_t{tier.tokens} * tier.record_bytes;
      for (std::uint32_t p = 0; p < cache.head_states[row].shared_pages[t]; ++p) {
        const PageId id = cache.table.row(row).page(t, p);
        bytes += page - ceil_div(page, std::uint64_t{cache.page_holders[id.value]});
      }
    }
  }
  return bytes;
}

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
  budget.others_bytes = bytes_of_others(cache, request, budget.physical);
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

float find_factor_ahead(const CacheState& cache, ControlRequest& request) {
  float factor = find_factor(cache, request);
  while (factor >= kDropAll && request.last_growth > request.first_growth) {
    request.last_growth = request.first_growth + (request.last_growth - request.first_growth) / 2;
    factor = find_factor(cache, request);
  }
  return factor;
}

bool controller_due(const CacheState& cache, std::int32_t slot, std::uint32_t rows) {
  const Slot& s = cache.slots[slot];
  if (!s.policy.has_controller()) return false;
  const std::int32_t last = s.tokens + static_cast<std::int32_t>(rows) - 1;
  if (last - s.controlled_at >= static_cast<std::int32_t>(s.policy.cadence)) return true;
  if (s.factor >= kDropAll) return false;
  const std::int32_t now = s.shape.outside(s.tokens);
  const auto first_growth = static_cast<std::uint32_t>(s.shape.outside(s.tokens + 1) - now);
  const auto last_growth = static_cast<std::uint32_t>(s.shape.outside(last + 1) - now);
  const ControlRequest next = {slot, cache.group.layers, s.tokens, first_growth, last_growth};
  return !within_budget(cache, next, [&](std::uint32_t layer, std::uint32_t head) {
    const HeadState& state = cache.head_state(slot, layer, head);
    RetierCounts counts;
    counts.tokens[0] = state.tokens[0];
    counts.tokens[1] = state.tokens[1];
    return counts;
  });
}

}  // namespace quire
