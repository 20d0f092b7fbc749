// Page layouts a second time, from the words at the top of page_layout.hpp and design section 5:
// segments placed one by one, a search over all pages with exact fractions.
#pragma once

#include <cstdint>
#include <vector>

#include "quire/codec/page_layout.hpp"
#include "support/codec_rows.hpp"
#include "support/gen.hpp"

namespace quire::test {

inline std::uint32_t plane_bits(const VectorFormat& f, std::uint32_t plane) {
  if (f.bits == 6) return plane == 0 ? 4 : 2;
  if (f.bits == 3) return plane == 0 ? 2 : 1;
  return plane == 0 ? f.bits : 0;
}

inline std::uint32_t numbers_per_token(const VectorFormat& f, std::uint32_t dim) {
  if (f.bits == 16) return 0;
  return (f.group == 0 ? 1 : dim / f.group) * (f.grid == Grid::kAffine ? 2 : 1);
}

struct Segment {
  std::uint64_t offset;
  std::uint64_t bytes;
  std::uint32_t align;
};

enum SegmentName {
  kKPlane0,
  kKPlane1,
  kVPlane0,
  kVPlane1,
  kKMeta,
  kVMeta,
  kScore,
  kPosition,
  kBias
};

// The nine segments of a tier in page order; empty ones have 0 bytes.
inline std::vector<Segment> segments_of(const Format& format,
                                        std::uint32_t dim_k,
                                        std::uint32_t dim_v,
                                        const TokenFields& fields,
                                        std::uint64_t tokens) {
  const std::uint64_t per_token[] = {dim_k * plane_bits(format.k, 0) / 8,
                                     dim_k * plane_bits(format.k, 1) / 8,
                                     dim_v * plane_bits(format.v, 0) / 8,
                                     dim_v * plane_bits(format.v, 1) / 8,
                                     2 * numbers_per_token(format.k, dim_k),
                                     2 * numbers_per_token(format.v, dim_v),
                                     fields.score ? 4u : 0u,
                                     fields.position ? 4u : 0u,
                                     fields.bias ? 2u : 0u};
  std::vector<Segment> segments;
  std::uint64_t end = 0;
  for (std::uint32_t s = 0; s <= kBias; ++s) {
    const std::uint32_t align = s <= kVPlane1 ? 128 : 64;
    while (per_token[s] > 0 && end % align != 0) ++end;
    segments.push_back({end, per_token[s] * tokens, align});
    end += per_token[s] * tokens;
  }
  return segments;
}

inline std::uint64_t bytes_for(const PageLayoutSpec& spec,
                               std::uint32_t tier,
                               std::uint64_t tokens) {
  const Segment last =
      segments_of(spec.tier[tier], spec.head_dim_k, spec.head_dim_v, spec.fields, tokens).back();
  return last.offset + last.bytes;
}

inline std::uint64_t record_of(const PageLayoutSpec& spec, std::uint32_t tier) {
  std::uint64_t bytes = 0;
  for (const Segment& s :
       segments_of(spec.tier[tier], spec.head_dim_k, spec.head_dim_v, spec.fields, 16)) {
    bytes += s.bytes / 16;
  }
  return bytes;
}

// Multiples of 16 up to 128 that fit, 0 if none.
inline std::uint64_t tokens_in(const PageLayoutSpec& spec, std::uint32_t tier, std::uint64_t page) {
  std::uint64_t best = 0;
  for (std::uint64_t tokens = 16; tokens <= 128; tokens += 16) {
    if (bytes_for(spec, tier, tokens) <= page) best = tokens;
  }
  return best;
}

// An exact fraction, for comparisons without rounding.
struct Fraction {
  __extension__ typedef __int128 Wide;
  std::int64_t top = 0;
  std::int64_t bottom = 1;

