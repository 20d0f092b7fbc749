// A 64-bit checksum at the speed of memory: against damage, not against an attacker.
//
//   Bytes are taken in blocks of 32 words of 4 bytes; word i of every block goes into lane i:
//     lane = (lane ^ word) * kLaneFactor;  lane = lane ^ lane >> 15
//   The last block is filled up with zeros. Then the number of bytes and all lanes, two at a time,
//   are folded into one number.
//
// Each step is a bijection of its lane, so that a change within one word is never missed.
#pragma once

#include <cstdint>

namespace quire {

inline constexpr std::uint32_t kChecksumLanes = 32;
inline constexpr std::uint64_t kChecksumBlock = 4 * kChecksumLanes;
inline constexpr std::uint32_t kLaneFactor = 0x9e3779b1u;          // 2^32 / golden ratio, odd
inline constexpr std::uint64_t kFoldFactor = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio, odd

// The checksum of bytes that become final from front to back, taken while they are in the cache.
class Checksum {
 public:
  explicit Checksum(const std::uint8_t* begin);

  // Bytes in front of `end` do not change any more. Whole blocks of them are taken, when it is
  // worth the call.
  void advance(const std::uint8_t* end);

  // The checksum of all bytes up to `end`.
  std::uint64_t finish(const std::uint8_t* end);

 private:
  const std::uint8_t* begin_;
  const std::uint8_t* at_;
  std::uint32_t lane_[kChecksumLanes];
};

inline std::uint64_t checksum(const std::uint8_t* data, std::uint64_t bytes) {
  return Checksum(data).finish(data + bytes);
}

}  // namespace quire
