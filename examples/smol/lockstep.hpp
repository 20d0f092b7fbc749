// Runs one text through the model with many caches at once: the dense products are shared, every
// cache sees its own hidden states.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cache_run.hpp"
#include "forward.hpp"
#include "pool.hpp"

namespace smol {

// Called after every decode step with logits [caches][vocabulary] of one position.
using StepObserver = std::function<void(uint32_t position, const float* logits)>;

class Lockstep {
 public:
  // `model` and `pool` must outlive it.
  Lockstep(const Model& model, Pool& pool) : forward_(model, pool), pool_(pool) {}

  // Exact attention over the first `prompt` tokens (K and V rounded to fp16), handed to all caches.
  std::string run_prompt(const std::vector<int32_t>& tokens,
                         uint32_t prompt,
                         std::vector<CacheRun>& caches);

  // Teacher-forced decoding of tokens [first, last) through the caches.
  std::string run_steps(const std::vector<int32_t>& tokens,
                        uint32_t first,
                        uint32_t last,
                        std::vector<CacheRun>& caches,
                        const StepObserver& observe);

  // Logits of all prompt positions with plain attention, for tests and as the model's own figure.
  void plain_logits(const std::vector<int32_t>& tokens, std::vector<float>* logits);

  Forward& forward() { return forward_; }

 private:
  std::string step(const std::vector<int32_t>& tokens,
                   uint32_t position,
                   std::vector<CacheRun>& caches);
  // Runs call(i) for every cache on the pool; returns the first message.
  std::string for_each_cache(std::size_t count,
                             const std::function<std::string(std::size_t)>& call);

  Forward forward_;
  Pool& pool_;
  std::vector<float> x_;
  std::vector<float> q_;
  std::vector<float> k_;
  std::vector<float> v_;
  std::vector<float> out_;
  std::vector<float> lse_;
  std::vector<float> logits_;
};

}  // namespace smol
