#include "gguf_types.hpp"

#include <cstring>

#include "half.hpp"

namespace smol {
namespace {

float half_at(const uint8_t* bytes) {
  uint16_t half;
  std::memcpy(&half, bytes, sizeof(half));
  return half_to_float(half);
}

void decode_f32(const uint8_t* block, float* out) { std::memcpy(out, block, sizeof(float)); }

void decode_f16(const uint8_t* block, float* out) { *out = half_at(block); }

// 32 values: fp16 scale, 32 signed bytes.
void decode_q8_0(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  for (int i = 0; i < 32; ++i)
    out[i] = scale * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

// 32 values: fp16 scale, 16 bytes of nibbles (low: values 0..15, high: 16..31), centred at 8.
void decode_q4_0(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>((block[2 + i] & 15) - 8);
    out[i + 16] = scale * static_cast<float>((block[2 + i] >> 4) - 8);
  }
}

// The same with an fp16 minimum instead of the centre.
void decode_q4_1(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  const float minimum = half_at(block + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>(block[4 + i] & 15) + minimum;
    out[i + 16] = scale * static_cast<float>(block[4 + i] >> 4) + minimum;
  }
}

constexpr BlockType kTypes[] = {
    {0, 1, 4, decode_f32},
    {1, 1, 2, decode_f16},
    {2, 32, 18, decode_q4_0},
    {3, 32, 20, decode_q4_1},
    {8, 32, 34, decode_q8_0},
};

}  // namespace

const BlockType* find_block_type(uint32_t id) {
  for (const BlockType& type : kTypes) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

}  // namespace smol
