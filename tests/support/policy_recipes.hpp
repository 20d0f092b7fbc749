// One small variant of every recipe that decides something within a few hundred tokens.
#pragma once

#include <string>
#include <vector>

#include "support/policy_rig.hpp"

namespace quire::test {

struct NamedSpec {
  std::string name;
  RigSpec spec;
};

// All recipes on a shape, with a ring of 1 + 24 tokens (4 + 24 for streaming_llm).
inline std::vector<NamedSpec> small_recipes(const StreamShape& shape) {
  const auto make = [&](std::uint32_t recipe, std::uint32_t sinks) {
    RigSpec spec(recipe, shape);
    spec.set_ring(sinks, 24);
    return spec;
  };
  std::vector<NamedSpec> all;
  all.push_back({"keep_all", make(QUIRE_RECIPE_KEEP_ALL, 1)});
  all.push_back({"quire_uniform", make(QUIRE_RECIPE_QUIRE_UNIFORM, 1)});
  all.push_back({"diffkv_paper", make(QUIRE_RECIPE_DIFFKV_PAPER, 0)});
  all.push_back({"diffkv_upstream", make(QUIRE_RECIPE_DIFFKV_UPSTREAM, 1)});
  for (std::size_t i = 2; i < 4; ++i) {
    all[i].spec.policy.alpha_low = 0.3f;
    all[i].spec.group.ring_format = QUIRE_RING_HIGH;
  }
  all.push_back({"streaming_llm", make(QUIRE_RECIPE_STREAMING_LLM, 4)});
  all.push_back({"h2o", make(QUIRE_RECIPE_H2O, 1)});
  all.push_back({"snapkv", make(QUIRE_RECIPE_SNAPKV, 1)});
  all[6].spec.policy.tail_queries = 24;
  for (std::size_t i = 4; i < 7; ++i) all[i].spec.policy.budget_tokens = 90;
  all.push_back({"quire_budget", make(QUIRE_RECIPE_QUIRE_BUDGET, 1)});
  all[7].spec.policy.byte_target = 0.36;
  all[7].spec.policy.min_queries = 50;
  all.push_back({"quire_budget, records", make(QUIRE_RECIPE_QUIRE_BUDGET, 1)});
  all[8].spec.policy.byte_target = 0.0;
  all[8].spec.policy.budget_bytes =
      std::uint64_t{shape.layers} * shape.kv_heads * 170 * (shape.dim * 9 / 8 + 16);
  all[8].spec.policy.min_queries = 50;
  all.push_back({"diffkv_upstream, target", make(QUIRE_RECIPE_DIFFKV_UPSTREAM, 1)});
  all[9].spec.group.ring_format = QUIRE_RING_K8V8;
  all[9].spec.policy.byte_target = 0.4;
  return all;
}

}  // namespace quire::test
