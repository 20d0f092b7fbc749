// The engine twice, side by side: once with its attention through a quire cache, once with plain
// attention over the same keys and values rounded to fp16.
//
// "The same" matters: were each to round its own keys, a difference of 1e-7 in a hidden state would
// now and then tip a key over the border between two fp16 numbers, and 30 layers make 1e-2 of it.
// So the plain engine stores what the cache was given; queries and residual streams are its own.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "cache_run.hpp"
#include "exact_attention.hpp"
#include "forward.hpp"
#include "half.hpp"
#include "support/catch.hpp"

namespace smol::test {

class SharedKeys {
 public:
  SharedKeys(const Model& model, Pool& pool, uint32_t tokens)
      : config_(model.config),
        forward_(model, pool),
        keys_(config_.layers),
        values_(config_.layers) {
    Setting setting;
    const CacheShape shape = {
        config_.layers, config_.q_heads, config_.kv_heads, config_.head_dim, tokens};
    REQUIRE(parse_setting("fp16", shape, &setting).empty());
    REQUIRE(cache_.create(setting, tokens).empty());
    x_.resize(2 * std::size_t{config_.hidden});
    q_.resize(2 * std::size_t{config_.q_size()});
    k_.resize(2 * std::size_t{config_.kv_size()});
    v_.resize(k_.size());
    out_.resize(q_.size());
    logits_.resize(2 * std::size_t{config_.vocabulary});
  }

  // One token; afterwards logits() are those through quire, and the return value is the largest
  // difference of any logit to plain attention.
  double step(int32_t token) {
    const int32_t ids[2] = {token, token};
    const int32_t positions[2] = {length_, length_};
    ++length_;
    forward_.embed(ids, 2, x_.data());
    REQUIRE(cache_.begin_step().empty());
    for (uint32_t layer = 0; layer < config_.layers; ++layer) {
      forward_.attention_inputs(layer, positions, 2, x_.data(), q_.data(), k_.data(), v_.data());
      REQUIRE(cache_.step_layer(layer, k_.data(), v_.data(), q_.data(), out_.data()).empty());
      for (uint32_t i = 0; i < config_.kv_size(); ++i) {
        keys_[layer].push_back(round_to_half(k_[i]));
        values_[layer].push_back(round_to_half(v_[i]));
      }
      decode_attention({config_.q_heads, config_.kv_heads, config_.head_dim},
                       q_.data() + config_.q_size(),
                       keys_[layer].data(),
                       values_[layer].data(),
                       static_cast<uint32_t>(length_),
                       out_.data() + config_.q_size());
      forward_.attention_output(layer, out_.data(), 2, x_.data());
      forward_.feed_forward(layer, 2, x_.data());
    }
    forward_.logits(x_.data(), 2, logits_.data());
    REQUIRE(cache_.end_step().empty());
    double worst = 0.0;
    for (uint32_t i = 0; i < config_.vocabulary; ++i) {
      const double other = static_cast<double>(logits_[config_.vocabulary + i]);
      worst = std::max(worst, std::fabs(static_cast<double>(logits_[i]) - other));
    }
    return worst;
  }

  const float* logits() const { return logits_.data(); }

 private:
  Config config_;
  Forward forward_;
  CacheRun cache_;
  int32_t length_ = 0;
  std::vector<std::vector<float>> keys_;
  std::vector<std::vector<float>> values_;
  std::vector<float> x_, q_, k_, v_, out_, logits_;
};

}  // namespace smol::test
