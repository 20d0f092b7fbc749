// Records and the list of segments of one head. Oracle: a plain walk over ring positions and pages
// by index; fields written as known numbers and read back by hand from the arrays of the page.
#include "quire/pages/head_view.hpp"

#include <vector>

#include "quire/pages/head_tokens.hpp"
#include "support/attention_formats.hpp"
#include "support/attention_head.hpp"
#include "support/attention_snapshot.hpp"
#include "support/catch.hpp"
#include "support/gen.hpp"

namespace quire {
namespace {

// Where every token of a head lies, in the order ring, high, low.
struct Spot {
  const std::uint8_t* base;
  std::uint32_t token;
  std::uint32_t tier;
  std::uint32_t index;  // within the tier, or the ring slot
};

std::vector<Spot> spots_of(const HeadView& view) {
  std::vector<Spot> out;
  for (std::int32_t p = 0; view.ring != nullptr && p < view.length; ++p) {
    if (!view.shape.holds(p, view.length)) continue;
    const std::uint32_t slot = view.shape.slot(p);
    out.push_back({view.ring_block, slot, kRingTier, slot});
  }
  for (std::uint32_t t = 0; t < view.tier_count; ++t) {
    for (std::uint32_t i = 0; i < view.tokens[t]; ++i) {
      const std::uint32_t per_page = view.tiers[t].tokens;
      const std::int32_t page =
          view.row.ids[t == 0 ? i / per_page : view.row.capacity - 1 - i / per_page];
      out.push_back({view.space.base + page * view.space.page_stride, i % per_page, t, i});
    }
  }
  return out;
}

TEST_CASE("segments list ring, high and low tokens once each and in order", "[pages][head_view]") {
  test::Rng rng(45);
  INFO(rng.describe());
  for (std::uint32_t index = 0; index < 66; ++index) {
    INFO("head " << index);
    const test::HeadSpec spec =
        test::walk_spec(index, 64, 96, 150 + 17 * static_cast<std::int32_t>(index % 7));
    const test::TestHead head(spec, rng);
    const HeadView view = head.view();
    const std::vector<Spot> spots = spots_of(view);
    std::size_t at = 0;
    std::uint64_t bytes = 0;
    std::uint32_t last_tier = kRingTier;
    for (std::uint32_t i = 0; i < view.segment_count(); ++i) {
      const Segment s = view.segment(i);
      REQUIRE(s.count > 0);
      REQUIRE((s.tier == last_tier || s.tier == 0 || (s.tier == 1 && last_tier != 1)));
      last_tier = s.tier;
      for (std::uint32_t t = 0; t < s.count; ++t, ++at) {
        REQUIRE(at < spots.size());
        REQUIRE(s.base == spots[at].base);
        REQUIRE(s.first + t == spots[at].token);
        REQUIRE(s.tier == spots[at].tier);
        REQUIRE(s.first_index + t == spots[at].index);
        REQUIRE(s.position(t) == head.positions[at]);
      }
      bytes += std::uint64_t{s.count} *
               (vector_bytes(s.layout->format.k, 64) + vector_bytes(s.layout->format.v, 96));
    }
    REQUIRE(at == spots.size());
    REQUIRE(view.read_bytes() == bytes);
  }
}

TEST_CASE("without stored positions the order of the tokens gives them", "[pages][head_view]") {
  test::Rng rng(46);
  INFO(rng.describe());
  for (const std::int32_t length : {1, 9, 10, 11, 25, 26, 27, 42, 75}) {
    test::HeadSpec spec;
    spec.tier_count = 1;
    spec.tier[0] = {{Grid::kAffine, 8, 0, 0}, {Grid::kAffine, 4, 0, 0}};
    spec.ring = spec.tier[0];
    spec.sinks = 2;
    spec.window = 8;
    spec.fields = {false, false, false};
    spec.page_bytes = 2048;
    spec.length = length;
    spec.tokens[0] = test::outside_ring(spec);
    const test::TestHead head(spec, rng);
    std::vector<bool> seen(static_cast<std::size_t>(length), false);
    for (const std::int32_t p : head.positions) seen.at(static_cast<std::size_t>(p)) = true;
    REQUIRE(head.positions.size() == seen.size());
    for (const bool s : seen) REQUIRE(s);
    for (std::size_t i = head.positions.size() - spec.tokens[0]; i + 1 < head.positions.size(); ++i)
      REQUIRE(head.positions[i] + 1 == head.positions[i + 1]);  // behind the sinks, ascending
  }
}

// ---- Fields of a record ----------------------------------------------------------------------

// A page or block of one layout, full of 0xff.
struct Block {
  explicit Block(const TokenFields& fields)
      : layout(tier_layout(
            {{Grid::kAffine, 8, 32, 0}, {Grid::kAffine, 4, 32, 0}}, 64, 64, fields, 16)),
        bytes(layout.bytes, 0xff) {}