  friend int compare(const Fraction& a, const Fraction& b) {
    const Wide left = static_cast<Wide>(a.top) * b.bottom;
    const Wide right = static_cast<Wide>(b.top) * a.bottom;
    return left < right ? -1 : (left > right ? 1 : 0);
  }
};

// What the search minimises for one page size: (first, second), then the larger page.
struct PageCost {
  Fraction first;
  Fraction second;
};

inline PageCost page_cost(const PageLayoutSpec& spec, std::uint64_t page) {
  const auto size = static_cast<std::int64_t>(page);
  Fraction unused[kMaxTiers];
  std::uint32_t cheapest = 0;
  std::int64_t tokens[kMaxTiers] = {1, 1};
  for (std::uint32_t t = 0; t < spec.tier_count; ++t) {
    tokens[t] = static_cast<std::int64_t>(tokens_in(spec, t, page));
    unused[t] = {size - tokens[t] * static_cast<std::int64_t>(record_of(spec, t)), size};
    if (record_of(spec, t) < record_of(spec, cheapest)) cheapest = t;
  }
  if (spec.expected_tokens > 0) {
    // Every tier holds an equal share in full pages, and one half-filled page:
    // sum over tiers of (expected / tiers / tokens + 1 / 2) * page.
    const std::int64_t tiers = spec.tier_count;
    const std::int64_t both = tiers == 1 ? tokens[0] : tokens[0] * tokens[1];
    const std::int64_t pages = tiers == 1 ? 1 : tokens[0] + tokens[1];
    const std::int64_t expected = spec.expected_tokens;
    return {{size * (2 * expected * pages + tiers * tiers * both), 2 * tiers * both}, {}};
  }
  Fraction worst = unused[0];
  if (spec.tier_count == 2 && compare(unused[1], worst) > 0) worst = unused[1];
  return {unused[cheapest], worst};
}

// The page size that the rule asks for: of the multiples of 512 up to 16 KiB in which every tier
// fits 16 tokens the cheapest one; the smallest larger multiple when there is none.
inline std::uint64_t search_page(const PageLayoutSpec& spec) {
  const auto fits = [&](std::uint64_t page) {
    for (std::uint32_t t = 0; t < spec.tier_count; ++t) {
      if (bytes_for(spec, t, 16) > page) return false;
    }
    return true;
  };
  std::uint64_t best = 0;
  for (std::uint64_t page = 512; page <= 16384; page += 512) {
    if (!fits(page)) continue;
    if (best != 0) {
      const PageCost mine = page_cost(spec, page);
      const PageCost theirs = page_cost(spec, best);
      const int first = compare(mine.first, theirs.first);
      if (first > 0 || (first == 0 && compare(mine.second, theirs.second) > 0)) continue;
    }
    best = page;
  }
  for (std::uint64_t page = 16896; best == 0; page += 512) best = fits(page) ? page : 0;
  return best;
}

// A legal question: formats that exist for the head dims, equal transforms in both tiers.
inline PageLayoutSpec random_spec(Rng& rng) {
  PageLayoutSpec spec;
  spec.head_dim_k = 16 * (1 + rng.below(16));
  spec.head_dim_v = rng.below(2) == 0 ? spec.head_dim_k : 16 * (1 + rng.below(16));
  spec.tier_count = 1 + rng.below(2);
  const std::vector<VectorFormat> k = formats_of(spec.head_dim_k);
  const std::vector<VectorFormat> v = formats_of(spec.head_dim_v);
  const std::uint32_t k_transform = rng.below(4);
  const std::uint32_t v_transform = rng.below(4);
  for (std::uint32_t t = 0; t < spec.tier_count; ++t) {
    spec.tier[t] = {k[rng.below(static_cast<std::uint32_t>(k.size()))],
                    v[rng.below(static_cast<std::uint32_t>(v.size()))]};
    spec.tier[t].k.transform = k_transform;
    spec.tier[t].v.transform = v_transform;
  }
  spec.fields = {rng.below(4) != 0, rng.below(4) != 0, rng.below(4) == 0};
  return spec;
}

// (affine k bits, affine v bits) with groups of the whole head: DiffKV's tiers.
inline Format affine_format(std::uint32_t k_bits, std::uint32_t v_bits) {
  return {{Grid::kAffine, k_bits, 0, 0}, {Grid::kAffine, v_bits, 0, 0}};
}

inline PageLayoutSpec diffkv_spec(std::uint32_t dim) {
  PageLayoutSpec spec;
  spec.tier[0] = affine_format(8, 4);
  spec.tier[1] = affine_format(4, 2);
  spec.tier_count = 2;
  spec.head_dim_k = dim;
  spec.head_dim_v = dim;
  return spec;
}

}  // namespace quire::test
