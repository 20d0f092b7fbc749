// Buffers for vectors of one format, laid out like quire_codec_args and guarded at both ends, and
// lists of all formats.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quire/codec/vector_codec.hpp"

namespace quire::test {

inline constexpr std::uint32_t kHeadDims[] = {16, 64, 80, 96, 128, 192, 256};

// Every (grid, bits, group) that exists for a head dim, without transforms.
inline std::vector<VectorFormat> formats_of(std::uint32_t dim) {
  std::vector<VectorFormat> all = {{Grid::kF16, 16, 0, 0}, {Grid::kBf16, 16, 0, 0}};
  const auto add = [&](Grid grid, std::uint32_t bits) {
    for (const std::uint32_t group : {0u, 64u, 32u}) {
      if (group == 0 || dim % group == 0) all.push_back({grid, bits, group, 0});
    }
  };
  for (const std::uint32_t bits : {8u, 6u, 4u, 3u, 2u}) add(Grid::kAffine, bits);
  for (const std::uint32_t bits : {6u, 4u, 3u, 2u}) add(Grid::kSymmetricUniform, bits);
  for (const std::uint32_t bits : {4u, 3u, 2u}) add(Grid::kSymmetricTable, bits);
  return all;
}

inline std::string describe(const VectorFormat& format) {
  static const char* kGrid[] = {"?", "f16", "bf16", "affine", "uniform", "table"};
  return std::string(kGrid[static_cast<std::uint32_t>(format.grid)]) + " bits " +
         std::to_string(format.bits) + " group " + std::to_string(format.group) + " transform " +
         std::to_string(format.transform);
}

// `count` vectors: planes [count, row bytes], metadata fp16 [numbers per vector, count].
class CodedRows {
 public:
  CodedRows(const VectorFormat& format, std::uint32_t dim, std::uint32_t count)
      : format_(format), dim_(dim), count_(count) {
    for (std::uint32_t p = 0; p < 2; ++p) {
      plane_[p].assign(kGuard + std::size_t{count} * plane_bytes(format, dim, p) + kGuard, kByte);
    }
    meta_.assign(kGuard + std::size_t{count} * meta_count(format, dim) + kGuard, kWord);
  }

  VectorSlot slot(std::uint32_t i) {
    return {{{plane(0) + i * plane_bytes(format_, dim_, 0),
              plane(1) + i * plane_bytes(format_, dim_, 1)}},
            meta() + i,
            count_};
  }
  ConstVectorSlot const_slot(std::uint32_t i) { return as_const(slot(i)); }

  std::uint8_t* plane(std::uint32_t p) { return plane_[p].data() + kGuard; }
  std::uint16_t* meta() { return meta_.data() + kGuard; }

  // Nothing was written before or behind the arrays.
  bool guards_intact() const {
    bool intact = true;
    for (std::size_t i = 0; i < kGuard; ++i) {
      for (const auto& p : plane_) intact = intact && p[i] == kByte && p[p.size() - 1 - i] == kByte;
      intact = intact && meta_[i] == kWord && meta_[meta_.size() - 1 - i] == kWord;
    }
    return intact;
  }

  // Still as it was made.
  bool untouched() const {
    bool same = true;
    for (const auto& p : plane_) {
      for (const std::uint8_t byte : p) same = same && byte == kByte;
    }
    for (const std::uint16_t word : meta_) same = same && word == kWord;
    return same;
  }

  bool operator==(const CodedRows& other) const {
    return plane_[0] == other.plane_[0] && plane_[1] == other.plane_[1] && meta_ == other.meta_;
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::uint8_t kByte = 0xa5;
  static constexpr std::uint16_t kWord = 0xa5a5;

  VectorFormat format_;
  std::uint32_t dim_;
  std::uint32_t count_;
  std::vector<std::uint8_t> plane_[2];
  std::vector<std::uint16_t> meta_;
};

}  // namespace quire::test
