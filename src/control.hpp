// The byte controller of a sequence: the global factor on its thresholds.
#pragma once

#include "quire/pages/head_tokens.hpp"
#include "src/cache.hpp"

namespace quire {

// Heads of layers [0, layers) are priced by their tokens, the others by their ring alone.
struct ControlRequest {
  std::int32_t slot = 0;
  std::uint32_t layers = 0;
  std::int32_t length = 0;         // queries so far: what significance and thresholds are taken at
  std::uint32_t first_growth = 0;  // tokens that enter a head until the first and last moment ...
  std::uint32_t last_growth = 0;   // ... at which the budget must hold
};

// What a factor is first multiplied with when exact counts still exceed the budget (2^-8 up); the
// step is squared each time, so that the search ends soon whatever happens.
inline constexpr float kFactorStep = 1.00390625f;

// The smallest factor that keeps the sequence within its budget at every moment; 0 when nothing has
// to go, kDropAll when even the largest does not fit.
float find_factor(const CacheState& cache, const ControlRequest& request);

// The same; where even dropping all would not hold the budget until the last moment, for as long as
// it will: halves the time ahead and writes it back.
float find_factor_ahead(const CacheState& cache, ControlRequest& request);

// Whether the controller runs in the next step of a sequence, which may end up to `rows` tokens
// longer: its cadence would pass, or the budget be exceeded (and something is left to drop).
bool controller_due(const CacheState& cache, std::int32_t slot, std::uint32_t rows);

// True when the sequence stays within its budget at every moment between both, for exact counts.
// counts(layer, head) gives the tokens per tier of a head.
template <class CountsT>
bool within_budget(const CacheState& cache, const ControlRequest& request, CountsT&& counts);

// What a budget allows at a length, and how it is counted.
struct ControlBudget {
  ByteCost cost;
  bool physical = true;
  std::uint64_t rest_bytes = 0;    // of heads in layers that are not priced by tokens
  std::uint64_t others_bytes = 0;  // of shared pages: each of h holders answers for 1/h of a page

  static ControlBudget of(const CacheState& cache, const ControlRequest& request);
  std::uint64_t head_bytes(std::uint64_t high, std::uint64_t low) const {
    return physical ? cost.head_bytes(high, low)
                    : cost.head_record_bytes(high, low) + cost.fixed_bytes;
  }
};

std::uint64_t budget_at(const CacheState& cache,
                        const ControlRequest& request,
                        std::uint32_t growth);

template <class CountsT>
bool within_budget(const CacheState& cache, const ControlRequest& request, CountsT&& counts) {
  const ControlBudget budget = ControlBudget::of(cache, request);
  const std::uint32_t moments = request.last_growth - request.first_growth + 1;
  std::uint64_t total[kMaxCadence + 1];
  for (std::uint32_t i = 0; i < moments; ++i) total[i] = budget.rest_bytes;
  for (std::uint32_t layer = 0; layer < request.layers; ++layer) {
    for (std::uint32_t head = 0; head < cache.group.kv_heads; ++head) {
      const RetierCounts c = counts(layer, head);
      for (std::uint32_t i = 0; i < moments; ++i) {
        total[i] +=
            budget.head_bytes(std::uint64_t{c.tokens[0]} + request.first_growth + i, c.tokens[1]);
      }
    }
  }
  for (std::uint32_t i = 0; i < moments; ++i) {
    const std::uint64_t allowed = budget_at(cache, request, request.first_growth + i);
    if (total[i] > allowed + budget.others_bytes) return false;
  }
  return true;
}

}  // namespace quire
