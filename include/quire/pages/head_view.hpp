// What attention reads of one (sequence, layer, KV head): the ring and the pages of every tier, as
// one list of segments.
#pragma once

#include <cstdint>

#include "quire/codec/page_layout.hpp"
#include "quire/codec/transform.hpp"
#include "quire/core/config.hpp"
#include "quire/core/drafts.hpp"
#include "quire/core/types.hpp"
#include "quire/pages/page_table.hpp"
#include "quire/pages/ring.hpp"

namespace quire {

// Tokens that lie together: a run of ring slots, or a page. The unit of splitting.
struct Segment {
  const TierLayout* layout = nullptr;
  std::uint8_t* base = nullptr;
  std::uint32_t first = 0;  // first token within the page or block
  std::uint32_t count = 0;
  std::int32_t implied_position = -1;  // of the first token where positions are not stored
  std::uint32_t tier = 0;              // 0 high, 1 low, kRingTier
  std::uint32_t first_index = 0;       // of the first token within its tier

  QUIRE_HD std::int32_t position(std::uint32_t i) const {
    if (implied_position >= 0) return implied_position + static_cast<std::int32_t>(i);
    return position_array(*layout, base)[first + i];
  }
};

inline constexpr std::uint32_t kRingTier = kMaxTiers;

struct HeadView {
  const TierLayout* tiers = nullptr;
  std::uint32_t tier_count = 0;
  std::uint32_t tokens[kMaxTiers] = {};
  std::uint32_t frozen[kMaxTiers] = {};  // first tokens of each tier, in pages that others hold too
  PageRow row;
  PageSpace space;
  HeadId head;
  const RingLayout* ring = nullptr;  // nullptr: no ring
  std::uint8_t* ring_block = nullptr;
  RingShape shape;
  std::int32_t length = 0;  // tokens of the sequence
  // In a step, rows 1 to `drafts` lie in the ring behind the new token, at position length - 1.
  std::uint32_t drafts = 0;
  const DraftTree* tree = nullptr;  // nullptr: each follows the one before
  HeadTransform k;
  HeadTransform v;

  QUIRE_HD std::uint32_t ring_runs() const {
    RingRun runs[kMaxRingRuns];
    return ring == nullptr ? 0 : shape.runs(length, drafts, runs);
  }

  QUIRE_HD std::uint32_t pages(std::uint32_t tier) const {
    return tier < tier_count ? ceil_div(tokens[tier], tiers[tier].tokens) : 0;
  }

  QUIRE_HD std::uint32_t segment_count() const { return ring_runs() + pages(0) + pages(1); }

  // Segment i in the order ring, high, low.
  QUIRE_HD Segment segment(std::uint32_t i) const {
    RingRun runs[kMaxRingRuns];
    const std::uint32_t run_count = ring == nullptr ? 0 : shape.runs(length, drafts, runs);
    Segment s;
    if (i < run_count) {
      s.layout = &ring->tokens;
      s.base = ring_block;
      s.first = runs[i].first_slot;
      s.count = runs[i].count;
      s.implied_position = runs[i].first_position;
      s.tier = kRingTier;
      s.first_index = runs[i].first_slot;
      return s;
    }
    i -= run_count;
    s.tier = i < pages(0) ? 0 : 1;
    const std::uint32_t index = s.tier == 0 ? i : i - pages(0);
    s.layout = &tiers[s.tier];
    s.base = space.address(row.page(s.tier, index), head);
    s.first_index = index * s.layout->tokens;
    const std::uint32_t left = tokens[s.tier] - s.first_index;
    s.count = left < s.layout->tokens ? left : s.layout->tokens;
    if (!s.layout->fields.position) {
      s.implied_position = static_cast<std::int32_t>(shape.sinks + s.first_index);
    }
    return s;
  }

  // Whether a query row may see what the ring holds at a position: tokens, and drafts before
  // it.
  QUIRE_HD bool row_sees(std::uint32_t query_row, std::int32_t stored) const {
    if (tree == nullptr || stored < length) return true;
    return tree->visible(query_row, static_cast<std::uint32_t>(stored - length + 1));
  }

  // Drafts lie in the order of their rows; branches of a tree share positions.
  QUIRE_HD std::int32_t true_position(std::int32_t stored) const {
    if (tree == nullptr || stored < length) return stored;
    return length - 1 + tree->depth(static_cast<std::uint32_t>(stored - length + 1));
  }

  // Codes, scores and tiers of shared pages do not change.
  QUIRE_HD bool is_frozen(const Segment& s) const {
    return s.tier != kRingTier && s.first_index < frozen[s.tier];
  }

  // Bytes that attention must read of it: codes and metadata, no padding, score or position.
  QUIRE_HD std::uint64_t read_bytes() const {
    std::uint64_t bytes = 0;
    for (std::uint32_t i = 0; i < segment_count(); ++i) {
      const Segment s = segment(i);
      bytes += std::uint64_t{s.count} * (s.layout->record_bytes - s.layout->fields.bytes());
    }
    return bytes;
  }
};

}  // namespace quire
