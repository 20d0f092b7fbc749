// The tile size that all loops over tokens share.
#pragma once

#include <cstdint>

namespace quire::cpu {

// Tokens worked on at once: tile buffers of K and V stay in the first-level cache up to D = 128,
// and staged logits have one maximum per tile.
inline constexpr std::uint32_t kTileTokens = 64;

}  // namespace quire::cpu
