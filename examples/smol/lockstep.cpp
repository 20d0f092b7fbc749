#include "lockstep.hpp"

#include <mutex>

#include "exact_attention.hpp"
#include "half.hpp"
#include "progress.hpp"

namespace smol {
namespace {

void round_all(std::vector<float>& x) {
  for (float& value : x) value = round_to_half(value);
}

std::vector<int32_t> positions_from(uint32_t first, uint32_t count) {
  std::vector<int32_t> positions(count);
  for (uint32_t i = 0; i < count; ++i) positions[i] = static_cast<int32_t>(first + i);
  return positions;
}

}  // namespace

std::string Lockstep::for_each_cache(std::size_t count,
                                     const std::function<std::string(std::size_t)>& call) {
  std::mutex mutex;
  std::string problem;
  pool_.run(static_cast<uint32_t>(count), [&](uint32_t i) {
    const std::string message = call(i);
    if (message.empty()) return;
    const std::lock_guard<std::mutex> lock(mutex);
    if (problem.empty()) problem = message;
  });
  return problem;
}

std::string Lockstep::run_prompt(const std::vector<int32_t>& tokens,
                                 uint32_t prompt,
                                 std::vector<CacheRun>& caches) {
  const Config& c = forward_.config();
  const AttentionShape shape = {c.q_heads, c.kv_heads, c.head_dim};
  const std::vector<int32_t> positions = positions_from(0, prompt);
  x_.resize(std::size_t{prompt} * c.hidden);
  q_.resize(std::size_t{prompt} * c.q_size());
  k_.resize(std::size_t{prompt} * c.kv_size());
  v_.resize(k_.size());
  out_.resize(q_.size());
  lse_.resize(std::size_t{prompt} * c.q_heads);
  std::string problem =
      for_each_cache(caches.size(), [&](std::size_t i) { return caches[i].begin_prompt(prompt); });
  forward_.embed(tokens.data(), prompt, x_.data());
  Progress progress("prompt", c.layers);
  for (uint32_t layer = 0; layer < c.layers && problem.empty(); ++layer) {
    progress.at(layer);
    forward_.attention_inputs(
        layer, positions.data(), prompt, x_.data(), q_.data(), k_.data(), v_.data());
    round_all(k_);
    round_all(v_);
    prompt_attention(
        pool_, shape, q_.data(), k_.data(), v_.data(), prompt, out_.data(), lse_.data());
    const PromptLayer stored = {layer, prompt, k_.data(), v_.data(), q_.data(), lse_.data()};
    problem = for_each_cache(caches.size(),
                             [&](std::size_t i) { return caches[i].prompt_layer(stored); });
    forward_.attention_output(layer, out_.data(), prompt, x_.data());
    forward_.feed_forward(layer, prompt, x_.data());
  }
  if (!problem.empty()) return problem;
  return for_each_cache(caches.size(), [&](std::size_t i) { return caches[i].end_prompt(); });
}

// One token through all caches; leaves logits_ [caches][vocabulary].
std::string Lockstep::step(const std::vector<int32_t>& tokens,
                           uint32_t position,
                           std::vector<CacheRun>& caches) {
  const Config& c = forward_.config();
  const auto rows = static_cast<uint32_t>(caches.size());
  const std::vector<int32_t> ids(rows, tokens[position]);
  const std::vector<int32_t> positions(rows, static_cast<int32_t>(position));
  forward_.embed(ids.data(), rows, x_.data());
  std::string problem = for_each_cache(rows, [&](std::size_t i) { return caches[i].begin_step(); });
  for (uint32_t layer = 0; layer < c.layers && problem.empty(); ++layer) {
    forward_.attention_inputs(
        layer, positions.data(), rows, x_.data(), q_.data(), k_.data(), v_.data());
    problem = for_each_cache(rows, [&](std::size_t i) {
      return caches[i].step_layer(layer,
                                  k_.data() + i * c.kv_size(),
                                  v_.data() + i * c.kv_size(),
                                  q_.data() + i * c.q_size(),
                                  out_.data() + i * c.q_size());
    });
    forward_.attention_output(layer, out_.data(), rows, x_.data());
    forward_.feed_forward(layer, rows, x_.data());
  }
  if (!problem.empty()) return problem;
  forward_.logits(x_.data(), rows, logits_.data());
  return for_each_cache(rows, [&](std::size_t i) { return caches[i].end_step(); });
}

std::string Lockstep::run_steps(const std::vector<int32_t>& tokens,
                                uint32_t first,
                                uint32_t last,
                                std::vector<CacheRun>& caches,
                                const StepObserver& observe) {
  const Config& c = forward_.config();
  const std::size_t rows = caches.size();
  x_.resize(rows * c.hidden);
  q_.resize(rows * c.q_size());
  k_.resize(rows * c.kv_size());
  v_.resize(k_.size());
  out_.resize(q_.size());
  logits_.resize(rows * c.vocabulary);
  Progress progress("decode", last - first);
  for (uint32_t position = first; position < last; ++position) {
    progress.at(position - first);
    const std::string problem = step(tokens, position, caches);
    if (!problem.empty()) return problem;
    observe(position, logits_.data());
  }
  return "";
}

void Lockstep::plain_logits(const std::vector<int32_t>& tokens, std::vector<float>* logits) {
  const Config& c = forward_.config();
  const auto rows = static_cast<uint32_t>(tokens.size());
  std::vector<CacheRun> none;
  (void)run_prompt(tokens, rows, none);
  logits->resize(std::size_t{rows} * c.vocabulary);
  forward_.logits(x_.data(), rows, logits->data());
}

}  // namespace smol
