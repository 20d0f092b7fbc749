// The tokens of one head as places, and what a plan does to them: dense tiers, holes filled by the
// last token, victims re-encoded. Frozen tokens stay as they are. The page row must have all pages
// before; emptied pages are returned by the caller after.
#pragma once

#include <cstdint>

#include "quire/core/config.hpp"
#include "quire/core/plan.hpp"
#include "quire/pages/head_view.hpp"
#include "quire/pages/records.hpp"

namespace quire {

struct RetierCounts {
  std::uint32_t tokens[kMaxTiers] = {};  // after
  std::uint32_t demoted = 0;
  std::uint32_t dropped = 0;
};

QUIRE_HD inline TokenPlace place_of(const HeadView& view, std::uint32_t tier, std::uint32_t index) {
  const TierLayout& layout = view.tiers[tier];
  const PageId page = view.row.page(tier, index / layout.tokens);
  return {&layout, view.space.address(page, view.head), index % layout.tokens};
}

QUIRE_HD inline TokenPlace ring_place(const HeadView& view, std::int32_t position) {
  return {&view.ring->tokens, view.ring_block, view.shape.slot(position)};
}

// Calls f(score, position, index) for the tokens of a tier from `first` on, page by page.
template <class VisitT>
QUIRE_HD inline void for_each_token(const HeadView& view,
                                    std::uint32_t tier,
                                    std::uint32_t first,
                                    VisitT&& f) {
  const TierLayout& layout = view.tiers[tier];
  const std::uint32_t count = view.tokens[tier];
  for (std::uint32_t i = first; i < count;) {
    TokenPlace place = place_of(view, tier, i);
    const std::uint32_t left = layout.tokens - place.token;
    const std::uint32_t end = count - i < left ? count : i + left;
    for (; i < end; ++i, ++place.token) f(place.score(), place.position(), i);
  }
}

// What retier() would leave, without moving anything. tier_of(score, position, now) never promotes.
template <class TierOfT>
QUIRE_HD inline RetierCounts count_retier(const HeadView& view, TierOfT&& tier_of) {
  RetierCounts counts;
  counts.tokens[0] = view.tokens[0];
  counts.tokens[1] = view.tokens[1];
  for (std::uint32_t tier = 0; tier < view.tier_count; ++tier) {
    const auto now = static_cast<Tier>(tier);
    const auto visit = [&](float score, std::int32_t position, std::uint32_t) {
      const Tier to = tier_of(score, position, now);
      if (to == now || to == Tier::kKeep) return;
      --counts.tokens[tier];
      if (to == Tier::kLow) {
        ++counts.tokens[1];
        ++counts.demoted;
      } else {
        ++counts.dropped;
      }
    };
    for_each_token(view, tier, view.frozen[tier], visit);
  }
  return counts;
}

// Takes token `index` out of a tier of `count` tokens; the last token fills the hole.
QUIRE_HD inline void fill_hole(const HeadView& view,
                               std::uint32_t tier,
                               std::uint32_t index,
                               std::uint32_t& count,
                               CodecEvents& events) {
  --count;
  if (index < count) move_record(place_of(view, tier, count), place_of(view, tier, index), events);
}

// Carries out tier_of on every token: drops of the low tier first, so that demoted tokens find room
// within the pages of the final count.
template <class TierOfT>
QUIRE_HD inline RetierCounts retier(const HeadView& view, TierOfT&& tier_of, CodecEvents& events) {
  RetierCounts counts;
  std::uint32_t high = view.tokens[0];
  std::uint32_t low = view.tokens[1];
  for (std::uint32_t i = view.frozen[1]; i < low;) {
    const TokenPlace place = place_of(view, 1, i);
    if (tier_of(place.score(), place.position(), Tier::kLow) != Tier::kDropped) {
      ++i;
      continue;
    }
    ++counts.dropped;
    fill_hole(view, 1, i, low, events);
  }
  for (std::uint32_t i = view.frozen[0]; i < high;) {
    const TokenPlace place = place_of(view, 0, i);
    const Tier to = tier_of(place.score(), place.position(), Tier::kHigh);
    if (to == Tier::kHigh || to == Tier::kKeep) {
      ++i;
      continue;
    }
    if (to == Tier::kLow) {
      move_record(place, place_of(view, 1, low++), events);
      ++counts.demoted;
    } else {
      ++counts.dropped;
    }
    fill_hole(view, 0, i, high, events);
  }
  counts.tokens[0] = high;
  counts.tokens[1] = low;
  return counts;
}

// Carries out the victims of a step's plan: what retier() does for at most one token of each tier,
// with the same result, but without a look at the others.
QUIRE_HD inline RetierCounts move_victims(const HeadView& view,
                                          const HeadPlan& plan,
                                          CodecEvents& events) {
  RetierCounts counts;
  counts.tokens[0] = view.tokens[0];
  counts.tokens[1] = view.tokens[1];
  if (plan.low_victim_dropped != 0) {
    fill_hole(view, 1, static_cast<std::uint32_t>(plan.low_victim), counts.tokens[1], events);
    ++counts.dropped;
  }
  if (plan.high_victim_to == Tier::kKeep) return counts;
  const auto victim = static_cast<std::uint32_t>(plan.high_victim);
  if (plan.high_victim_to == Tier::kLow) {
    move_record(place_of(view, 0, victim), place_of(view, 1, counts.tokens[1]++), events);
    ++counts.demoted;
  } else {
    ++counts.dropped;
  }
  fill_hole(view, 0, victim, counts.tokens[0], events);
  return counts;
}

}  // namespace quire
