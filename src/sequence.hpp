// What opening and forking a sequence have in common.
#pragma once

#include "src/cache.hpp"

namespace quire {

// What a policy asks of the group: fields of the layout, room in the ring.
Status check_fit(const Group& group, const Policy& policy);

// Overrides of a policy's alphas against the group's shape and tiers.
Status check_thresholds(const Group& group,
                        const Policy& policy,
                        const quire_threshold* thresholds,
                        std::uint64_t count);

// The lowest closed slot.
Status find_free_slot(const CacheState& cache, std::int32_t* slot);

// A sequence whose tokens are all gone: what a prompt and steps had left in it goes as well.
void reset_empty(CacheState& cache, std::int32_t slot);

// Writes overrides into the heads of a sequence, later entries over earlier ones.
void set_thresholds(CacheState& cache,
                    std::int32_t slot,
                    const quire_threshold* thresholds,
                    std::uint64_t count);

}  // namespace quire
