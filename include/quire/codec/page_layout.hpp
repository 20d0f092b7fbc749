// Where every byte of a page lies: the only source of offsets, strides and sizes.
//
//   [K plane 0][K plane 1][V plane 0][V plane 1] [K meta][V meta][score][position][bias]
//    code segments, 128-byte aligned              metadata segments, 64-byte aligned
//
// Inside a code segment token t's row is at t * row bytes. Inside a metadata segment fp16 number m
// (scale or zero of a group) of token t is at 2 * (m * tokens + t): each number of all tokens lies
// together, out of the element loop. A page holds one tier of one (sequence, layer, KV head).
#pragma once

#include <cstdint>

#include "quire/codec/format.hpp"
#include "quire/codec/vector_codec.hpp"
#include "quire/core/config.hpp"
#include "quire/core/status.hpp"
#include "quire/core/types.hpp"

namespace quire {

inline constexpr std::uint32_t kCodeAlign = 128;
inline constexpr std::uint32_t kMetaAlign = 64;
inline constexpr std::uint32_t kPageStep = 512;
inline constexpr std::uint32_t kMaxPageBytes =
    16384;  // of the search; asked-for pages may be larger
inline constexpr std::uint32_t kMaxGivenPageBytes = 1u << 20;
inline constexpr std::uint32_t kTokenStep = 16;
inline constexpr std::uint32_t kMaxTokensPerPage = 128;

// Fields a token has beside its codes. All on is the default.
struct TokenFields {
  bool score = true;     // fp32, what the policy collected
  bool position = true;  // int32, true index in the text
  bool bias = false;     // fp16, added to the logit; reserved for merges, gates and masks

  QUIRE_HD constexpr std::uint32_t bytes() const {
    return (score ? 4u : 0u) + (position ? 4u : 0u) + (bias ? 2u : 0u);
  }
};

// Offsets of the segments of one tier (or of a recent ring, which is laid out the same way).
struct TierLayout {
  Format format;
  std::uint32_t head_dim_k = 0;
  std::uint32_t head_dim_v = 0;
  TokenFields fields;
  std::uint32_t tokens = 0;        // per page
  std::uint32_t record_bytes = 0;  // of one token, no padding
  std::uint32_t k_plane[2] = {};
  std::uint32_t v_plane[2] = {};
  std::uint32_t k_meta = 0;
  std::uint32_t v_meta = 0;
  std::uint32_t score = 0;
  std::uint32_t position = 0;
  std::uint32_t bias = 0;
  std::uint64_t bytes = 0;  // end of the last segment
};

struct PageLayout {
  std::uint64_t page_bytes = 0;
  std::uint32_t tier_count = 0;
  TierLayout tier[kMaxTiers];

