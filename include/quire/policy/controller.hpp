// One global factor on the thresholds so that a sequence meets a byte budget or target.
//
// Every token has two borders: the factor above which it is not high any more, and the one above
// which it is dropped. The controller keeps histograms of both per head, prices every candidate
// factor with whole pages of every head, and takes the smallest factor that fits. Two levels of
// 256 bins resolve the factor to 2^-10 relative. All integers and comparisons, so equal on every
// backend (docs/policies.md).
#pragma once

#include <cstdint>

#include "quire/core/dtype.hpp"
#include "quire/core/plan.hpp"
#include "quire/policy/policy.hpp"
#include "quire/policy/tiers.hpp"

namespace quire {

inline constexpr std::uint32_t kControllerBins = 256;

// Which float bits the bins mean. Level 1: four bins per octave from 2^-40 to 2^24.
struct BorderWindow {
  std::uint32_t shift = 21;
  std::uint32_t origin = (127 - 40) * 4;

  // 0: below the window; 1 + bin inside; the last bin takes everything above, too.
  QUIRE_HD std::uint32_t slot(float border) const {
    const std::uint32_t bits = border > 0.0f ? float_bits(border) >> shift : 0u;
    if (bits < origin) return 0;
    const std::uint32_t bin = bits - origin;
    return 1 + (bin < kControllerBins ? bin : kControllerBins - 1);
  }

  // The factor at the lower edge of a bin: borders in lower bins are below it.
  QUIRE_HD float edge(std::uint32_t bin) const { return bits_float((origin + bin) << shift); }

  // The 256 bins inside one bin.
  QUIRE_HD BorderWindow refine(std::uint32_t bin) const { return {shift - 8, (origin + bin) << 8}; }
};

// Counts of borders of one head.
struct BorderHistogram {
  std::uint32_t leaves_high[kControllerBins + 1];  // of tokens now high: not high any more
  std::uint32_t drops_high[kControllerBins + 1];   // of tokens now high: dropped
  std::uint32_t drops_low[kControllerBins + 1];    // of tokens now low: dropped
};

// What one head holds, next to its histogram.
struct ControlledHead {
  std::uint32_t high = 0;
  std::uint32_t low = 0;
};

// Adds a token to the histogram. `base` / alpha is the factor at which its significance meets the
// threshold of thresholds_at(). With alpha 0 it never does.
QUIRE_HD inline void add_border(BorderHistogram& histogram,
                                const BorderWindow& window,
                                Tier now,
                                float significance,
                                std::int32_t base,
                                float alpha_high,
                                float alpha_low) {
  constexpr float kNever = 3.0e38f;
  const float scaled = significance * static_cast<float>(base);
  const float drop_at = alpha_low > 0.0f ? scaled / alpha_low : kNever;
  if (now == Tier::kLow) {
    ++histogram.drops_low[window.slot(drop_at)];
    return;
  }
  ++histogram.leaves_high[window.slot(alpha_high > 0.0f ? scaled / alpha_high : kNever)];
  ++histogram.drops_high[window.slot(drop_at)];
}

// A run of lengths at which a sequence must fit: tokens that enter the high tier of every head from
// now on, first to first + count - 1.
struct GrowthRun {
  std::uint32_t first = 0;
  std::uint32_t count = 1;
};

// Prices one head at the lower edge of every bin: adds its bytes at every length of the run to
// total [count, kControllerBins].
inline void add_head_cost(const BorderHistogram& histogram,
                          const ControlledHead& head,
                          const ByteCost& cost,
                          bool physical,
                          const GrowthRun& growth,
                          std::uint64_t* total) {
  std::uint64_t left = 0;
  std::uint64_t dropped_high = 0;
  std::uint64_t dropped_low = 0;
  for (std::uint32_t bin = 0; bin < kControllerBins; ++bin) {
    left += histogram.leaves_high[bin];
    dropped_high += histogram.drops_high[bin];
    dropped_low += histogram.drops_low[bin];
    const std::uint64_t low = head.low - dropped_low + (left - dropped_high);
    std::uint64_t bytes = 0;
    std::uint64_t same_until = 0;  // pages change only when the last one is full
    for (std::uint32_t i = 0; i < growth.count; ++i) {
      if (i >= same_until) {
        const std::uint64_t high = head.high - left + growth.first + i;
        bytes = physical ? cost.head_bytes(high, low)
                         : cost.head_record_bytes(high, low) + cost.fixed_bytes;
        const std::uint64_t room = cost.pages(0, high) * cost.tokens_per_page[0] - high;
        same_until = physical ? i + room + 1 : i + 1;
      }
      total[std::uint64_t{i} * kControllerBins + bin] += bytes;
    }
  }
}

}  // namespace quire