  TokenPlace place(std::uint32_t token) { return {&layout, bytes.data(), token}; }
  std::uint16_t& bias(std::uint32_t token) {
    return reinterpret_cast<std::uint16_t*>(bytes.data() + layout.bias)[token];
  }

  TierLayout layout;
  std::vector<std::uint8_t> bytes;
};

TEST_CASE("score, position and bias travel with a record where both sides store them",
          "[pages][records]") {
  test::Rng rng(47);
  const std::vector<float> k = rng.normals(64), v = rng.normals(64);
  for (std::uint32_t bits = 0; bits < 64; ++bits) {
    INFO("fields " << bits);
    const auto on = [&](std::uint32_t bit) { return (bits >> bit & 1u) != 0; };
    Block from({on(0), on(1), on(2)});
    Block to({on(3), on(4), on(5)});
    CodecEvents events;
    write_record(from.place(3), k.data(), v.data(), 1.5f, 77, events);
    if (on(2)) REQUIRE(from.bias(3) == 0);  // a new token has none
    if (on(2)) from.bias(3) = 0x1234;
    move_record(from.place(3), to.place(9), events);
    REQUIRE(from.place(3).score() == (on(0) ? 1.5f : 0.0f));
    REQUIRE(from.place(3).position() == (on(1) ? 77 : -1));
    REQUIRE(to.place(9).score() == (on(0) && on(3) ? 1.5f : 0.0f));
    if (on(4)) REQUIRE(to.place(9).position() == (on(1) ? 77 : -1));
    if (on(2) && on(5)) REQUIRE(to.bias(9) == 0x1234);
  }
}

// The bytes of every other token of both blocks stay 0xff.
TEST_CASE("writing and moving a record touches its own bytes only", "[pages][records]") {
  test::Rng rng(48);
  const std::vector<float> k = rng.normals(64), v = rng.normals(64);
  CodecEvents events;
  for (std::uint32_t token = 0; token < 16; ++token) {
    Block block({true, true, true});
    Block other({true, true, true});
    write_record(block.place(token), k.data(), v.data(), 1.0f, 5, events);
    move_record(block.place(token), other.place(15 - token), events);
    for (Block* b : {&block, &other}) {
      const std::uint32_t mine = b == &block ? token : 15 - token;
      std::vector<std::uint8_t> want(b->bytes.size(), 0xff);
      const auto own = [&](std::uint32_t offset, std::uint32_t bytes, std::uint32_t count) {
        for (std::uint32_t m = 0; m < count; ++m) {
          for (std::uint32_t i = 0; i < bytes; ++i) {
            const std::size_t at = offset + std::size_t{m} * 16 * bytes + mine * bytes + i;
            want[at] = b->bytes[at];
          }
        }
      };
      own(b->layout.k_plane[0], 64, 1);
      own(b->layout.v_plane[0], 32, 1);
      own(b->layout.k_meta, 2, 4);
      own(b->layout.v_meta, 2, 4);
      own(b->layout.score, 4, 1);
      own(b->layout.position, 4, 1);
      own(b->layout.bias, 2, 1);
      REQUIRE(b->bytes == want);
    }
    REQUIRE(block.place(token).position() == other.place(15 - token).position());
    REQUIRE(test::stored_vector(block.layout.format.k, 64, block.place(token).k()) ==
            test::stored_vector(other.layout.format.k, 64, other.place(15 - token).k()));
  }
}

}  // namespace
}  // namespace quire
