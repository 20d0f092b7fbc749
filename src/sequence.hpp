// What opening and forking a sequence have in common.
#pragma once

#include "src/cache.hpp"

namespace quire {

// What a policy asks of the group: fields of the layout, room in the ring.
Status check_fit(const Group& group, const Policy& policy);

// Thresholds of single heads as a caller gives them, with the numbers that calls give to layers.
struct ThresholdList {
  const quire_threshold* data = nullptr;
  std::uint64_t count = 0;
};

// Overrides of a policy's alphas against the group's shape and tiers; those of other layer groups
// count for nothing here.
Status check_thresholds(const CacheState& cache, const Policy& policy, const ThresholdList& list);

// Every layer that a list names is one of the cache.
Status check_threshold_layers(const quire_cache& cache, const ThresholdList& list);

// The lowest closed slot.
Status find_free_slot(const CacheState& cache, std::int32_t* slot);

// A sequence whose tokens are all gone: what a prompt and steps had left in it goes as well.
void reset_empty(CacheState& cache, std::int32_t slot);

// Thresholds of one head.
struct Alphas {
  float high = 0.0f;
  float low = 0.0f;
};

// Those of a policy under a list of overrides, later entries over earlier ones.
Alphas alphas_of(const CacheState& cache,
                 const Alphas& policy,
                 const ThresholdList& list,
                 std::uint32_t layer,
                 std::uint32_t head);

// What a sequence is to be in one layer group.
struct OpenRequest {
  Policy policy;
  ThresholdList thresholds;
  const float* k_offset = nullptr;
  const float* v_offset = nullptr;
};

// The request of every layer group, from one struct.
struct GroupRequests {
  OpenRequest request[kMaxLayerGroups];

  Status read(const quire_cache& cache, const quire_seq_open_args& args);
  Status check(const quire_cache& cache) const;
};

// Closes a sequence in any state but "in step".
Status close_sequence(quire_cache& cache, std::int32_t slot);

// Writes overrides into the heads of a sequence, later entries over earlier ones.
void set_thresholds(CacheState& cache, std::int32_t slot, const ThresholdList& list);

// What a policy is in a layer group: under a sliding window the last tokens that a query may see.
Policy policy_in(const Group& group, Policy policy);

}  // namespace quire
