// Formats as data: what exists, what it costs, what is refused. Oracle: the table of widths in
// quire.h and design section 5 written out here, and bytes counted in bits.
#include "quire/codec/format.hpp"

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "quire/quire.h"
#include "support/catch.hpp"
#include "support/codec_check.hpp"
#include "support/codec_rows.hpp"

namespace quire {
namespace {

// Widths that a grid number has; nothing for numbers that are no grid.
std::set<std::uint32_t> widths_of(std::uint32_t grid) {
  switch (grid) {
    case 1:
    case 2: return {16};
    case 3: return {8, 6, 4, 3, 2};
    case 4: return {6, 4, 3, 2};
    case 5: return {4, 3, 2};
    default: return {};
  }
}

// The field that is wrong, or "" for a legal format.
std::string wrong_field(const VectorFormat& f, std::uint32_t dim) {
  const auto grid = static_cast<std::uint32_t>(f.grid);
  if (grid < 1 || grid > 5) return "grid";
  if (widths_of(grid).count(f.bits) == 0) return "bits";
  const bool sixteen = grid <= 2;
  if (sixteen && f.group != 0) return "group";
  if (f.group != 0 && f.group != 32 && f.group != 64) return "group";
  if (f.group != 0 && dim % f.group != 0) return "group";
  if (f.transform > 3) return "transform";
  return "";
}

TEST_CASE("exactly the formats of the table are accepted, and the wrong field is named",
          "[codec][format]") {
  test::FirstFailure failures;
  for (const std::uint32_t dim : test::kHeadDims) {
    for (std::uint32_t grid = 0; grid <= 7; ++grid) {
      for (std::uint32_t bits = 0; bits <= 33; ++bits) {
        for (const std::uint32_t group : {0u, 1u, 16u, 31u, 32u, 48u, 64u, 128u, 256u, ~0u}) {
          for (const std::uint32_t transform : {0u, 1u, 2u, 3u, 4u, 8u, ~0u}) {
            const VectorFormat f = {static_cast<Grid>(grid), bits, group, transform};
            const std::string expected = wrong_field(f, dim);
            const Status status = check_format(f, dim);
            const bool same = status.ok() == expected.empty() && expected == status.field;
            const bool code = status.ok() || status.code == StatusCode::kInvalidArgument;
            failures.check(same && code,
                           test::describe({Grid::kAffine, bits, group, transform}),
                           " grid ",
                           grid,
                           " dim ",
                           dim,
                           " named ",
                           status.field);
          }
        }
      }
    }
  }
  INFO(failures.describe());
  REQUIRE(failures.none());
}

TEST_CASE("a refused format tells the range and the given number", "[codec][format]") {
  const struct {
    VectorFormat format;
    std::uint64_t given;
    const char* in_rule;
  } cases[] = {
      {{static_cast<Grid>(9), 4, 0, 0}, 9, "1 to 5"},
      {{Grid::kAffine, 5, 0, 0}, 5, "8, 6, 4, 3, 2 affine"},
      {{Grid::kSymmetricUniform, 8, 0, 0}, 8, "6, 4, 3, 2 symmetric uniform"},
      {{Grid::kSymmetricTable, 6, 0, 0}, 6, "4, 3, 2 table"},
      {{Grid::kF16, 8, 0, 0}, 8, "16 for f16"},
      {{Grid::kF16, 16, 32, 0}, 32, "0 for 16-bit"},
      {{Grid::kAffine, 4, 16, 0}, 16, "32 or 64"},
      {{Grid::kAffine, 4, 64, 0}, 64, "divisor"},  // of 80
      {{Grid::kAffine, 4, 0, 4}, 4, "hadamard 1 and offset 2"},
  };
  for (const auto& c : cases) {
    const Status status = check_format(c.format, 80);
    INFO(status.field << ": " << status.rule);
    REQUIRE_FALSE(status.ok());
    REQUIRE(status.given == c.given);
    REQUIRE(std::strstr(status.rule, c.in_rule) != nullptr);
  }
}

TEST_CASE("head dims are multiples of 16 from 16 to 256", "[codec][format]") {
  std::set<std::uint32_t> legal;
  for (std::uint32_t dim = 16; dim <= 256; dim += 16) legal.insert(dim);
  for (std::uint32_t dim = 0; dim <= 600; ++dim) {
    INFO("dim " << dim);
    REQUIRE(valid_head_dim(dim) == (legal.count(dim) != 0));
  }
  REQUIRE_FALSE(valid_head_dim(~0u));
}

TEST_CASE("bytes of codes and metadata are the bits counted", "[codec][format]") {
  for (std::uint32_t dim = 16; dim <= 256; dim += 16) {
    for (const VectorFormat& f : test::formats_of(dim)) {
      INFO(test::describe(f) << " dim " << dim);
      const bool sixteen = f.bits == 16;
      REQUIRE(code_bytes(f, dim) * 8 == dim * f.bits);
      REQUIRE(plane_bytes(f, dim, 0) + plane_bytes(f, dim, 1) == code_bytes(f, dim));
      const bool two_planes = f.bits == 6 || f.bits == 3;
      REQUIRE((plane_bytes(f, dim, 1) != 0) == two_planes);
      if (f.bits == 6) REQUIRE(plane_bytes(f, dim, 0) * 8 == dim * 4);
      if (f.bits == 3) REQUIRE(plane_bytes(f, dim, 0) * 8 == dim * 2);
      const std::uint32_t groups = sixteen ? 0 : (f.group == 0 ? 1 : dim / f.group);
      const std::uint32_t per_group = f.grid == Grid::kAffine ? 2 : (sixteen ? 0 : 1);
      REQUIRE(group_count(f, dim) == groups);
      REQUIRE(meta_per_group(f) == per_group);
      REQUIRE(meta_count(f, dim) == groups * per_group);
      REQUIRE(meta_count(f, dim) <= kMaxMetaCount);
      REQUIRE(vector_bytes(f, dim) == dim * f.bits / 8 + 2 * groups * per_group);
      if (!sixteen) REQUIRE(group_size(f, dim) * groups == dim);
    }
  }
}

TEST_CASE("published bytes per vector at head dim 128", "[codec][format]") {
  const auto bytes = [](Grid grid, std::uint32_t bits, std::uint32_t group) {
    return vector_bytes({grid, bits, group, 0}, 128);
  };
  REQUIRE(bytes(Grid::kF16, 16, 0) == 256);
  REQUIRE(bytes(Grid::kAffine, 8, 0) == 132);
  REQUIRE(bytes(Grid::kAffine, 4, 0) == 68);
  REQUIRE(bytes(Grid::kAffine, 2, 0) == 36);
  REQUIRE(bytes(Grid::kAffine, 4, 32) == 80);
  REQUIRE(bytes(Grid::kAffine, 2, 32) == 48);
  REQUIRE(bytes(Grid::kSymmetricTable, 4, 0) == 66);
  REQUIRE(bytes(Grid::kSymmetricTable, 3, 0) == 50);
  REQUIRE(bytes(Grid::kSymmetricTable, 2, 0) == 34);
  REQUIRE(bytes(Grid::kSymmetricUniform, 6, 0) == 98);
}

TEST_CASE("every format has an id of its own, and ids never change", "[codec][format]") {
  std::set<std::uint32_t> ids;
  std::size_t formats = 0;
  for (const VectorFormat& plain : test::formats_of(192)) {
    for (std::uint32_t transform = 0; transform < 4; ++transform, ++formats) {
      VectorFormat f = plain;
      f.transform = transform;
      ids.insert(format_id(f));
    }
  }
  REQUIRE(ids.size() == formats);
  // grid, bits << 4, group << 12, transform << 24
  REQUIRE(format_id(VectorFormat{Grid::kAffine, 8, 0, 0}) == 0x83u);
  REQUIRE(format_id(VectorFormat{Grid::kSymmetricTable, 3, 64, 3}) == 0x3040035u);
  REQUIRE(format_id(VectorFormat{Grid::kF16, 16, 0, 1}) == 0x1000101u);
  const Format both = {{Grid::kAffine, 8, 0, 0}, {Grid::kAffine, 4, 32, 0}};
  REQUIRE(format_id(both) == 0x0000008300020043u);
}

TEST_CASE("coding is the same when grid, bits and group are", "[codec][format]") {
  const std::vector<VectorFormat> all = test::formats_of(64);
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < all.size(); ++j) {
      VectorFormat other = all[j];
      other.transform = kTransformHadamard;
      REQUIRE(all[i].same_coding(other) == (i == j));
    }
  }
}

