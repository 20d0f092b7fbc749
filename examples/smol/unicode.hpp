// The little of Unicode that the tokenizer's splitting rule needs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace smol {

bool is_letter(uint32_t code);
bool is_number(uint32_t code);
bool is_space(uint32_t code);

// A code point and where its bytes lie. A byte that is no part of valid UTF-8 is a code point of
// its own, kBadByte: neither letter nor number nor space.
struct CodePoint {
  uint32_t code;
  uint32_t offset;
  uint32_t length;
};
inline constexpr uint32_t kBadByte = 0xffffffffu;

std::vector<CodePoint> decode_utf8(const std::string& text);

}  // namespace smol
