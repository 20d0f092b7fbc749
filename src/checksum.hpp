// A 64-bit checksum at the speed of memory: against damage, not against an attacker.
#pragma once

#include <cstdint>
#include <cstring>

namespace quire {

// Four lanes of xor and multiply. Each step is a bijection of its lane, so that a change within one
// word of 8 bytes is never missed.
inline std::uint64_t checksum(const std::uint8_t* data, std::uint64_t bytes) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio
  std::uint64_t lane[4] = {kOdd, kOdd << 1 | 1, kOdd << 2 | 1, kOdd << 3 | 1};
  const auto mix = [&](std::uint64_t& x, std::uint64_t word) {
    x = (x ^ word) * kOdd;
    x ^= x >> 29;
  };
  std::uint64_t at = 0;
  for (; at + 32 <= bytes; at += 32) {
    std::uint64_t word[4];
    std::memcpy(word, data + at, sizeof(word));
    for (int i = 0; i < 4; ++i) mix(lane[i], word[i]);
  }
  for (; at < bytes; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + at, bytes - at < 8 ? bytes - at : 8);
    mix(lane[0], word);
  }
  std::uint64_t sum = bytes;
  for (const std::uint64_t x : lane) mix(sum, x);
  return sum;
}

}  // namespace quire
