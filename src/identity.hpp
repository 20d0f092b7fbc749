// A 128-bit name of a prefix: two lanes of 64 bits, each word mixed into both. Against accidents,
// not against an attacker who chooses token ids.
#pragma once

#include <cstdint>

namespace quire {

class Identity {
 public:
  void add(std::uint64_t word) {
    lane_[0] = mix(lane_[0] + word * 0x9e3779b97f4a7c15u);
    lane_[1] = mix((lane_[1] ^ word) + 0xd1b54a32d192ed03u);
  }

  // The name of all words so far, `count` of which are tokens.
  void finish(std::uint64_t count, std::uint64_t* out) const {
    Identity last = *this;
    last.add(count);
    out[0] = mix(last.lane_[0] ^ (last.lane_[1] >> 17));
    out[1] = mix(last.lane_[1] + last.lane_[0]);
  }

 private:
  // A bijection in which every bit of x reaches every bit of the result.
  static std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 32)) * 0xe9846af9b1a615d5u;
    x = (x ^ (x >> 29)) * 0x9fb21c651e98df25u;
    return x ^ (x >> 32);
  }

  std::uint64_t lane_[2] = {0x243f6a8885a308d3u, 0x13198a2e03707344u};  // digits of pi
};

}  // namespace quire
