// Everything an engine can read of a cache, as one comparable value: two caches that hold the same
// are equal here, wherever their pages lie.
#pragma once

#include <vector>

#include "support/pages_cache.hpp"

namespace quire::test {

struct HeadContents {
  std::vector<std::int32_t> positions;
  std::vector<std::uint8_t> tiers;
  std::vector<float> scores;
  std::vector<float> keys;
  std::vector<float> values;

  bool operator==(const HeadContents& o) const {
    return positions == o.positions && tiers == o.tiers && scores == o.scores && keys == o.keys &&
           values == o.values;
  }
};

inline HeadContents head_contents(const PoolCache& box,
                                  std::int32_t slot,
                                  std::uint32_t layer,
                                  std::uint32_t head) {
  HeadContents out;
  std::uint32_t count = 0;
  quire_query_args query = QUIRE_QUERY_ARGS_INIT;
  query.slot = slot;
  query.layer = layer;
  query.head = head;
  query.count = &count;
  PoolCache::need(box.cache.query(query));
  if (count == 0) return out;
  out.positions.resize(count);
  out.tiers.resize(count);
  out.scores.resize(count);
  out.keys.resize(std::size_t{count} * box.spec.group.layout.head_dim_k);
  out.values.resize(std::size_t{count} * box.spec.group.layout.head_dim_v);
  query.capacity = count;
  query.positions = out.positions.data();
  query.tiers = out.tiers.data();
  query.scores = out.scores.data();
  PoolCache::need(box.cache.query(query));
  quire_gather_args gather = QUIRE_GATHER_ARGS_INIT;
  gather.slot = slot;
  gather.layer = layer;
  gather.head = head;
  gather.capacity = count;
  gather.k = rows_of(out.keys.data());
  gather.v = rows_of(out.values.data());
  gather.count = &count;
  PoolCache::need(box.cache.gather(gather));
  return out;
}

// [layers, kv_heads]
inline std::vector<HeadContents> sequence_contents(const PoolCache& box, std::int32_t slot) {
  std::vector<HeadContents> out;
  for (std::uint32_t layer = 0; layer < box.spec.group.layers; ++layer) {
    for (std::uint32_t head = 0; head < box.spec.group.kv_heads; ++head)
      out.push_back(head_contents(box, slot, layer, head));
  }
  return out;
}

struct CacheContents {
  std::vector<std::uint32_t> states;
  std::vector<std::uint32_t> lengths;
  std::vector<HeadContents> heads;  // of all sequences that are open and readable

  bool operator==(const CacheContents& o) const {
    return states == o.states && lengths == o.lengths && heads == o.heads;
  }
};

inline CacheContents cache_contents(const PoolCache& box) {
  CacheContents out;
  for (std::uint32_t s = 0; s < box.spec.sequences; ++s) {
    quire_seq_info info = QUIRE_SEQ_INFO_INIT;
    const auto slot = static_cast<std::int32_t>(s);
    if (quire_seq_info_get(box.cache.get(), slot, &info, nullptr) != QUIRE_OK)
      info.state = QUIRE_SEQ_CLOSED;
    out.states.push_back(info.state);
    out.lengths.push_back(info.tokens);
    if (info.state == QUIRE_SEQ_CLOSED || info.state == QUIRE_SEQ_BROKEN) continue;
    for (HeadContents& head : sequence_contents(box, slot)) out.heads.push_back(std::move(head));
  }
  return out;
}

}  // namespace quire::test
