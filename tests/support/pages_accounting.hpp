// What a cache costs, worked out from its description and from what quire_query lists, with
// formulas of its own: every byte that quire_seq_info and quire_stats report.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "support/pages_cache.hpp"

namespace quire::test {

struct VectorBytes {
  std::uint64_t plane[2] = {};  // codes of one token
  std::uint64_t numbers = 0;    // fp16 numbers of one token
  std::uint64_t offset = 0;     // bytes of the offset vector of a head

  std::uint64_t record() const { return plane[0] + plane[1] + 2 * numbers; }
};

// Codes of 6 and 3 bits lie in planes of 4 + 2 and 2 + 1; scale and zero, or scale alone.
inline VectorBytes vector_bytes_of(const quire_vector_format& f, std::uint64_t dim) {
  VectorBytes b;
  b.offset = (f.transform & QUIRE_TRANSFORM_OFFSET) != 0 ? 2 * dim : 0;
  if (f.grid == QUIRE_GRID_F16 || f.grid == QUIRE_GRID_BF16) {
    b.plane[0] = 2 * dim;
    return b;
  }
  const std::uint64_t second = f.bits == 6 ? 2 : (f.bits == 3 ? 1 : 0);
  b.plane[0] = dim * (f.bits - second) / 8;
  b.plane[1] = dim * second / 8;
  const std::uint64_t groups = f.group == 0 ? 1 : dim / f.group;
  b.numbers = groups * (f.grid == QUIRE_GRID_AFFINE ? 2 : 1);
  return b;
}

// Bytes of everything, per unit.
struct CostSheet {
  explicit CostSheet(const PoolSpec& spec) : heads(spec.heads()) {
    const quire_group_desc& g = spec.group;
    quire_layout layout = QUIRE_LAYOUT_INIT;
    REQUIRE(quire_layout_make(&g.layout, &layout) == QUIRE_OK);
    page_bytes = layout.page_bytes;
    tier_count = g.layout.tier_count;
    const std::uint64_t fields = ((g.layout.flags & QUIRE_LAYOUT_NO_SCORE) != 0 ? 0u : 4u) +
                                 ((g.layout.flags & QUIRE_LAYOUT_NO_POSITION) != 0 ? 0u : 4u);
    std::uint64_t row_pages = 2;
    for (std::uint32_t t = 0; t < tier_count; ++t) {
      per_page[t] = layout.tier[t].tokens;
      record[t] = vector_bytes_of(g.layout.tier[t].k, g.layout.head_dim_k).record() +
                  vector_bytes_of(g.layout.tier[t].v, g.layout.head_dim_v).record() + fields;
      row_pages += pages(t, spec.max_tokens) + 1;
    }
    row_pages = std::min(row_pages, spec.pages + 2);
    directory = (row_pages + 31) / 32;
    set_ring(g, fields);
    fp16_token = 2 * std::uint64_t{g.layout.head_dim_k + g.layout.head_dim_v};
  }

  std::uint64_t pages(std::uint32_t tier, std::uint64_t tokens) const {
    return (tokens + per_page[tier] - 1) / per_page[tier];
  }

  // Chunks of 32 page ids that a row of so many pages of each tier uses.
  std::uint64_t chunks(std::uint64_t high_pages, std::uint64_t low_pages) const {
    std::set<std::uint64_t> used;
    for (std::uint64_t i = 0; i < high_pages; ++i) used.insert(i / 32);
    for (std::uint64_t i = 0; i < low_pages; ++i) used.insert((32 * directory - 1 - i) / 32);
    return used.size();
  }

  std::uint64_t heads;
  std::uint32_t tier_count = 1;
  std::uint64_t page_bytes = 0;
  std::uint64_t per_page[QUIRE_MAX_TIERS] = {};
  std::uint64_t record[QUIRE_MAX_TIERS] = {};
  std::uint64_t directory = 0;     // chunks in a row
  std::uint64_t ring_block = 0;    // with the offset vectors
  std::uint64_t offset_bytes = 0;  // of a head
  std::uint64_t fp16_token = 0;    // of a head

 private:
  static quire_vector_format ring_vector(const quire_group_desc& g, quire_vector_format high) {
    if (g.ring_format == QUIRE_RING_HIGH) return high;
    if (g.ring_format == QUIRE_RING_K8V8) return {QUIRE_GRID_AFFINE, 8, 0, high.transform};
    return {QUIRE_GRID_F16, 16, 0, high.transform};
  }

  static std::uint64_t count_of(std::uint32_t field, std::uint64_t standard) {
    return field == QUIRE_NONE ? 0 : (field == 0 ? standard : field);
  }

