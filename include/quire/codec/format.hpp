// What a format is: (grid, bits, group, transform) for K and for V, as plain data.
#pragma once

#include <cstdint>

#include "quire/codec/int_list.hpp"
#include "quire/core/config.hpp"
#include "quire/core/status.hpp"
#include "quire/core/types.hpp"

namespace quire {

// Numbers are part of the format id and never reused.
enum class Grid : std::uint32_t {
  kF16 = 1,               // IEEE half, no metadata
  kBf16 = 2,              // bfloat16, no metadata
  kAffine = 3,            // code * scale + zero, both fp16; bits 8, 6, 4, 3, 2
  kSymmetricUniform = 4,  // scale * step * (code - (2^bits - 1) / 2); bits 6, 4, 3, 2
  kSymmetricTable = 5,    // scale * Lloyd-Max level of a unit normal; bits 4, 3, 2
};

// What is done to a vector before the grid, and to q or the output in return. A bit set.
enum Transform : std::uint32_t {
  kTransformNone = 0,
  kTransformHadamard = 1,  // random signs, then Hadamard blocks, orthonormal
  kTransformOffset = 2,    // one vector per KV head is subtracted first
};

struct VectorFormat {
  Grid grid = Grid::kF16;
  std::uint32_t bits = 16;
  std::uint32_t group = 0;  // elements that share metadata: 64, 32, or 0 for the whole head
  std::uint32_t transform = kTransformNone;

  QUIRE_HD constexpr bool is_float() const { return grid == Grid::kF16 || grid == Grid::kBf16; }
  QUIRE_HD constexpr bool is_symmetric() const {
    return grid == Grid::kSymmetricUniform || grid == Grid::kSymmetricTable;
  }
  // Same codes and metadata for the same transformed vector.
  QUIRE_HD constexpr bool same_coding(const VectorFormat& other) const {
    return grid == other.grid && bits == other.bits && group == other.group;
  }
};

struct Format {
  VectorFormat k;
  VectorFormat v;
};

QUIRE_HD constexpr std::uint32_t group_size(const VectorFormat& format, std::uint32_t dim) {
  return format.group == 0 ? dim : format.group;
}

QUIRE_HD constexpr std::uint32_t group_count(const VectorFormat& format, std::uint32_t dim) {
  return format.is_float() ? 0 : dim / group_size(format, dim);
}

// fp16 numbers of metadata per group: scale and zero, or scale alone.
QUIRE_HD constexpr std::uint32_t meta_per_group(const VectorFormat& format) {
  return format.is_float() ? 0 : (format.grid == Grid::kAffine ? 2 : 1);
}

// fp16 numbers of metadata per vector. Number g * meta_per_group is the scale of group g.
QUIRE_HD constexpr std::uint32_t meta_count(const VectorFormat& format, std::uint32_t dim) {
  return group_count(format, dim) * meta_per_group(format);
}

inline constexpr std::uint32_t kMaxMetaCount = 2 * kMaxHeadDim / 32;

// Bytes of one token's row in plane 0 or 1; 16-bit formats have one plane of 16 bits.
QUIRE_HD constexpr std::uint32_t plane_bytes(const VectorFormat& format,
                                             std::uint32_t dim,
                                             std::uint32_t plane) {
  if (format.is_float()) return plane == 0 ? dim * 2 : 0;
  return plane_row_bytes(dim, int_plane_bits(format.bits, plane));
}

QUIRE_HD constexpr std::uint32_t code_bytes(const VectorFormat& format, std::uint32_t dim) {
  return plane_bytes(format, dim, 0) + plane_bytes(format, dim, 1);
}

// Codes and metadata of one vector, without score, position or padding.
QUIRE_HD constexpr std::uint32_t vector_bytes(const VectorFormat& format, std::uint32_t dim) {
  return code_bytes(format, dim) + 2 * meta_count(format, dim);
}

QUIRE_HD constexpr bool valid_head_dim(std::uint32_t dim) {
  return dim >= kMinHeadDim && dim <= kMaxHeadDim && dim % kHeadDimStep == 0;
}

QUIRE_HD constexpr bool valid_bits(Grid grid, std::uint32_t bits) {
  switch (grid) {
    case Grid::kF16:
    case Grid::kBf16: return bits == 16;
    case Grid::kAffine: return bits == 8 || bits == 6 || bits == 4 || bits == 3 || bits == 2;
    case Grid::kSymmetricUniform: return bits == 6 || bits == 4 || bits == 3 || bits == 2;
    case Grid::kSymmetricTable: return bits == 4 || bits == 3 || bits == 2;
  }
  return false;
}

// Field names are those of quire_vector_format.
QUIRE_HD constexpr Status check_format(const VectorFormat& format, std::uint32_t dim) {
  const auto grid = static_cast<std::uint32_t>(format.grid);
  if (grid < 1 || grid > 5) return invalid("grid", "a quire_grid from 1 to 5", 5, grid);
  if (!valid_bits(format.grid, format.bits)) {
    return invalid(
        "bits",
        "16 for f16 and bf16; 8, 6, 4, 3, 2 affine; 6, 4, 3, 2 symmetric uniform; 4, 3, 2 table",
        0,
        format.bits);
  }
  if (format.is_float() ? format.group != 0
                        : (format.group != 0 && format.group != 32 && format.group != 64)) {
    return invalid("group", "0 (whole head), 32 or 64; 0 for 16-bit grids", 0, format.group);
  }
  if (!format.is_float() && dim % group_size(format, dim) != 0) {
    return invalid("group", "a divisor of the head dim", dim, format.group);
  }
  if (format.transform > (kTransformHadamard | kTransformOffset)) {
    return invalid("transform", "a bit set of hadamard 1 and offset 2", 3, format.transform);
  }
  return ok_status();
}

// Stable identity of a vector format: what must agree before codes are exchanged.
QUIRE_HD constexpr std::uint32_t format_id(const VectorFormat& format) {
  return static_cast<std::uint32_t>(format.grid) | (format.bits << 4) | (format.group << 12) |
         (format.transform << 24);
}

QUIRE_HD constexpr std::uint64_t format_id(const Format& format) {
  return (static_cast<std::uint64_t>(format_id(format.k)) << 32) | format_id(format.v);
}

}  // namespace quire
