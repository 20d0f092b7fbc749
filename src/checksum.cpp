#include "src/checksum.hpp"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/checksum.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace quire {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

void mix_blocks(std::uint32_t* lane, const std::uint8_t* data, std::uint64_t blocks) {
  for (; blocks > 0; --blocks, data += kChecksumBlock) {
    for (std::uint32_t i = 0; i < kChecksumLanes; ++i) {
      std::uint32_t word;
      std::memcpy(&word, data + std::uint64_t{4} * i, 4);
      lane[i] = (lane[i] ^ word) * kLaneFactor;
      lane[i] ^= lane[i] >> 15;
    }
  }
}

#else

namespace hn = hwy::HWY_NAMESPACE;

// Lanes stay in eight registers of four, on every instruction set: eight chains hide the latency of
// the multiplication, and reading the bytes takes longer than the arithmetic.
void mix_blocks(std::uint32_t* lane, const std::uint8_t* data, std::uint64_t blocks) {
  static_assert(kChecksumLanes == 32);
  const hn::Full128<std::uint32_t> d;
  const hn::Repartition<std::uint8_t, decltype(d)> bytes;
  const auto factor = hn::Set(d, kLaneFactor);
  const auto mix = [&](auto& x, const std::uint8_t* word) HWY_ATTR {
    x = hn::Mul(hn::Xor(x, hn::BitCast(d, hn::LoadU(bytes, word))), factor);
    x = hn::Xor(x, hn::ShiftRight<15>(x));
  };
  auto a = hn::LoadU(d, lane);
  auto b = hn::LoadU(d, lane + 4);
  auto c = hn::LoadU(d, lane + 8);
  auto e = hn::LoadU(d, lane + 12);
  auto f = hn::LoadU(d, lane + 16);
  auto g = hn::LoadU(d, lane + 20);
  auto h = hn::LoadU(d, lane + 24);
  auto i = hn::LoadU(d, lane + 28);
  for (; blocks > 0; --blocks, data += kChecksumBlock) {
    mix(a, data);
    mix(b, data + 16);
    mix(c, data + 32);
    mix(e, data + 48);
    mix(f, data + 64);
    mix(g, data + 80);
    mix(h, data + 96);
    mix(i, data + 112);
  }
  hn::StoreU(a, d, lane);
  hn::StoreU(b, d, lane + 4);
  hn::StoreU(c, d, lane + 8);
  hn::StoreU(e, d, lane + 12);
  hn::StoreU(f, d, lane + 16);
  hn::StoreU(g, d, lane + 20);
  hn::StoreU(h, d, lane + 24);
  hn::StoreU(i, d, lane + 28);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace quire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace quire {

HWY_EXPORT(mix_blocks);

namespace {

constexpr std::uint64_t kWorthACall = 4096;  // bytes; a tenth of a first-level cache

std::uint64_t fold(std::uint64_t sum, std::uint64_t word) {
  sum = (sum ^ word) * kFoldFactor;
  return sum ^ sum >> 29;
}

}  // namespace

Checksum::Checksum(const std::uint8_t* begin) : begin_(begin), at_(begin) {
  for (std::uint32_t i = 0; i < kChecksumLanes; ++i) lane_[i] = (i + 1) * kLaneFactor;
}

void Checksum::advance(const std::uint8_t* end) {
  const auto ready = static_cast<std::uint64_t>(end - at_);
  if (ready < kWorthACall) return;
  const std::uint64_t blocks = ready / kChecksumBlock;
  HWY_DYNAMIC_DISPATCH(mix_blocks)(lane_, at_, blocks);
  at_ += blocks * kChecksumBlock;
}

std::uint64_t Checksum::finish(const std::uint8_t* end) {
  const std::uint64_t left = static_cast<std::uint64_t>(end - at_);
  const std::uint64_t blocks = left / kChecksumBlock;
  HWY_DYNAMIC_DISPATCH(mix_blocks)(lane_, at_, blocks);
  at_ += blocks * kChecksumBlock;
  if (at_ != end) {
    std::uint8_t last[kChecksumBlock] = {};
    std::memcpy(last, at_, static_cast<std::uint64_t>(end - at_));
    HWY_DYNAMIC_DISPATCH(mix_blocks)(lane_, last, 1);
  }
  std::uint64_t sum = static_cast<std::uint64_t>(end - begin_);
  for (std::uint32_t i = 0; i < kChecksumLanes; i += 2)
    sum = fold(sum, lane_[i] | std::uint64_t{lane_[i + 1]} << 32);
  return sum;
}

}  // namespace quire

#endif
