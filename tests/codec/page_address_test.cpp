// Where every code and number of a token lies in a page. Oracle: an image of the page written bit
// by bit from the words at the top of page_layout.hpp, and a count of owners for every byte.
#include <cstdint>
#include <cstring>
#include <vector>

#include "quire/codec/page_layout.hpp"
#include "support/catch.hpp"
#include "support/codec_layout.hpp"
#include "support/gen.hpp"

namespace quire {
namespace {

constexpr std::uint8_t kUnwritten = 0xa5;
constexpr std::int32_t kNobody = -1;

// A page, and the token that each byte belongs to.
class Image {
 public:
  explicit Image(std::size_t bytes) : bytes_(bytes, kUnwritten), owner_(bytes, kNobody) {}

  // Element e of a `bits`-bit plane whose row for token t starts at `row`: byte e / (8 / bits),
  // lowest element in the lowest bits.
  void put_code(std::uint64_t row, std::uint32_t bits, std::uint32_t e, unsigned code, int token) {
    for (std::uint32_t b = 0; b < bits; ++b) {
      const std::uint64_t at = e * bits + b;
      own(row + at / 8, token);
      std::uint8_t& byte = bytes_[row + at / 8];
      const auto mask = static_cast<std::uint8_t>(1u << (at % 8));
      byte = static_cast<std::uint8_t>((code >> b) % 2 != 0 ? byte | mask : byte & ~mask);
    }
  }

  void put_bytes(std::uint64_t at, const void* data, std::size_t count, int token) {
    for (std::size_t i = 0; i < count; ++i) own(at + i, token);
    std::memcpy(bytes_.data() + at, data, count);
  }

  bool shared() const { return shared_; }
  const std::vector<std::uint8_t>& bytes() const { return bytes_; }

  // Every byte of a segment has an owner.
  bool covers(const test::Segment& segment) const {
    for (std::uint64_t i = 0; i < segment.bytes; ++i) {
      if (owner_[segment.offset + i] == kNobody) return false;
    }
    return true;
  }

 private:
  void own(std::uint64_t at, int token) {
    shared_ = shared_ || (owner_.at(at) != kNobody && owner_[at] != token);
    owner_[at] = token;
  }

