// One setting's cache through quire.h: what an engine does with it, and the time it takes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "quire/quire.h"
#include "setting.hpp"

namespace smol {

// Rows of one layer of a prompt, dense fp32.
struct PromptLayer {
  uint32_t layer = 0;
  uint32_t tokens = 0;
  const float* k = nullptr;  // [tokens, kv_heads, head_dim]
  const float* v = nullptr;
  const float* q = nullptr;    // [tokens, q_heads, head_dim]
  const float* lse = nullptr;  // [tokens, q_heads]
};

// Bytes of the sequence now.
struct CacheBytes {
  double total = 0.0;
  double fp16 = 0.0;
};

class CacheRun {
 public:
  CacheRun();
  CacheRun(CacheRun&&) noexcept;
  CacheRun& operator=(CacheRun&&) noexcept;
  ~CacheRun();

  // Room for one sequence of `tokens` tokens. Empty string, or what quire said.
  std::string create(const Setting& setting, uint32_t tokens);

  std::string begin_prompt(uint32_t tokens);
  std::string prompt_layer(const PromptLayer& layer);
  std::string end_prompt();

  std::string begin_step();
  // k, v: [kv_heads, head_dim]; q, out: [q_heads, head_dim].
  std::string step_layer(
      uint32_t layer, const float* k, const float* v, const float* q, float* out);
  std::string end_step();

  CacheBytes bytes() const;
  uint64_t scratch_bytes() const;
  double seconds() const { return seconds_; }  // spent in step calls
  const Setting& setting() const { return setting_; }

  // Tier of every position of one head: 0 high, 1 low, 255 ring; 254 where nothing is kept.
  std::vector<uint8_t> tiers(uint32_t layer, uint32_t head) const;

 private:
  struct Memory;
  Setting setting_;
  std::unique_ptr<Memory> memory_;
  quire_cache* cache_ = nullptr;
  int32_t slot_ = -1;
  double seconds_ = 0.0;
};

}  // namespace smol
