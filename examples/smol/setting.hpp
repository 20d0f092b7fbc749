// A cache setting by name: formats, policy and budget, as the descriptors of quire.h.
#pragma once

#include <string>
#include <vector>

#include "quire/quire.h"

namespace smol {

struct Setting {
  std::string name;
  quire_group_desc group;
  quire_policy policy = QUIRE_POLICY_INIT;
};

// The model's side of a group description.
struct CacheShape {
  uint32_t layers = 0;
  uint32_t q_heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t expected_tokens = 0;
};

// Understands
//   fp16, K<k>V<v>                         uniform, 64 recent tokens in 16 bit
//   quire_uniform:K4V3                     one rotated tier
//   diffkv_paper:1,0.02, diffkv_upstream:1,0.02[@0.25]   thresholds, byte target
//   quire_budget:0.21                      byte target
//   snapkv@0.25, h2o@0.25, streaming_llm@0.25
// Returns an empty string, or what is wrong with the name.
std::string parse_setting(const std::string& name, const CacheShape& shape, Setting* out);

// The settings of the demo's table, in its order.
std::vector<std::string> default_settings();

}  // namespace smol