  std::vector<std::uint8_t> bytes_;
  std::vector<std::int32_t> owner_;
  bool shared_ = false;
};

CodedVector random_coded(const VectorFormat& format, test::Rng& rng) {
  CodedVector coded = {};
  for (auto& c : coded.codes) c = static_cast<std::uint8_t>(rng.below(1u << format.bits));
  for (auto& m : coded.meta) m = static_cast<std::uint16_t>(rng.bits());
  return coded;
}

// Writes one side of one token into the page through the library and into the image by hand.
void put_side(const TierLayout& layout,
              const std::vector<test::Segment>& segments,
              bool v_side,
              std::uint32_t token,
              std::vector<std::uint8_t>& page,
              Image& image,
              test::Rng& rng) {
  const VectorFormat& format = v_side ? layout.format.v : layout.format.k;
  const std::uint32_t dim = v_side ? layout.head_dim_v : layout.head_dim_k;
  const VectorSlot slot =
      v_side ? v_slot(layout, page.data(), token) : k_slot(layout, page.data(), token);
  const int who = static_cast<int>(token);
  const std::uint64_t plane0 = segments[v_side ? test::kVPlane0 : test::kKPlane0].offset;
  const std::uint64_t plane1 = segments[v_side ? test::kVPlane1 : test::kKPlane1].offset;
  const std::uint64_t meta = segments[v_side ? test::kVMeta : test::kKMeta].offset;
  if (format.is_float()) {
    auto* words = reinterpret_cast<std::uint16_t*>(slot.row.plane[0]);
    for (std::uint32_t e = 0; e < dim; ++e) {
      const auto word = static_cast<std::uint16_t>(rng.bits());
      words[e] = word;
      image.put_bytes(plane0 + 2 * (std::uint64_t{token} * dim + e), &word, 2, who);
    }
    return;
  }
  const CodedVector coded = random_coded(format, rng);
  store_coded(format, dim, coded, slot);
  const std::uint32_t low = test::plane_bits(format, 0);
  const std::uint32_t high = test::plane_bits(format, 1);
  for (std::uint32_t e = 0; e < dim; ++e) {
    const std::uint64_t t = token;
    image.put_code(plane0 + t * dim * low / 8, low, e, coded.codes[e], who);
    if (high > 0) image.put_code(plane1 + t * dim * high / 8, high, e, coded.codes[e] >> low, who);
  }
  for (std::uint32_t m = 0; m < test::numbers_per_token(format, dim); ++m) {
    image.put_bytes(meta + 2 * (std::uint64_t{m} * layout.tokens + token), &coded.meta[m], 2, who);
  }
}

// A page of random content; every byte must be where the image has it.
void check_page(const TierLayout& layout, test::Rng& rng) {
  const std::vector<test::Segment> segments = test::segments_of(
      layout.format, layout.head_dim_k, layout.head_dim_v, layout.fields, layout.tokens);
  std::vector<std::uint8_t> page(layout.bytes + 64, kUnwritten);
  Image image(page.size());
  for (std::uint32_t t = 0; t < layout.tokens; ++t) {
    put_side(layout, segments, false, t, page, image, rng);
    put_side(layout, segments, true, t, page, image, rng);
    const int who = static_cast<int>(t);
    if (layout.fields.score) {
      const float score = rng.normal();
      score_array(layout, page.data())[t] = score;
      image.put_bytes(segments[test::kScore].offset + 4 * std::uint64_t{t}, &score, 4, who);
    }
    if (layout.fields.position) {
      const auto position = static_cast<std::int32_t>(rng.below(1u << 24));
      position_array(layout, page.data())[t] = position;
      image.put_bytes(segments[test::kPosition].offset + 4 * std::uint64_t{t}, &position, 4, who);
    }
  }
  REQUIRE(page == image.bytes());
  REQUIRE_FALSE(image.shared());
  for (const test::Segment& s : segments) REQUIRE(image.covers(s));
}

TEST_CASE("codes and numbers fill their segments one to one, and no byte belongs to two tokens",
          "[codec][layout][address]") {
  test::Rng rng(101);
  INFO(rng.describe());
  for (const std::uint32_t dim : test::kHeadDims) {
    const std::vector<VectorFormat> formats = test::formats_of(dim);
    for (std::size_t i = 0; i < formats.size(); ++i) {
      const Format format = {formats[i], formats[(i * 7 + 3) % formats.size()]};
      const auto tokens = static_cast<std::uint32_t>(16 * (1 + i % 4));
      const TokenFields fields = {i % 3 != 0, i % 5 != 0, false};
      INFO(test::describe(format.k) << " / " << test::describe(format.v) << " dim " << dim);
      check_page(tier_layout(format, dim, dim, fields, tokens), rng);
    }
  }
}

TEST_CASE("full pages of the promised geometry are filled one to one", "[codec][layout][address]") {
  test::Rng rng(102);
  INFO(rng.describe());
  for (const std::uint32_t dim : {64u, 128u, 256u}) {
    const PageLayout layout = page_layout(test::diffkv_spec(dim)).value();
    for (std::uint32_t t = 0; t < 2; ++t) {
      INFO("dim " << dim << " tier " << t);
      check_page(layout.tier[t], rng);
    }
  }
}

TEST_CASE("K and V of different head dims share a page", "[codec][layout][address]") {
  test::Rng rng(103);
  INFO(rng.describe());
  const Format formats[] = {
      test::affine_format(8, 4),
      {{Grid::kSymmetricUniform, 6, 32, 1}, {Grid::kSymmetricTable, 3, 64, 1}},
      {{Grid::kAffine, 3, 64, 0}, {Grid::kBf16, 16, 0, 0}}};
  for (const Format& format : formats) {
    check_page(tier_layout(format, 192, 128, {}, 32), rng);
    check_page(tier_layout(format, 64, 256, {}, 48), rng);
  }
}

TEST_CASE("constant pages are read through the same addresses", "[codec][layout][address]") {
  const TierLayout layout = page_layout(test::diffkv_spec(64)).value().tier[0];
  std::vector<std::uint8_t> page(layout.bytes);
  const std::vector<std::uint8_t>& constant = page;
  for (std::uint32_t t = 0; t < layout.tokens; ++t) {
    score_array(layout, page.data())[t] = 0.5f * static_cast<float>(t);
    position_array(layout, page.data())[t] = static_cast<std::int32_t>(1000 + t);
  }
  for (std::uint32_t t = 0; t < layout.tokens; ++t) {
    REQUIRE(score_array(layout, constant.data())[t] == 0.5f * static_cast<float>(t));
    REQUIRE(position_array(layout, constant.data())[t] == static_cast<std::int32_t>(1000 + t));
  }
}

}  // namespace
}  // namespace quire