TEST_CASE("grids and transforms have the numbers of the C header", "[codec][format]") {
  REQUIRE(static_cast<int>(Grid::kF16) == QUIRE_GRID_F16);
  REQUIRE(static_cast<int>(Grid::kBf16) == QUIRE_GRID_BF16);
  REQUIRE(static_cast<int>(Grid::kAffine) == QUIRE_GRID_AFFINE);
  REQUIRE(static_cast<int>(Grid::kSymmetricUniform) == QUIRE_GRID_SYMMETRIC_UNIFORM);
  REQUIRE(static_cast<int>(Grid::kSymmetricTable) == QUIRE_GRID_SYMMETRIC_TABLE);
  REQUIRE(static_cast<int>(kTransformNone) == QUIRE_TRANSFORM_NONE);
  REQUIRE(static_cast<int>(kTransformHadamard) == QUIRE_TRANSFORM_HADAMARD);
  REQUIRE(static_cast<int>(kTransformOffset) == QUIRE_TRANSFORM_OFFSET);
  REQUIRE(static_cast<int>(DType::kF32) == QUIRE_F32);
  REQUIRE(static_cast<int>(DType::kF16) == QUIRE_F16);
  REQUIRE(static_cast<int>(DType::kBf16) == QUIRE_BF16);
}

}  // namespace
}  // namespace quire
