#include "tokenizer.hpp"

#include <queue>

#include "unicode.hpp"

namespace smol {
namespace {

// GPT-2 writes bytes as printable code points: printable ones as they are, the rest from 256 on.
struct ByteAlphabet {
  std::string text[256];  // UTF-8 of each byte's code point
  std::unordered_map<uint32_t, unsigned char> byte_of;
};

std::string utf8(uint32_t code) {
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

ByteAlphabet make_alphabet() {
  ByteAlphabet alphabet;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const uint32_t code = printable ? byte : next++;
    alphabet.text[byte] = utf8(code);
    alphabet.byte_of[code] = static_cast<unsigned char>(byte);
  }
  return alphabet;
}

// Length in code points of a contraction ('s 't 're 've 'm 'll 'd) at i, or 0.
std::size_t contraction(const std::vector<CodePoint>& c, std::size_t i, std::size_t end) {
  if (c[i].code != '\'' || i + 1 >= end) return 0;
  const uint32_t a = c[i + 1].code;
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if (i + 2 >= end) return 0;
  const uint32_t b = c[i + 2].code;
  const bool two = (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l');
  return two ? 3 : 0;
}

enum class Class { kLetter, kNumber, kSpace, kOther };

Class class_of(uint32_t code) {
  if (code == kBadByte) return Class::kOther;
  if (is_letter(code)) return Class::kLetter;
  if (is_number(code)) return Class::kNumber;
  return is_space(code) ? Class::kSpace : Class::kOther;
}

// End of the piece that starts at i, in code points; `end` is the end of the digit-free stretch.
std::size_t piece_end(const std::vector<CodePoint>& c, std::size_t i, std::size_t end) {
  const std::size_t short_form = contraction(c, i, end);
  if (short_form > 0) return i + short_form;
  // One leading blank may belong to a run of letters, numbers or other signs.
  const std::size_t start = c[i].code == ' ' && i + 1 < end ? i + 1 : i;
  const Class kind = class_of(c[start].code);
  if (kind != Class::kSpace) {
    std::size_t j = start;
    while (j < end && class_of(c[j].code) == kind) ++j;
    return j;
  }
  std::size_t j = i;
  while (j < end && class_of(c[j].code) == Class::kSpace) ++j;
  // A run of spaces leaves its last one to the word behind it.
  return j < end && j - i > 1 ? j - 1 : j;
}

}  // namespace

std::vector<std::string> split_pieces(const std::string& text) {
  const std::vector<CodePoint> c = decode_utf8(text);
  std::vector<std::string> pieces;
  const auto add = [&](std::size_t from, std::size_t to) {
    const uint32_t first = c[from].offset;
    const uint32_t last = c[to - 1].offset + c[to - 1].length;
    pieces.push_back(text.substr(first, last - first));
  };
  for (std::size_t i = 0; i < c.size();) {
    std::size_t end = i;
    while (end < c.size() && class_of(c[end].code) != Class::kNumber) ++end;
    while (i < end) {
      const std::size_t next = piece_end(c, i, end);
      add(i, next);
      i = next;
    }
    if (i < c.size()) {
      add(i, i + 1);
      ++i;
    }
  }
  return pieces;
}

std::string Tokenizer::load(const GgufFile& file) {
  const GgufValue* tokens = file.find_value("tokenizer.ggml.tokens");
  const GgufValue* merges = file.find_value("tokenizer.ggml.merges");
  if (tokens == nullptr || tokens->texts.empty()) return file.name() + ": no tokenizer.ggml.tokens";
  if (merges == nullptr || merges->texts.empty())
    return file.name() + ": no tokenizer.ggml.merges (no byte-level BPE?)";
  // Another splitting rule would give other ids without a complaint.
  const GgufValue* rule = file.find_value("tokenizer.ggml.pre");
  if (rule != nullptr && rule->text != "smollm") {
    return file.name() + ": splitting rule " + quoted(rule->text) +
           ", but this tokenizer has 'smollm' only";
  }
  const std::string problem = load(tokens->texts, merges->texts);
  return problem.empty() ? "" : file.name() + ": " + problem;
}

std::string Tokenizer::load(const std::vector<std::string>& tokens,
                            const std::vector<std::string>& merges) {
  tokens_ = tokens;
  merges_.clear();
  std::unordered_map<std::string, int32_t> id_of;
  for (std::size_t i = 0; i < tokens.size(); ++i) id_of.emplace(tokens[i], static_cast<int32_t>(i));
  const auto id = [&](const std::string& token) {
    const auto found = id_of.find(token);
    return found == id_of.end() ? -1 : found->second;
  };
  const ByteAlphabet alphabet = make_alphabet();
  for (uint32_t byte = 0; byte < 256; ++byte) byte_ids_[byte] = id(alphabet.text[byte]);
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::size_t blank = merges[rank].find(' ');
    if (blank == std::string::npos) return "merge " + std::to_string(rank) + " is no pair";
    const std::string left = merges[rank].substr(0, blank);
    const std::string right = merges[rank].substr(blank + 1);
    const int32_t ids[3] = {id(left), id(right), id(left + right)};
    if (ids[0] < 0 || ids[1] < 0 || ids[2] < 0)
      return "merge " + std::to_string(rank) + " is not in the vocabulary";
    const uint64_t key = (static_cast<uint64_t>(ids[0]) << 32) | static_cast<uint32_t>(ids[1]);
    merges_.emplace(key, Merge{static_cast<uint32_t>(rank), ids[2]});
  }
  return "";
}

const Tokenizer::Merge* Tokenizer::find_merge(int32_t left, int32_t right) const {
  if (left < 0 || right < 0) return nullptr;
  const auto found =
      merges_.find((static_cast<uint64_t>(left) << 32) | static_cast<uint32_t>(right));
  return found == merges_.end() ? nullptr : &found->second;
}

// Lowest rank first, leftmost among equals; a linked list of symbols and a queue of pairs, so that
// a long piece takes n log n steps.
void Tokenizer::encode_piece(const std::string& bytes, std::vector<int32_t>* out) const {
  struct Symbol {
    int32_t id;
    int32_t before;
    int32_t after;
  };
  struct Pair {
    uint32_t rank;
    int32_t left;
    int32_t left_id;
    int32_t right_id;
    bool operator<(const Pair& o) const { return rank != o.rank ? rank > o.rank : left > o.left; }
  };
  // A byte without a token is left out before its neighbours merge, as in the original tokenizer.
  std::vector<Symbol> symbols;
  symbols.reserve(bytes.size());
  for (const char byte : bytes) {
    const int32_t id = byte_ids_[static_cast<unsigned char>(byte)];
    const auto i = static_cast<int32_t>(symbols.size());
    if (id >= 0) symbols.push_back({id, i - 1, i + 1});
  }
  const auto count = static_cast<int32_t>(symbols.size());
  if (count == 0) return;
  symbols.back().after = -1;
  std::priority_queue<Pair> queue;
  const auto at = [&](int32_t i) -> Symbol& { return symbols[static_cast<std::size_t>(i)]; };
  const auto push = [&](int32_t left) {
    if (left < 0 || at(left).after < 0) return;
    const int32_t right_id = at(at(left).after).id;
    if (const Merge* merge = find_merge(at(left).id, right_id))
      queue.push({merge->rank, left, at(left).id, right_id});
  };
  for (int32_t i = 0; i + 1 < count; ++i) push(i);
  while (!queue.empty()) {
    const Pair pair = queue.top();
    queue.pop();
    Symbol& left = at(pair.left);
    if (left.id != pair.left_id || left.after < 0 || at(left.after).id != pair.right_id)
      continue;  // outdated
    const int32_t gone = left.after;
    left.id = find_merge(pair.left_id, pair.right_id)->id;
    left.after = at(gone).after;
    at(gone).id = -1;
    if (left.after >= 0) at(left.after).before = pair.left;
    push(pair.left);
    push(left.before);
  }
  for (int32_t i = 0; i >= 0; i = at(i).after) out->push_back(at(i).id);
}

std::vector<int32_t> Tokenizer::encode(const std::string& text) const {
  std::vector<int32_t> ids;
  for (const std::string& piece : split_pieces(text)) encode_piece(piece, &ids);
  return ids;
}

std::string Tokenizer::decode(const std::vector<int32_t>& ids) const {
  static const ByteAlphabet alphabet = make_alphabet();
  std::string out;
  for (const int32_t id : ids) {
    if (id < 0 || static_cast<std::size_t>(id) >= tokens_.size()) continue;
    for (const CodePoint& c : decode_utf8(tokens_[static_cast<std::size_t>(id)])) {
      const auto found = alphabet.byte_of.find(c.code);
      if (found != alphabet.byte_of.end()) out += static_cast<char>(found->second);
    }
  }
  return out;
}

}  // namespace smol