  void set_ring(const quire_group_desc& g, std::uint64_t fields) {
    const std::uint64_t slots =
        count_of(g.sink_tokens, 1) + count_of(g.recent_window, 64) + g.max_draft;
    const VectorBytes k = vector_bytes_of(ring_vector(g, g.layout.tier[0].k), g.layout.head_dim_k);
    const VectorBytes v = vector_bytes_of(ring_vector(g, g.layout.tier[0].v), g.layout.head_dim_v);
    std::uint64_t end = 0;
    const auto add = [&](std::uint64_t bytes, std::uint64_t align) {
      if (bytes > 0) end = (end + align - 1) / align * align + bytes;
    };
    for (const VectorBytes& b : {k, v}) {
      for (const std::uint64_t plane : b.plane) add(slots * plane, 128);
    }
    add(slots * 2 * k.numbers, 64);
    add(slots * 2 * v.numbers, 64);
    for (std::uint64_t i = 0; i < fields / 4; ++i) add(slots * 4, 64);
    add(k.offset, 64);
    add(v.offset, 64);
    ring_block = (end + 63) / 64 * 64;
    offset_bytes = k.offset + v.offset;
  }
};

// What quire_query lists, added up over the heads of a sequence.
struct Contents {
  std::uint64_t tokens[QUIRE_MAX_TIERS] = {};
  std::uint64_t ring = 0;
  std::uint64_t pages = 0;
  std::uint64_t chunks = 0;
};

inline Contents contents_of(const PoolCache& box, const CostSheet& sheet, std::int32_t slot) {
  Contents all;
  std::vector<std::uint8_t> tiers(box.spec.max_tokens + 1u);
  for (std::uint32_t layer = 0; layer < box.spec.group.layers; ++layer) {
    for (std::uint32_t head = 0; head < box.spec.group.kv_heads; ++head) {
      std::uint32_t count = 0;
      quire_query_args args = QUIRE_QUERY_ARGS_INIT;
      args.slot = slot;
      args.layer = layer;
      args.head = head;
      args.capacity = static_cast<std::uint32_t>(tiers.size());
      args.tiers = tiers.data();
      args.count = &count;
      PoolCache::need(box.cache.query(args));
      std::uint64_t mine[QUIRE_MAX_TIERS] = {};
      for (std::uint32_t i = 0; i < count; ++i) {
        if (tiers[i] == 255) ++all.ring;
        if (tiers[i] != 255) ++mine[tiers[i]];
      }
      std::uint64_t pages[2] = {};
      for (std::uint32_t t = 0; t < sheet.tier_count; ++t) {
        all.tokens[t] += mine[t];
        pages[t] = sheet.pages(t, mine[t]);
      }
      all.pages += pages[0] + pages[1];
      all.chunks += sheet.chunks(pages[0], pages[1]);
    }
  }
  return all;
}

// Between steps: empty when quire_seq_info says what the formulas say.
inline std::string check_info(const PoolCache& box, const CostSheet& sheet, std::int32_t slot) {
  const Contents c = contents_of(box, sheet, slot);
  const quire_seq_info info = box.cache.info(slot);
  std::uint64_t records = 0;
  for (std::uint32_t t = 0; t < sheet.tier_count; ++t) records += c.tokens[t] * sheet.record[t];
  const std::uint64_t table = sheet.heads * (4 * sheet.directory + 64) + 128 * c.chunks;
  if (info.high_tokens != c.tokens[0] || info.low_tokens != c.tokens[1]) return "tokens of tiers";
  if (info.state != QUIRE_SEQ_PREFILL && info.ring_tokens != c.ring) return "tokens of the ring";
  if (info.live_pages != c.pages) return "live_pages";
  if (info.record_bytes != records) return "record_bytes";
  if (info.page_bytes != c.pages * sheet.page_bytes) return "page_bytes";
  if (info.ring_bytes != sheet.heads * (sheet.ring_block - sheet.offset_bytes)) return "ring_bytes";
  if (info.offset_bytes != sheet.heads * sheet.offset_bytes) return "offset_bytes";
  if (info.table_bytes != table) return "table_bytes";
  if (info.total_bytes != info.page_bytes + info.ring_bytes + info.offset_bytes + table)
    return "total_bytes";
  if (info.fp16_bytes != sheet.heads * sheet.fp16_token * info.tokens) return "fp16_bytes";
  return "";
}

// quire_stats against the sum over sequences.
inline std::string check_stats(const PoolCache& box,
                               const CostSheet& sheet,
                               const std::vector<std::int32_t>& open) {
  quire_seq_info sum = QUIRE_SEQ_INFO_INIT;
  for (const std::int32_t slot : open) {
    const quire_seq_info info = box.cache.info(slot);
    sum.live_pages += info.live_pages;
    sum.record_bytes += info.record_bytes;
    sum.ring_bytes += info.ring_bytes;
    sum.offset_bytes += info.offset_bytes;
    sum.table_bytes += info.table_bytes;
  }
  const quire_stats stats = box.cache.stats();
  if (stats.sequences != open.size()) return "stats: sequences";
  if (stats.pages != box.spec.pages) return "stats: pages";
  if (stats.live_pages != sum.live_pages) return "stats: live_pages";
  if (stats.promised_pages > stats.pages - stats.live_pages) return "stats: promised_pages";
  if (stats.record_bytes != sum.record_bytes) return "stats: record_bytes";
  if (stats.page_bytes != sum.live_pages * sheet.page_bytes) return "stats: page_bytes";
  if (stats.ring_bytes != sum.ring_bytes) return "stats: ring_bytes";
  if (stats.offset_bytes != sum.offset_bytes) return "stats: offset_bytes";
  if (stats.table_bytes != sum.table_bytes) return "stats: table_bytes";
  if (stats.free_bytes != (stats.pages - stats.live_pages) * sheet.page_bytes)
    return "stats: free_bytes";
  const double used = static_cast<double>(sum.record_bytes);
  const double held = static_cast<double>(stats.page_bytes);
  if (stats.fragmentation != (held > 0.0 ? 1.0 - used / held : 0.0)) return "stats: fragmentation";
  return "";
}

}  // namespace quire::test