  // Share of a full page that is not records.
  double waste(std::uint32_t t) const {
    const double used = static_cast<double>(tier[t].tokens) * tier[t].record_bytes;
    return 1.0 - used / static_cast<double>(page_bytes);
  }
};

QUIRE_HD constexpr std::uint32_t record_bytes(const Format& format,
                                              std::uint32_t dim_k,
                                              std::uint32_t dim_v,
                                              const TokenFields& fields) {
  return vector_bytes(format.k, dim_k) + vector_bytes(format.v, dim_v) + fields.bytes();
}

namespace detail {

// Appends a segment and returns its offset.
QUIRE_HD constexpr std::uint32_t place(std::uint64_t& end,
                                       std::uint64_t bytes,
                                       std::uint32_t align) {
  if (bytes == 0) return static_cast<std::uint32_t>(end);
  const std::uint64_t start = round_up(end, static_cast<std::uint64_t>(align));
  end = start + bytes;
  return static_cast<std::uint32_t>(start);
}

}  // namespace detail

// Where segments of a page begin, so that vector loads and atomics need not care.
struct SegmentAlign {
  std::uint32_t code = kCodeAlign;
  std::uint32_t meta = kMetaAlign;
};

// The segments for a given number of tokens.
QUIRE_HD constexpr TierLayout tier_layout(const Format& format,
                                          std::uint32_t dim_k,
                                          std::uint32_t dim_v,
                                          const TokenFields& fields,
                                          std::uint32_t tokens,
                                          const SegmentAlign& align = {}) {
  TierLayout layout;
  layout.format = format;
  layout.head_dim_k = dim_k;
  layout.head_dim_v = dim_v;
  layout.fields = fields;
  layout.tokens = tokens;
  layout.record_bytes = record_bytes(format, dim_k, dim_v, fields);
  const std::uint64_t n = tokens;
  std::uint64_t end = 0;
  for (std::uint32_t p = 0; p < 2; ++p) {
    layout.k_plane[p] = detail::place(end, n * plane_bytes(format.k, dim_k, p), align.code);
  }
  for (std::uint32_t p = 0; p < 2; ++p) {
    layout.v_plane[p] = detail::place(end, n * plane_bytes(format.v, dim_v, p), align.code);
  }
  layout.k_meta = detail::place(end, n * 2 * meta_count(format.k, dim_k), align.meta);
  layout.v_meta = detail::place(end, n * 2 * meta_count(format.v, dim_v), align.meta);
  layout.score = detail::place(end, fields.score ? n * 4 : 0, align.meta);
  layout.position = detail::place(end, fields.position ? n * 4 : 0, align.meta);
  layout.bias = detail::place(end, fields.bias ? n * 2 : 0, align.meta);
  layout.bytes = end;
  return layout;
}

// The layout of the largest multiple of 16 tokens that fits into page_bytes; tokens = 0 if none.
QUIRE_HD constexpr TierLayout fit_tier(const Format& format,
                                       std::uint32_t dim_k,
                                       std::uint32_t dim_v,
                                       const TokenFields& fields,
                                       std::uint64_t page_bytes) {
  std::uint32_t tokens = kMaxTokensPerPage;
  TierLayout layout = tier_layout(format, dim_k, dim_v, fields, tokens);
  while (tokens > 0 && layout.bytes > page_bytes) {
    tokens -= kTokenStep;
    layout = tier_layout(format, dim_k, dim_v, fields, tokens);
  }
  return layout;
}

// The question that page_layout() answers.
struct PageLayoutSpec {
  Format tier[kMaxTiers];
  std::uint32_t tier_count = 1;
  std::uint32_t head_dim_k = 0;
  std::uint32_t head_dim_v = 0;
  TokenFields fields;
  std::uint64_t page_bytes = 0;       // 0: search
  std::uint32_t expected_tokens = 0;  // 0: long; else the search also counts half-filled last pages
};

namespace detail {

inline PageLayout layout_for(const PageLayoutSpec& spec, std::uint64_t page_bytes) {
  PageLayout layout;
  layout.page_bytes = page_bytes;
  layout.tier_count = spec.tier_count;
  for (std::uint32_t t = 0; t < spec.tier_count; ++t) {
    layout.tier[t] =
        fit_tier(spec.tier[t], spec.head_dim_k, spec.head_dim_v, spec.fields, page_bytes);
  }
  return layout;
}

inline bool fits(const PageLayout& layout) {
  for (std::uint32_t t = 0; t < layout.tier_count; ++t) {
    if (layout.tier[t].tokens == 0) return false;
  }
  return true;
}

inline std::uint32_t cheapest_tier(const PageLayout& layout) {
  std::uint32_t best = 0;
  for (std::uint32_t t = 1; t < layout.tier_count; ++t) {
    if (layout.tier[t].record_bytes < layout.tier[best].record_bytes) best = t;
  }
  return best;
}

inline double worst_waste(const PageLayout& layout) {
  double worst = 0.0;
  for (std::uint32_t t = 0; t < layout.tier_count; ++t) {
    worst = layout.waste(t) > worst ? layout.waste(t) : worst;
  }
  return worst;
}

// Expected bytes per head when every tier has one half-filled page and holds an equal share of the
// expected tokens: short contexts want small pages, long ones want little padding.
inline double expected_bytes(const PageLayout& layout, std::uint32_t expected_tokens) {
  const double share = static_cast<double>(expected_tokens) / layout.tier_count;
  double bytes = 0.0;
  for (std::uint32_t t = 0; t < layout.tier_count; ++t) {
    bytes += (share / layout.tier[t].tokens + 0.5) * static_cast<double>(layout.page_bytes);
  }
  return bytes;
}

// Strictly better for the search; `other` is a larger page, which wins ties.
inline bool better(const PageLayout& layout,
                   const PageLayout& other,
                   std::uint32_t expected_tokens) {
  if (expected_tokens > 0) {
    return expected_bytes(layout, expected_tokens) < expected_bytes(other, expected_tokens);
  }
  const double mine = layout.waste(cheapest_tier(layout));
  const double theirs = other.waste(cheapest_tier(other));
  if (mine != theirs) return mine < theirs;
  return worst_waste(layout) < worst_waste(other);
}

}  // namespace detail

// Checks the question, then searches multiples of 512 bytes up to 16 KiB: least waste of the
// cheapest tier, then least worst waste, then the larger page (or, with expected_tokens, the least
// expected bytes). A given page size is used as it is, if every tier fits 16 tokens.
inline Expected<PageLayout> page_layout(const PageLayoutSpec& spec) {
  if (!valid_head_dim(spec.head_dim_k)) {
    return invalid("head_dim_k", "a multiple of 16 from 16 to 256", 0, spec.head_dim_k);
  }
  if (!valid_head_dim(spec.head_dim_v)) {
    return invalid("head_dim_v", "a multiple of 16 from 16 to 256", 0, spec.head_dim_v);
  }
  if (spec.tier_count < 1 || spec.tier_count > kMaxTiers) {
    return invalid("tier_count", "1 or 2", kMaxTiers, spec.tier_count);
  }
  for (std::uint32_t t = 0; t < spec.tier_count; ++t) {
    QUIRE_TRY(check_format(spec.tier[t].k, spec.head_dim_k));
    QUIRE_TRY(check_format(spec.tier[t].v, spec.head_dim_v));
    const bool k_differs = spec.tier[t].k.transform != spec.tier[0].k.transform;
    if (k_differs || spec.tier[t].v.transform != spec.tier[0].v.transform) {
      return invalid("transform",
                     "the same for all tiers of a KV head",
                     k_differs ? spec.tier[0].k.transform : spec.tier[0].v.transform,
                     k_differs ? spec.tier[t].k.transform : spec.tier[t].v.transform);
    }
  }
  if (spec.page_bytes != 0) {
    if (spec.page_bytes % kMetaAlign != 0 || spec.page_bytes > kMaxGivenPageBytes) {
      return invalid(
          "page_bytes", "0, or a multiple of 64 up to 1 MiB", kMetaAlign, spec.page_bytes);
    }
    const PageLayout layout = detail::layout_for(spec, spec.page_bytes);
    if (!detail::fits(layout)) {
      std::uint64_t needed = 0;
      for (std::uint32_t t = 0; t < spec.tier_count; ++t) {
        const auto least =
            tier_layout(spec.tier[t], spec.head_dim_k, spec.head_dim_v, spec.fields, kTokenStep);
        needed = least.bytes > needed ? least.bytes : needed;
      }
      needed = round_up(needed, std::uint64_t{kMetaAlign});
      return invalid("page_bytes", "room for 16 tokens of every tier", needed, spec.page_bytes);
    }
    return layout;
  }
  PageLayout best;
  for (std::uint64_t bytes = kMaxPageBytes; bytes >= kPageStep; bytes -= kPageStep) {
    const PageLayout layout = detail::layout_for(spec, bytes);
    if (!detail::fits(layout)) continue;
    if (best.page_bytes == 0 || detail::better(layout, best, spec.expected_tokens)) best = layout;
  }
  if (best.page_bytes != 0) return best;
  // f16 at D = 256 with 16 tokens is 16.5 KiB: the smallest page that fits, as a multiple of 512.
  std::uint64_t least = 0;
  for (std::uint32_t t = 0; t < spec.tier_count; ++t) {
    const std::uint64_t bytes =
        tier_layout(spec.tier[t], spec.head_dim_k, spec.head_dim_v, spec.fields, kTokenStep).bytes;
    least = bytes > least ? bytes : least;
  }
  return detail::layout_for(spec, round_up(least, static_cast<std::uint64_t>(kPageStep)));
}

// Where K and V of token t lie in a page (or ring block) that starts at `base`.
QUIRE_HD inline VectorSlot k_slot(const TierLayout& layout,
                                  std::uint8_t* base,
                                  std::uint32_t token) {
  const Format& f = layout.format;
  return {
      {{base + layout.k_plane[0] + std::uint64_t{token} * plane_bytes(f.k, layout.head_dim_k, 0),
        base + layout.k_plane[1] + std::uint64_t{token} * plane_bytes(f.k, layout.head_dim_k, 1)}},
      reinterpret_cast<std::uint16_t*>(base + layout.k_meta) + token,
      layout.tokens};
}

QUIRE_HD inline VectorSlot v_slot(const TierLayout& layout,
                                  std::uint8_t* base,
                                  std::uint32_t token) {
  const Format& f = layout.format;
  return {
      {{base + layout.v_plane[0] + std::uint64_t{token} * plane_bytes(f.v, layout.head_dim_v, 0),
        base + layout.v_plane[1] + std::uint64_t{token} * plane_bytes(f.v, layout.head_dim_v, 1)}},
      reinterpret_cast<std::uint16_t*>(base + layout.v_meta) + token,
      layout.tokens};
}

QUIRE_HD inline float* score_array(const TierLayout& layout, std::uint8_t* base) {
  return reinterpret_cast<float*>(base + layout.score);
}

QUIRE_HD inline std::int32_t* position_array(const TierLayout& layout, std::uint8_t* base) {
  return reinterpret_cast<std::int32_t*>(base + layout.position);
}

QUIRE_HD inline const float* score_array(const TierLayout& layout, const std::uint8_t* base) {
  return reinterpret_cast<const float*>(base + layout.score);
}

QUIRE_HD inline const std::int32_t* position_array(const TierLayout& layout,
                                                   const std::uint8_t* base) {
  return reinterpret_cast<const std::int32_t*>(base + layout.position);
}

}  // namespace quire
