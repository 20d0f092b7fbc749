// Oracle: classes read off the Unicode charts by hand, and the UTF-8 table of RFC 3629.
#include "unicode.hpp"

#include <string>

#include "support/catch.hpp"
#include "support/gen.hpp"

namespace smol::test {
namespace {

std::vector<uint32_t> codes(const std::string& text) {
  std::vector<uint32_t> out;
  for (const CodePoint& c : decode_utf8(text)) out.push_back(c.code);
  return out;
}

}  // namespace

TEST_CASE("letters are letters of any script", "[smol][unicode]") {
  // Latin, ordinal sign, Greek, Arabic, Thai, Hangul, Han, modifier letter, and one each that came
  // with Unicode 15 and 16.
  for (const uint32_t code : {0x41u,
                              0x7au,
                              0xe9u,
                              0xaau,
                              0x3b1u,
                              0x639u,
                              0xe01u,
                              0xac00u,
                              0x6f22u,
                              0x2b0u,
                              0x31350u,
                              0x1c89u}) {
    INFO(std::hex << code);
    CHECK(is_letter(code));
    CHECK_FALSE(is_number(code));
    CHECK_FALSE(is_space(code));
  }
}

TEST_CASE("numbers are digits, letters of number and other numbers", "[smol][unicode]") {
  // ASCII, superscript two, one half, Arabic-Indic, Roman eight, circled one, full-width, and a
  // digit that came with Unicode 16.
  for (const uint32_t code :
       {0x30u, 0x39u, 0xb2u, 0xbdu, 0x663u, 0x2167u, 0x2460u, 0xff11u, 0x10d40u}) {
    INFO(std::hex << code);
    CHECK(is_number(code));
    CHECK_FALSE(is_letter(code));
    CHECK_FALSE(is_space(code));
  }
}

TEST_CASE("spaces are those with the White_Space property", "[smol][unicode]") {
  for (const uint32_t code : {0x9u,
                              0xau,
                              0xbu,
                              0xcu,
                              0xdu,
                              0x20u,
                              0x85u,
                              0xa0u,
                              0x1680u,
                              0x2000u,
                              0x200au,
                              0x2028u,
                              0x2029u,
                              0x202fu,
                              0x205fu,
                              0x3000u}) {
    INFO(std::hex << code);
    CHECK(is_space(code));
    CHECK_FALSE(is_letter(code));
    CHECK_FALSE(is_number(code));
  }
}

TEST_CASE("marks, signs and joiners are none of the three", "[smol][unicode]") {
  // Control, full stop, combining acute, Mongolian vowel separator, zero-width space and joiner,
  // byte order mark, emoji, private use, the last code point, no code point at all.
  for (const uint32_t code : {0x0u,
                              0x1cu,
                              0x2eu,
                              0x301u,
                              0x180eu,
                              0x200bu,
                              0x200du,
                              0xfeffu,
                              0x1f642u,
                              0xe000u,
                              0x10ffffu,
                              kBadByte}) {
    INFO(std::hex << code);
    CHECK_FALSE(is_letter(code));
    CHECK_FALSE(is_number(code));
    CHECK_FALSE(is_space(code));
  }
}

TEST_CASE("valid UTF-8 is decoded at the borders of each length", "[smol][unicode]") {
  CHECK(codes(std::string("\0", 1)) == std::vector<uint32_t>{0});
  CHECK(codes("\x7f\xc2\x80\xdf\xbf") == std::vector<uint32_t>{0x7f, 0x80, 0x7ff});
  CHECK(codes("\xe0\xa0\x80\xef\xbf\xbf") == std::vector<uint32_t>{0x800, 0xffff});
  CHECK(codes("\xed\x9f\xbf\xee\x80\x80") == std::vector<uint32_t>{0xd7ff, 0xe000});
  CHECK(codes("\xf0\x90\x80\x80\xf4\x8f\xbf\xbf") == std::vector<uint32_t>{0x10000, 0x10ffff});
  CHECK(codes("").empty());
}

TEST_CASE("each byte of bad UTF-8 stands alone", "[smol][unicode][bad]") {
  // Lone continuation, never valid, overlong forms, surrogate, beyond the last code point, cut off.
  for (const char* text : {"\x80",
                           "\xff",
                           "\xc0\x80",
                           "\xc1\xbf",
                           "\xe0\x80\x80",
                           "\xf0\x80\x80\x80",
                           "\xed\xa0\x80",
                           "\xf4\x90\x80\x80",
                           "\xf5\x80\x80\x80",
                           "\xe2\x82",
                           "\xf0\x9f\x99"}) {
    const std::string bytes = text;
    CHECK(codes(bytes) == std::vector<uint32_t>(bytes.size(), kBadByte));
    std::vector<uint32_t> inside(bytes.size(), kBadByte);
    inside.insert(inside.begin(), 'a');
    inside.push_back('b');
    CHECK(codes("a" + bytes + "b") == inside);
  }
}

TEST_CASE("code points cover every byte once", "[smol][unicode]") {
  quire::test::Rng rng(2);
  INFO(rng.describe());
  for (int round = 0; round < 5000; ++round) {
    std::string text(rng.below(40), '\0');
    for (char& c : text) c = static_cast<char>(rng.below(3) == 0 ? rng.below(128) : rng.below(256));
    uint32_t at = 0;
    for (const CodePoint& c : decode_utf8(text)) {
      REQUIRE(c.offset == at);
      at += c.length;
    }
    REQUIRE(at == text.size());
  }
}

}  // namespace smol::test
