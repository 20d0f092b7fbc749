// Sequences that fork: a cache that allows it, and what a fork must leave alone.
#pragma once

#include <cstring>
#include <map>
#include <vector>

#include "support/pages_check.hpp"
#include "support/policy_reference.hpp"
#include "support/policy_rig.hpp"

namespace quire::test {

inline StreamShape fork_shape(std::uint32_t tokens) {
  StreamShape shape;
  shape.tokens = tokens;
  return shape;
}

inline RigSpec fork_spec(std::uint32_t recipe, std::uint32_t sequences) {
  RigSpec spec(recipe, fork_shape(0));
  spec.set_ring(1, 16);
  spec.sequences = sequences;
  spec.cache_flags = QUIRE_CACHE_SHARING;
  if (spec.policy.tail_queries > 32) spec.policy.tail_queries = 32;
  if (spec.policy.budget_tokens != 0) spec.policy.budget_tokens = 70;
  if (spec.policy.min_queries > 24) spec.policy.min_queries = 24;
  if (spec.policy.byte_target > 0.0) spec.policy.byte_target = 0.6;
  return spec;
}

inline std::int32_t fork(const Rig& rig, std::int32_t parent) {
  std::int32_t child = -1;
  const Result forked = rig.cache.fork(parent, &child);
  INFO(forked.text());
  REQUIRE(forked.ok());
  return child;
}

inline std::vector<std::uint8_t> exported(const Rig& rig, std::int32_t slot) {
  std::uint64_t bytes = 0;
  REQUIRE(rig.cache.export_bytes(slot, &bytes).ok());
  std::vector<std::uint8_t> frame(bytes, 0xcd);
  const Result done = rig.cache.export_frame(slot, frame.data(), bytes);
  INFO(done.text());
  REQUIRE(done.ok());
  return frame;
}

struct HeadQueries {
  std::uint32_t layer;
  const float* q;  // [q_heads, dim]
  double scale;
};

// Output rows of one layer against attention in double over what quire_gather returns.
inline void require_attention(const Rig& rig,
                              std::int32_t slot,
                              const HeadQueries& queries,
                              const std::vector<float>& out,
                              double bound) {
  const quire_group_desc& g = rig.spec.group;
  const std::size_t dim = g.layout.head_dim_k;
  const std::size_t group = g.q_heads / g.kv_heads;
  for (std::uint32_t h = 0; h < g.q_heads; ++h) {
    const DecodedHead head = rig.gather(slot, queries.layer, static_cast<std::uint32_t>(h / group));
    const std::vector<double> p = softmax_of(
        queries.q + h * dim, head.keys.data(), head.positions.size(), dim, dim, queries.scale);
    for (std::size_t d = 0; d < dim; ++d) {
      double want = 0.0;
      for (std::size_t i = 0; i < p.size(); ++i)
        want += p[i] * static_cast<double>(head.values[i * dim + d]);
      const double got = static_cast<double>(out[h * dim + d]);
      INFO("layer " << queries.layer << " query head " << h << " element " << d);
      if (!(std::fabs(got - want) <= bound)) REQUIRE(got == want);
    }
  }
}

// Copies of all pages that more than one row holds, by id.
using PageCopies = std::map<std::size_t, std::vector<std::uint8_t>>;

inline PageCopies shared_pages(const Rig& rig) {
  const CacheState& cache = rig.state();
  std::vector<int> rows(cache.max.pages, 0);
  for (std::uint64_t row = 0; row < cache.max.rows(cache.group); ++row) {
    for (std::uint32_t t = 0; t < cache.group.layout.tier_count; ++t) {
      for (std::uint32_t p = 0; p < cache.head_states[row].pages[t]; ++p)
        ++rows.at(static_cast<std::size_t>(cache.table.row(row).page(t, p).value));
    }
  }
  PageCopies copies;
  for (std::size_t id = 0; id < rows.size(); ++id) {
    if (rows[id] < 2) continue;
    const std::uint8_t* page =
        cache.space.address(PageId{static_cast<std::int32_t>(id)}, HeadId{0});
    copies[id].assign(page, page + cache.group.layout.page_bytes);
  }
  return copies;
}

// True when the pages still hold what they held.
inline bool unchanged(const Rig& rig, const PageCopies& copies) {
  const CacheState& cache = rig.state();
  for (const auto& [id, bytes] : copies) {
    const PageId page{static_cast<std::int32_t>(id)};
    if (std::memcmp(cache.space.address(page, HeadId{0}), bytes.data(), bytes.size()) != 0)
      return false;
  }
  return true;
}

}  // namespace quire::test
