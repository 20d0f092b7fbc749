// Small caches with small pages, fed with numbers from a fixed heap, for tests of pages and
// accounting: what the numbers are does not matter, how many tokens go where does.
#pragma once

#include <string>
#include <vector>

#include "quire/quire.hpp"
#include "src/cache.hpp"
#include "support/catch.hpp"
#include "support/gen.hpp"

namespace quire::test {

// The smallest pages that the formats allow: 16 tokens of the largest tier.
inline void set_small_pages(quire_group_desc& group) {
  quire_layout layout = QUIRE_LAYOUT_INIT;
  for (group.layout.page_bytes = 64;; group.layout.page_bytes += 64) {
    if (quire_layout_make(&group.layout, &layout) == QUIRE_OK) return;
  }
}

struct PoolSpec {
  quire_group_desc group = QUIRE_GROUP_DESC_INIT;
  quire_policy policy = QUIRE_POLICY_INIT;
  std::uint32_t sequences = 1;
  std::uint32_t batch = 0;  // 0: sequences
  std::uint32_t max_tokens = 256;
  std::uint64_t pages = 1000;

  explicit PoolSpec(std::uint32_t recipe,
                    std::uint32_t layers = 2,
                    std::uint32_t kv_heads = 2,
                    std::uint32_t dim = 16) {
    REQUIRE(quire_recipe_get(recipe, &policy, &group, nullptr) == QUIRE_OK);
    group.layers = layers;
    group.kv_heads = kv_heads;
    group.q_heads = 2 * kv_heads;
    group.layout.head_dim_k = group.layout.head_dim_v = dim;
    set_small_pages(group);
  }

  void set_ring(std::uint32_t sinks, std::uint32_t window) {
    group.sink_tokens = policy.sink_tokens = sinks == 0 ? QUIRE_NONE : sinks;
    group.recent_window = policy.recent_window = window == 0 ? QUIRE_NONE : window;
  }

  // `groups` points into this object.
  quire_cache_desc desc() const {
    quire_cache_desc d = QUIRE_CACHE_DESC_INIT;
    d.max_sequences = sequences;
    d.max_batch = batch;
    d.max_tokens = max_tokens;
    d.groups = &group;
    d.pages = pages;
    return d;
  }

  std::uint64_t heads() const { return std::uint64_t{group.layers} * group.kv_heads; }
};

// Normal numbers that every array of a call is a window of.
class Heap {
 public:
  Heap() {
    Rng rng(1);
    numbers_ = rng.normals(kSize);
  }

  const float* window(std::uint64_t seed, std::size_t count) const {
    REQUIRE(count < kSize);
    Rng rng(seed ^ 0x5bd1e995u);
    return numbers_.data() + rng.bits() % (kSize - count);
  }

 private:
  static constexpr std::size_t kSize = 1u << 18;
  std::vector<float> numbers_;
};

inline const Heap& heap() {
  static const Heap kHeap;
  return kHeap;
}

// A cache, and the calls of an engine with data told by a seed.
class PoolCache {
 public:
  explicit PoolCache(const PoolSpec& pool_spec) : spec(pool_spec) {
    const Result result = Cache::create(spec.desc(), &cache);
    INFO(result.text());
    REQUIRE(result.ok());
    (void)heap();
  }

  CacheState& state() const { return *cache.get(); }

  std::int32_t open() { return open(spec.policy); }
  std::int32_t open(const quire_policy& policy) {
    std::int32_t slot = -1;
    need(cache.open(policy, &slot));
    return slot;
  }

  static void need(const Result& result) {
    INFO(result.text());
    REQUIRE(result.ok());
  }

  Result prefill_layer(std::int32_t slot,
                       std::uint32_t layer,
                       std::uint32_t tokens,
                       std::uint64_t seed,
                       const std::uint8_t* plan = nullptr,
                       std::uint32_t q_rows = 0) const {
    const quire_group_desc& g = spec.group;
    if (q_rows == 0) q_rows = tokens;
    quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
    args.slot = slot;
    args.layer = layer;
    args.k = numbers(seed + 3 * layer, std::size_t{tokens} * g.kv_heads * g.layout.head_dim_k);
    args.v = numbers(seed + 3 * layer + 1, std::size_t{tokens} * g.kv_heads * g.layout.head_dim_v);
    args.q = numbers(seed + 3 * layer + 2, std::size_t{q_rows} * g.q_heads * g.layout.head_dim_k);
    args.q_rows = q_rows;
    args.plan = plan;
    return cache.prefill_layer(args);
  }

  // A whole prompt; after_layer(layer) is called behind every layer.
  template <class HookT>
  Result prefill(std::int32_t slot, std::uint32_t tokens, std::uint64_t seed, HookT&& after_layer) {
    const Result begun = cache.prefill_begin(slot, tokens);
    if (!begun.ok()) return begun;
    for (std::uint32_t layer = 0; layer < spec.group.layers; ++layer) {
      need(prefill_layer(slot, layer, tokens, seed));
      after_layer(layer);
    }
    need(cache.prefill_end(slot));
    return begun;
  }
  Result prefill(std::int32_t slot, std::uint32_t tokens, std::uint64_t seed) {
    return prefill(slot, tokens, seed, [](std::uint32_t) {});
  }

  Result begin(const std::vector<std::int32_t>& slots) const {
    return cache.step_begin(slots.data(), static_cast<std::uint32_t>(slots.size()));
  }

  Result append(std::uint32_t layer, std::uint32_t batch, std::uint64_t seed) const {
    const quire_group_desc& g = spec.group;
    quire_append_args args = QUIRE_APPEND_ARGS_INIT;
    args.layer = layer;
    args.k = numbers(seed + 2 * layer, std::size_t{batch} * g.kv_heads * g.layout.head_dim_k);
    args.v = numbers(seed + 2 * layer + 1, std::size_t{batch} * g.kv_heads * g.layout.head_dim_v);
    return cache.append(args);
  }

  Result attention(std::uint32_t layer, std::uint32_t batch, std::uint64_t seed) {
    const quire_group_desc& g = spec.group;
    const std::size_t lanes = std::size_t{batch} * g.q_heads;
    out_.resize(std::max(out_.size(), lanes * g.layout.head_dim_v));
    quire_attention_args args = QUIRE_ATTENTION_ARGS_INIT;
    args.layer = layer;
    args.q = numbers(seed ^ (layer + 77), lanes * g.layout.head_dim_k);
    args.out = rows_of(out_.data());
    return cache.attention(args);
  }

  // Everything between step_begin and step_end.
  void run_layers(std::uint32_t batch, std::uint64_t seed, bool with_attention = true) {
    for (std::uint32_t layer = 0; layer < spec.group.layers; ++layer) {
      need(append(layer, batch, seed));
      if (with_attention) need(attention(layer, batch, seed));
    }
  }

  Result step(const std::vector<std::int32_t>& slots, std::uint64_t seed, bool attend = true) {
    const Result begun = begin(slots);
    if (!begun.ok()) return begun;
    run_layers(static_cast<std::uint32_t>(slots.size()), seed, attend);
    need(cache.step_end());
    return begun;
  }

  PoolSpec spec;
  Cache cache;

 private:
  static quire_rows numbers(std::uint64_t seed, std::size_t count) {
    return rows_of(heap().window(seed, count));
  }

  std::vector<float> out_;
};

}  // namespace quire::test
