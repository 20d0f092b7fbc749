// Requests of a chat service, drawn from a seed: when they come, how long they are, and vectors
// that depend on request and position alone, whatever runs beside it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "bench/replay/options.hpp"

namespace quire::bench {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double uniform() { return (static_cast<double>(bits() >> 11) + 0.5) * 0x1.0p-53; }
  double normal() {
    return std::sqrt(-2.0 * std::log(uniform())) * std::cos(6.283185307179586 * uniform());
  }
  std::uint32_t poisson(double mean) {
    const double limit = std::exp(-mean);
    std::uint32_t n = 0;
    for (double p = uniform(); p > limit; p *= uniform()) ++n;
    return n;
  }

 private:
  std::uint64_t state_;
};

struct Request {
  std::uint32_t id = 0;
  std::uint32_t prompt = 0;
  std::uint32_t answer = 0;
  std::uint32_t made = 0;  // tokens of the answer
  std::int32_t slot = -1;
  std::uint64_t digest = 0;  // of its outputs
  std::uint64_t pages = 0;   // when it was swapped out
  std::vector<std::uint8_t> frame;

  std::uint32_t tokens() const { return prompt + made; }
};

inline Request draw_request(const ReplayOptions& o, std::uint32_t id, Random& random) {
  const auto length = [&](double median, std::uint32_t most) {
    const double x = median * std::exp(o.sigma * random.normal());
    return static_cast<std::uint32_t>(std::clamp(x, 1.0, static_cast<double>(most)));
  };
  Request r;
  r.id = id;
  r.prompt = length(o.prompt_median, o.max_tokens / 2);
  r.answer = length(o.answer_median, o.max_tokens - r.prompt);
  return r;
}

// One long run of normal numbers; rows of a request and position begin somewhere in it. Every
// sixteenth row of a key is four times as long, so that attention has favourites.
class Vectors {
 public:
  Vectors(std::size_t row, std::size_t most_rows, std::uint64_t seed) : row_(row) {
    Random random(seed);
    data_.resize((kRows + most_rows) * row);
    for (std::size_t i = 0; i < data_.size(); ++i) {
      const bool loud = (i / row) % 16 == 5;
      data_[i] = static_cast<float>(random.normal()) * (loud ? 4.0f : 1.0f);
    }
  }

  // Rows of positions `position`, `position` + 1, ... of a request.
  float* rows(std::uint32_t id, std::uint32_t position, std::uint32_t layer) {
    const std::size_t start = Random(std::uint64_t{id} * 1000003 + layer).bits() % kRows;
    return data_.data() + (start + position) % kRows * row_;
  }

 private:
  static constexpr std::size_t kRows = 16411;  // a prime
  std::size_t row_;
  std::vector<float> data_;
};

}  // namespace quire::bench
