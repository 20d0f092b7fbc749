// Byte-level BPE as in GPT-2, with every digit a piece of its own (SmolLM2).
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "gguf.hpp"

namespace smol {

class Tokenizer {
 public:
  // Reads tokenizer.ggml.tokens and tokenizer.ggml.merges. Empty string, or what is wrong.
  std::string load(const GgufFile& file);
  // The same from lists; a merge is "left right".
  std::string load(const std::vector<std::string>& tokens, const std::vector<std::string>& merges);

  std::vector<int32_t> encode(const std::string& text) const;
  std::string decode(const std::vector<int32_t>& ids) const;
  uint32_t size() const { return static_cast<uint32_t>(tokens_.size()); }

 private:
  struct Merge {
    uint32_t rank;
    int32_t id;
  };
  void encode_piece(const std::string& bytes, std::vector<int32_t>* out) const;
  const Merge* find_merge(int32_t left, int32_t right) const;

  std::vector<std::string> tokens_;
  std::unordered_map<uint64_t, Merge> merges_;
  int32_t byte_ids_[256] = {};
};

// Text to the pieces that are merged on their own; exposed for tests.
std::vector<std::string> split_pieces(const std::string& text);

}  // namespace smol
