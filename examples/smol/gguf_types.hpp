// Block types of GGUF tensors that the engine reads.
#pragma once

#include <cstdint>

namespace smol {

struct BlockType {
  uint32_t id;
  uint32_t elements;  // per block
  uint32_t bytes;
  void (*decode)(const uint8_t* block, float* out);
};

// nullptr for types that are not supported.
const BlockType* find_block_type(uint32_t id);

}  // namespace smol
