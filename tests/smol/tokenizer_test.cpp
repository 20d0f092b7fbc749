// Oracles: pieces worked out by hand from the splitting rule; byte pair encoding done the slow way
// (look for the lowest rank, merge the leftmost pair, start again).
#include "tokenizer.hpp"

#include <algorithm>
#include <string>

#include "gguf_builder.hpp"
#include "support/catch.hpp"
#include "support/gen.hpp"

namespace smol::test {
namespace {

using Pieces = std::vector<std::string>;

std::string utf8_of(uint32_t code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

// GPT-2's printable stand-ins of the 256 bytes.
Pieces byte_tokens() {
  Pieces tokens;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool hidden = byte < 33 || (byte > 126 && byte < 161) || byte == 173;
    tokens.push_back(utf8_of(hidden ? next++ : byte));
  }
  return tokens;
}

struct Vocabulary {
  Pieces tokens;
  Pieces merges;

  void merge(const std::string& left, const std::string& right) {
    merges.push_back(left + " " + right);
    if (std::find(tokens.begin(), tokens.end(), left + right) == tokens.end())
      tokens.push_back(left + right);
  }
};

// Some merges over the letters a, b and c.
Vocabulary random_vocabulary(quire::test::Rng& rng) {
  Vocabulary v = {byte_tokens(), {}};
  Pieces parts = {"a", "b", "c"};
  while (parts.size() < 30) {
    const std::string left = parts[rng.below(static_cast<uint32_t>(parts.size()))];
    const std::string right = parts[rng.below(static_cast<uint32_t>(parts.size()))];
    const std::string pair = left + " " + right;
    if (std::find(v.merges.begin(), v.merges.end(), pair) != v.merges.end()) continue;
    v.merge(left, right);
    parts.push_back(left + right);
  }
  return v;
}

Pieces slow_merge(const Vocabulary& v, const std::string& text) {
  Pieces parts;
  for (const char c : text) parts.emplace_back(1, c);
  for (;;) {
    std::size_t best = v.merges.size();
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = std::find(v.merges.begin(), v.merges.end(), parts[i] + " " + parts[i + 1]);
      const auto rank = static_cast<std::size_t>(found - v.merges.begin());
      if (rank >= best) continue;
      best = rank;
      at = i;
    }
    if (best == v.merges.size()) return parts;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

std::vector<int32_t> ids_of(const Vocabulary& v, const Pieces& parts) {
  std::vector<int32_t> ids;
  for (const std::string& part : parts) {
    const auto found = std::find(v.tokens.begin(), v.tokens.end(), part);
    ids.push_back(static_cast<int32_t>(found - v.tokens.begin()));
  }
  return ids;
}

// A file that holds no more than a tokenizer; empty lists and an empty rule are left out.
std::string load_file(const Vocabulary& v, const std::string& rule, Tokenizer* tokenizer) {
  GgufBuilder b;
  if (!v.tokens.empty()) b.texts("tokenizer.ggml.tokens", v.tokens);
  if (!v.merges.empty()) b.texts("tokenizer.ggml.merges", v.merges);
  if (!rule.empty()) b.text("tokenizer.ggml.pre", rule);
  GgufFile file;
  REQUIRE(file.parse(b.build(), "t.gguf") == "");
  return tokenizer->load(file);
}

}  // namespace

TEST_CASE("words take one blank, digits stand alone", "[smol][tokenizer]") {
  CHECK(split_pieces("") == Pieces{});
  CHECK(split_pieces("Hello world") == Pieces{"Hello", " world"});
  CHECK(split_pieces("in 2019.") == Pieces{"in", " ", "2", "0", "1", "9", "."});
  CHECK(split_pieces("a1b 22") == Pieces{"a", "1", "b", " ", "2", "2"});
  CHECK(split_pieces("x=-1;") == Pieces{"x", "=-", "1", ";"});
  CHECK(split_pieces("wait... what?!") == Pieces{"wait", "...", " what", "?!"});
  CHECK(split_pieces(" (a)") == Pieces{" (", "a", ")"});
}

TEST_CASE("contractions are pieces, in lower case only", "[smol][tokenizer]") {
  CHECK(split_pieces("don't we've I'll") == Pieces{"don", "'t", " we", "'ve", " I", "'ll"});
  CHECK(split_pieces("he'd I'm it's they're") ==
        Pieces{"he", "'d", " I", "'m", " it", "'s", " they", "'re"});
  CHECK(split_pieces("IT'S") == Pieces{"IT", "'", "S"});
  CHECK(split_pieces("'sss") == Pieces{"'s", "ss"});
  CHECK(split_pieces("a ' b") == Pieces{"a", " '", " b"});
  CHECK(split_pieces("''s") == Pieces{"''", "s"});
  CHECK(split_pieces("'r'v'l") == Pieces{"'", "r", "'", "v", "'", "l"});
}

TEST_CASE("a run of blanks leaves its last one to the next word", "[smol][tokenizer]") {
  CHECK(split_pieces("a   b") == Pieces{"a", "  ", " b"});
  CHECK(split_pieces("a  ") == Pieces{"a", "  "});
  CHECK(split_pieces("a\n\n\nb") == Pieces{"a", "\n\n", "\n", "b"});
  CHECK(split_pieces("a\n b") == Pieces{"a", "\n", " b"});
  CHECK(split_pieces("a\tb") == Pieces{"a", "\t", "b"});
  CHECK(split_pieces("  7") == Pieces{"  ", "7"});
  CHECK(split_pieces("\xc2\xa0\xc2\xa0x") == Pieces{"\xc2\xa0", "\xc2\xa0", "x"});
  CHECK(split_pieces(" ") == Pieces{" "});
}

TEST_CASE("scripts, marks and emoji split by class", "[smol][tokenizer]") {
  CHECK(split_pieces("e\xcc\x81t") == Pieces{"e", "\xcc\x81", "t"});  // combining acute
  CHECK(split_pieces("\xe6\xbc\xa2\xe5\xad\x97 a") == Pieces{"\xe6\xbc\xa2\xe5\xad\x97", " a"});
  CHECK(split_pieces("\xc2\xbd\xe2\x85\xa7") == Pieces{"\xc2\xbd", "\xe2\x85\xa7"});  // numbers
  CHECK(split_pieces("hi\xf0\x9f\x99\x82!") == Pieces{"hi", "\xf0\x9f\x99\x82!"});
  CHECK(split_pieces("<|im_start|>") == Pieces{"<|", "im", "_", "start", "|>"});
  CHECK(split_pieces("a\xff\xfe.b") == Pieces{"a", "\xff\xfe.", "b"});
}

TEST_CASE("pieces together are the text, whatever its bytes", "[smol][tokenizer]") {
  quire::test::Rng rng(3);
  INFO(rng.describe());
  Tokenizer tokenizer;
  REQUIRE(tokenizer.load(byte_tokens(), Pieces{}) == "");
  const std::string likely = "ab '1\n\t.\xc2\xbd\xe6\xbc\xa2";
  for (int round = 0; round < 5000; ++round) {
    std::string text(rng.below(50), '\0');
    for (char& c : text) {
      c = rng.below(4) == 0 ? static_cast<char>(rng.below(256))
                            : likely[rng.below(static_cast<uint32_t>(likely.size()))];
    }
    std::string joined;
    for (const std::string& piece : split_pieces(text)) {
      REQUIRE_FALSE(piece.empty());
      joined += piece;
    }
    REQUIRE(joined == text);
    const std::vector<int32_t> ids = tokenizer.encode(text);
    REQUIRE(ids.size() == text.size());  // without merges a token is a byte
    REQUIRE(tokenizer.decode(ids) == text);
  }
}

TEST_CASE("merges happen in the order of their ranks", "[smol][tokenizer]") {
  quire::test::Rng rng(4);
  INFO(rng.describe());
  for (int round = 0; round < 100; ++round) {
    const Vocabulary v = random_vocabulary(rng);
    Tokenizer tokenizer;
    REQUIRE(tokenizer.load(v.tokens, v.merges) == "");
    CHECK(tokenizer.size() == v.tokens.size());
    for (int i = 0; i < 20; ++i) {
      std::string text(rng.below(40), 'a');
      for (char& c : text) c = static_cast<char>('a' + rng.below(3));
      INFO(text);
      REQUIRE(tokenizer.encode(text) == ids_of(v, slow_merge(v, text)));
      REQUIRE(tokenizer.decode(tokenizer.encode(text)) == text);
    }
  }
}

TEST_CASE("a long run without blanks is merged in one go", "[smol][tokenizer]") {
  // Doubling merges: the longest come first, then one token per set bit of the rest. A quadratic
  // loop would take minutes here.
  Vocabulary v = {byte_tokens(), {}};
  std::string half = "a";
  for (int i = 0; i < 6; ++i, half += half) v.merge(half, half);
  Tokenizer tokenizer;
  REQUIRE(tokenizer.load(v.tokens, v.merges) == "");
  constexpr std::size_t kLength = 64 * 15000 + 32 + 4 + 1;
  Pieces parts(15000, std::string(64, 'a'));
  for (const std::size_t rest : {32u, 4u, 1u}) parts.emplace_back(rest, 'a');
  const std::vector<int32_t> expected = ids_of(v, {parts.front()});
  const std::vector<int32_t> ids = tokenizer.encode(std::string(kLength, 'a'));
  REQUIRE(ids.size() == parts.size());
  CHECK(std::count(ids.begin(), ids.end(), expected[0]) == 15000);
  CHECK(std::vector<int32_t>(ids.end() - 3, ids.end()) ==
        ids_of(v, {parts.end() - 3, parts.end()}));
}

TEST_CASE("a byte without a token is left out before its neighbours merge", "[smol][tokenizer]") {
  Vocabulary v = {byte_tokens(), {}};
  v.merge(".", ".");
  v.tokens[1] = "unused";  // the byte 1 has no token
  Tokenizer tokenizer;
  REQUIRE(tokenizer.load(v.tokens, v.merges) == "");
  CHECK(tokenizer.encode(".\x01.") == ids_of(v, {".."}));
  CHECK(tokenizer.encode("\x01").empty());
}

TEST_CASE("ids outside the vocabulary decode to nothing", "[smol][tokenizer][bad]") {
  Tokenizer tokenizer;
  REQUIRE(tokenizer.load(byte_tokens(), Pieces{}) == "");
  CHECK(tokenizer.decode({-1, 'a', 256, 1 << 30, 'b'}) == "ab");
}

TEST_CASE("merges that fit no vocabulary are refused", "[smol][tokenizer][bad]") {
  Tokenizer tokenizer;
  CHECK(tokenizer.load(byte_tokens(), {"a b"}) == "merge 0 is not in the vocabulary");
  CHECK(tokenizer.load(byte_tokens(), {"ab"}) == "merge 0 is no pair");
}

TEST_CASE("vocabulary and merges come from the file", "[smol][tokenizer]") {
  Vocabulary v = {byte_tokens(), {}};
  v.merge("a", "b");
  for (const std::string rule : {"smollm", ""}) {
    Tokenizer tokenizer;
    REQUIRE(load_file(v, rule, &tokenizer) == "");
    CHECK(tokenizer.encode("ab") == ids_of(v, {"ab"}));
  }
}

TEST_CASE("a file of another tokenizer is refused", "[smol][tokenizer][bad]") {
  Vocabulary v = {byte_tokens(), {}};
  v.merge("a", "b");
  Tokenizer tokenizer;
  CHECK(load_file(v, "llama-bpe", &tokenizer) ==
        "t.gguf: splitting rule 'llama-bpe', but this tokenizer has 'smollm' only");
  CHECK(load_file({{}, v.merges}, "smollm", &tokenizer) == "t.gguf: no tokenizer.ggml.tokens");
  CHECK(load_file({v.tokens, {}}, "smollm", &tokenizer) ==
        "t.gguf: no tokenizer.ggml.merges (no byte-level BPE?)");
  CHECK(load_file({{"a"}, v.merges}, "smollm", &tokenizer) ==
        "t.gguf: merge 0 is not in the vocabulary");
}

}  // namespace smol::test
