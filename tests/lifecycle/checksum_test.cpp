// The checksum of frames. Oracle: its definition in src/checksum.hpp, word by word.
#include "src/checksum.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "support/catch.hpp"
#include "support/gen.hpp"

namespace quire::test {
namespace {

std::uint64_t by_definition(std::vector<std::uint8_t> data) {
  std::uint64_t sum = data.size();
  data.resize((data.size() + kChecksumBlock - 1) / kChecksumBlock * kChecksumBlock, 0);
  std::vector<std::uint32_t> lane(kChecksumLanes);
  for (std::uint32_t i = 0; i < kChecksumLanes; ++i) lane[i] = (i + 1) * kLaneFactor;
  for (std::size_t at = 0; at < data.size(); at += 4) {
    std::uint32_t word;
    std::memcpy(&word, data.data() + at, 4);
    std::uint32_t& x = lane[at / 4 % kChecksumLanes];
    x = (x ^ word) * kLaneFactor;
    x ^= x >> 15;
  }
  for (std::size_t i = 0; i < lane.size(); i += 2) {
    sum = (sum ^ (lane[i] | std::uint64_t{lane[i + 1]} << 32)) * kFoldFactor;
    sum ^= sum >> 29;
  }
  return sum;
}

std::vector<std::uint8_t> random_bytes(Rng& rng, std::size_t count) {
  std::vector<std::uint8_t> data(count);
  for (std::uint8_t& x : data) x = static_cast<std::uint8_t>(rng.below(256));
  return data;
}

TEST_CASE("the checksum is its definition at every length and alignment", "[lifecycle][export]") {
  Rng rng(9501);
  INFO(rng.describe());
  const std::vector<std::uint8_t> all = random_bytes(rng, 9000);
  for (std::size_t bytes = 0; bytes + 64 <= all.size(); bytes += bytes < 400 ? 1 : 997) {
    const std::size_t first = bytes % 64;
    INFO(bytes << " bytes from " << first);
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
    const std::vector<std::uint8_t> part(begin, begin + static_cast<std::ptrdiff_t>(bytes));
    REQUIRE(checksum(all.data() + first, bytes) == by_definition(part));
  }
}

TEST_CASE("the checksum does not depend on the pieces in which bytes become final",
          "[lifecycle][export]") {
  Rng rng(9502);
  INFO(rng.describe());
  const std::vector<std::uint8_t> data = random_bytes(rng, 100000);
  for (int round = 0; round < 50; ++round) {
    const std::size_t bytes = data.size() - rng.below(300);
    Checksum sum(data.data());
    for (std::size_t at = 0; at < bytes; at = std::min(bytes, at + 1 + rng.below(20000)))
      sum.advance(data.data() + at);
    REQUIRE(sum.finish(data.data() + bytes) == checksum(data.data(), bytes));
  }
}

TEST_CASE("the checksum of any length sees every bit", "[lifecycle][export]") {
  std::vector<std::uint8_t> data(kChecksumBlock + 9);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::uint8_t>(31 * i);
  std::set<std::uint64_t> sums;
  std::size_t made = 0;
  for (std::size_t bytes = 0; bytes <= data.size(); ++bytes) {
    sums.insert(checksum(data.data(), bytes));
    ++made;
    for (std::size_t bit = 0; bit < 8 * bytes; ++bit) {
      const auto flip = static_cast<std::uint8_t>(1u << (bit % 8));
      data[bit / 8] = static_cast<std::uint8_t>(data[bit / 8] ^ flip);
      sums.insert(checksum(data.data(), bytes));
      ++made;
      data[bit / 8] = static_cast<std::uint8_t>(data[bit / 8] ^ flip);
    }
  }
  REQUIRE(sums.size() == made);
}

}  // namespace
}  // namespace quire::test
