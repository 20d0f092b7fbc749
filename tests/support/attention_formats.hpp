// Every vector format there is, and heads that walk through all of them.
#pragma once

#include <vector>

#include "support/attention_head.hpp"

namespace quire::test {

// (grid, bits, group) of every kind, without transforms: 38 formats.
inline std::vector<VectorFormat> all_vector_formats() {
  std::vector<VectorFormat> all = {float_format(Grid::kF16), float_format(Grid::kBf16)};
  for (const Grid grid : {Grid::kAffine, Grid::kSymmetricUniform, Grid::kSymmetricTable}) {
    for (const std::uint32_t bits : {8u, 6u, 4u, 3u, 2u}) {
      if (!valid_bits(grid, bits)) continue;
      for (const std::uint32_t group : {0u, 32u, 64u}) all.push_back({grid, bits, group, 0});
    }
  }
  return all;
}

// The format, or the one of the whole head where the group does not divide the head dim.
inline VectorFormat fitting(VectorFormat format, std::uint32_t dim) {
  if (format.group != 0 && dim % format.group != 0) format.group = 0;
  return format;
}

inline Format ring_format(std::uint32_t kind, const Format& high) {
  switch (kind % 4) {
    case 0: return {float_format(Grid::kF16), float_format(Grid::kF16)};
    case 1: return {float_format(Grid::kBf16), float_format(Grid::kBf16)};
    case 2: return {{Grid::kAffine, 8, 0, 0}, {Grid::kAffine, 8, 0, 0}};
    default: return high;
  }
}

// Head number `index` of a walk through formats of both tiers, rings, transforms, ring shapes and
// mixtures of high, low, ring and dropped tokens. The strides have no common divisor with the
// counts, so that every pair of neighbours changes in everything.
inline HeadSpec walk_spec(std::uint32_t index,
                          std::uint32_t dim_k,
                          std::uint32_t dim_v,
                          std::int32_t length) {
  static const std::vector<VectorFormat> formats = all_vector_formats();
  const auto count = static_cast<std::uint32_t>(formats.size());
  HeadSpec spec;
  spec.dim_k = dim_k;
  spec.dim_v = dim_v;
  spec.length = length;
  spec.seed = index;
  const std::uint32_t k_transform = index % 4;
  const std::uint32_t v_transform = index / 4 % 4;
  for (std::uint32_t t = 0; t < 2; ++t) {
    const Format format = {fitting(formats[(5 * index + 17 * t) % count], dim_k),
                           fitting(formats[(7 * index + 3 + 11 * t) % count], dim_v)};
    spec.tier[t] = with_transforms(format, k_transform, v_transform);
  }
  spec.ring = ring_format(index / 3, spec.tier[0]);
  const std::uint32_t sinks[] = {0, 1, 4};
  const std::uint32_t windows[] = {0, 16, 48, 64, 129};
  spec.sinks = sinks[index % 3];
  spec.window = windows[index / 2 % 5];
  spec.draft = index % 7;
  spec.has_ring = index % 11 != 0 && spec.sinks + spec.window > 0;
  const std::uint32_t outside =
      spec.has_ring ? outside_ring(spec) : static_cast<std::uint32_t>(length);
  switch (index % 6) {
    case 0: spec.tokens[0] = outside; break;
    case 1: spec.tokens[1] = outside; break;
    case 2: spec.tokens[0] = outside / 2, spec.tokens[1] = outside - outside / 2; break;
    case 3: spec.tokens[0] = outside / 3, spec.tokens[1] = outside / 3; break;  // the rest dropped
    case 4: spec.tokens[0] = outside - outside / 16, spec.tokens[1] = outside / 16; break;
    default: spec.tokens[0] = outside / 8, spec.tokens[1] = outside - outside / 8;
  }
  return spec;
}

}  // namespace quire::test
