// The recent ring. Oracle: a list of the positions that a ring of so many tokens holds, and an
// array of slots into which every token of a sequence is written in turn.
#include "quire/pages/ring.hpp"

#include <algorithm>
#include <set>
#include <vector>

#include "support/catch.hpp"

namespace quire {
namespace {

struct RingCase {
  std::uint32_t sinks;
  std::uint32_t window;
  std::uint32_t draft;

  RingShape shape() const { return {sinks, window, window + draft}; }
  std::uint32_t slots() const { return sinks + window + draft; }
};

std::vector<RingCase> ring_cases() {
  std::vector<RingCase> all;
  for (std::uint32_t sinks = 0; sinks <= 5; ++sinks) {
    for (std::uint32_t window = 0; window <= 9; ++window) {
      for (std::uint32_t draft = 0; draft <= 3; ++draft) all.push_back({sinks, window, draft});
    }
  }
  return all;
}

constexpr std::int32_t kMostTokens = 40;

// The first `sinks` and the last `window` positions of a sequence, ascending.
std::vector<std::int32_t> held(const RingCase& c, std::int32_t tokens) {
  std::vector<std::int32_t> out;
  for (std::int32_t p = 0; p < tokens; ++p) {
    const bool is_sink = p < static_cast<std::int32_t>(c.sinks);
    const bool is_recent = tokens - p <= static_cast<std::int32_t>(c.window);
    if (is_sink || is_recent) out.push_back(p);
  }
  return out;
}

std::vector<std::int32_t> held_by_shape(const RingShape& shape, std::int32_t tokens) {
  std::vector<std::int32_t> out;
  for (std::int32_t p = -2; p < tokens + 4; ++p) {
    if (shape.holds(p, tokens)) out.push_back(p);
  }
  return out;
}

std::vector<std::int32_t> held_by_runs(const RingShape& shape, std::int32_t tokens) {
  RingRun runs[kMaxRingRuns];
  const std::uint32_t count = shape.runs(tokens, 0, runs);
  REQUIRE(count <= 3);
  std::vector<std::int32_t> out;
  for (std::uint32_t i = 0; i < count; ++i) {
    REQUIRE(runs[i].count > 0);
    for (std::uint32_t t = 0; t < runs[i].count; ++t) {
      const std::int32_t position = runs[i].first_position + static_cast<std::int32_t>(t);
      REQUIRE(shape.slot(position) == runs[i].first_slot + t);
      out.push_back(position);
    }
  }
  return out;
}

TEST_CASE("a ring holds the first and the last tokens, by every way to ask", "[pages][ring]") {
  for (const RingCase& c : ring_cases()) {
    const RingShape shape = c.shape();
    for (std::int32_t tokens = 0; tokens <= kMostTokens; ++tokens) {
      INFO(c.sinks << " sinks, window " << c.window << ", draft " << c.draft << ", " << tokens);
      const std::vector<std::int32_t> want = held(c, tokens);
      REQUIRE(held_by_shape(shape, tokens) == want);
      REQUIRE(held_by_runs(shape, tokens) == want);
      REQUIRE(shape.outside(tokens) == tokens - static_cast<std::int32_t>(want.size()));
      const auto first = std::find_if(want.begin(), want.end(), [&](std::int32_t p) {
        return p >= static_cast<std::int32_t>(c.sinks);
      });
      if (first != want.end()) REQUIRE(shape.window_begin(tokens) == *first);
      if (first == want.end()) REQUIRE(shape.window_begin(tokens) >= tokens);
    }
  }
}

TEST_CASE("held tokens and drafted ones behind them have slots of their own", "[pages][ring]") {
  for (const RingCase& c : ring_cases()) {
    const RingShape shape = c.shape();
    for (std::int32_t tokens = 0; tokens <= kMostTokens; ++tokens) {
      INFO(c.sinks << " sinks, window " << c.window << ", draft " << c.draft << ", " << tokens);
      std::vector<std::int32_t> positions = held(c, tokens);
      for (std::uint32_t d = 0; d < c.draft; ++d)
        positions.push_back(tokens + static_cast<std::int32_t>(d));
      std::set<std::uint32_t> slots;
      for (const std::int32_t p : positions) slots.insert(shape.slot(p));
      REQUIRE(slots.size() == positions.size());
      if (!slots.empty()) REQUIRE(*slots.rbegin() < c.slots());
    }
  }
}

// What append does: the leaving token is read before the new one takes a slot.
TEST_CASE("tokens written one by one stay readable as long as they are held", "[pages][ring]") {
  for (const RingCase& c : ring_cases()) {
    const RingShape shape = c.shape();
    std::vector<std::int32_t> slots(c.slots(), -1);
    for (std::int32_t tokens = 0; tokens < kMostTokens; ++tokens) {
      INFO(c.sinks << " sinks, window " << c.window << ", draft " << c.draft << ", " << tokens);
      const std::int32_t left = shape.outside(tokens + 1) - shape.outside(tokens);
      REQUIRE((left == 0 || left == 1));
      const bool stored = shape.holds(tokens, tokens + 1);
      if (left == 1 && stored) {
        const std::int32_t leaving = shape.window_begin(tokens);
        REQUIRE(slots.at(shape.slot(leaving)) == leaving);
        REQUIRE_FALSE(shape.holds(leaving, tokens + 1));
      }
      if (left == 1 && !stored) REQUIRE(shape.window_begin(tokens) == tokens);
      if (stored) slots.at(shape.slot(tokens)) = tokens;
      for (const std::int32_t p : held(c, tokens + 1)) REQUIRE(slots.at(shape.slot(p)) == p);
    }
  }
}

TEST_CASE("slots of a long sequence go round without a sign", "[pages][ring]") {
  const RingShape shape = {4, 48, 51};
  for (std::int32_t p = kMaxPosition - 200; p <= kMaxPosition; ++p) {
    const std::uint32_t slot = shape.slot(p);
    REQUIRE(slot == 4 + (static_cast<std::uint32_t>(p) - 4) % 51);
    REQUIRE(shape.holds(p - 47, p + 1));
    REQUIRE_FALSE(shape.holds(p - 48, p + 1));
  }
  REQUIRE(shape.outside(kMaxPosition) == kMaxPosition - 52);
}

// ---- Block layout ----------------------------------------------------------------------------

struct BlockFormat {
  Format format;
  std::uint64_t k_codes[2];  // bytes per token and plane, worked by hand for head dims 80 and 96
  std::uint64_t v_codes[2];
  std::uint64_t k_numbers;  // fp16 numbers per token
  std::uint64_t v_numbers;
};

std::vector<BlockFormat> block_formats() {
  const VectorFormat f16 = {Grid::kF16, 16, 0, 0};
  const VectorFormat k8 = {Grid::kAffine, 8, 0, kTransformOffset};
  const VectorFormat k6 = {Grid::kSymmetricUniform, 6, 0, kTransformHadamard | kTransformOffset};
  const VectorFormat v3 = {Grid::kSymmetricTable, 3, 32, kTransformHadamard};
  const VectorFormat v4 = {Grid::kAffine, 4, 32, kTransformOffset};
  return {{{f16, f16}, {160, 0}, {192, 0}, 0, 0},
          {{k8, v4}, {80, 0}, {48, 0}, 2, 6},
          {{k6, v3}, {40, 20}, {24, 12}, 1, 3},
          {{k6, f16}, {40, 20}, {192, 0}, 1, 0}};
}

struct Piece {
  std::uint64_t begin;
  std::uint64_t bytes;
  std::uint64_t align;
};

// Segments in the order of the page layout, then the offset vectors.
std::vector<Piece> pieces_of(const RingLayout& ring, const BlockFormat& f, std::uint64_t slots) {
  const TierLayout& t = ring.tokens;
  const bool k_offset = (f.format.k.transform & kTransformOffset) != 0;
  const bool v_offset = (f.format.v.transform & kTransformOffset) != 0;
  return {{t.k_plane[0], slots * f.k_codes[0], 128},
          {t.k_plane[1], slots * f.k_codes[1], 128},
          {t.v_plane[0], slots * f.v_codes[0], 128},
          {t.v_plane[1], slots * f.v_codes[1], 128},
          {t.k_meta, slots * 2 * f.k_numbers, 64},
          {t.v_meta, slots * 2 * f.v_numbers, 64},
          {t.score, t.fields.score ? slots * 4 : 0, 64},
          {t.position, t.fields.position ? slots * 4 : 0, 64},
          {ring.k_offset, k_offset ? 80u * 2 : 0u, 64},
          {ring.v_offset, v_offset ? 96u * 2 : 0u, 64}};
}

TEST_CASE("a ring block holds its segments one after the other and aligned", "[pages][ring]") {
  for (const BlockFormat& f : block_formats()) {
    for (const std::uint32_t slots : {0u, 1u, 2u, 15u, 16u, 49u, 65u, 130u}) {
      for (const bool fields : {true, false}) {
        INFO("slots " << slots << " fields " << fields);
        const RingLayout ring = ring_layout(f.format, 80, 96, {fields, fields, false}, slots);
        std::uint64_t end = 0;
        for (const Piece& p : pieces_of(ring, f, slots)) {
          if (p.bytes == 0) continue;
          REQUIRE(p.begin == (end + p.align - 1) / p.align * p.align);  // no gap but alignment
          end = p.begin + p.bytes;
        }
        REQUIRE(ring.bytes == (end + 63) / 64 * 64);
        REQUIRE(ring.tokens.tokens == slots);
        const std::uint64_t record = f.k_codes[0] + f.k_codes[1] + f.v_codes[0] + f.v_codes[1] +
                                     2 * (f.k_numbers + f.v_numbers) + (fields ? 8 : 0);
        REQUIRE(ring.tokens.record_bytes == record);
        REQUIRE(ring.has_k_offset == ((f.format.k.transform & kTransformOffset) != 0));
        REQUIRE(ring.has_v_offset == ((f.format.v.transform & kTransformOffset) != 0));
        REQUIRE(ring.offset_bytes ==
                (ring.has_k_offset ? 160u : 0u) + (ring.has_v_offset ? 192u : 0u));
      }
    }
  }
}

TEST_CASE("offset vectors are found in their block, or nowhere", "[pages][ring]") {
  for (const BlockFormat& f : block_formats()) {
    const RingLayout ring = ring_layout(f.format, 80, 96, {}, 10);
    std::vector<std::uint8_t> block(ring.bytes);
    const std::uint16_t* k = k_offset_of(ring, block.data());
    const std::uint16_t* v = v_offset_of(ring, block.data());
    REQUIRE((k != nullptr) == ring.has_k_offset);
    REQUIRE((v != nullptr) == ring.has_v_offset);
    if (k != nullptr) {
      REQUIRE(reinterpret_cast<const std::uint8_t*>(k) == block.data() + ring.k_offset);
      REQUIRE(ring.k_offset + 160u <= ring.bytes);
    }
    if (v != nullptr) {
      REQUIRE(reinterpret_cast<const std::uint8_t*>(v) == block.data() + ring.v_offset);
      REQUIRE(ring.v_offset + 192u <= ring.bytes);
    }
  }
}

// Behind a truncation the window holds what came since.
TEST_CASE("a ring that lost its window fills up from there", "[pages][ring]") {
  for (const RingCase& c : ring_cases()) {
    for (std::int32_t from = 0; from <= kMostTokens; from += 3) {
      RingShape shape = c.shape();
      shape.from = from;
      for (std::int32_t tokens = from; tokens <= kMostTokens; ++tokens) {
        INFO(c.sinks << " sinks, window " << c.window << ", from " << from << ", " << tokens);
        std::vector<std::int32_t> want;
        for (const std::int32_t p : held(c, tokens)) {
          if (p < static_cast<std::int32_t>(c.sinks) || p >= from) want.push_back(p);
        }
        REQUIRE(held_by_shape(shape, tokens) == want);
        REQUIRE(held_by_runs(shape, tokens) == want);
        REQUIRE(shape.outside(tokens) == tokens - static_cast<std::int32_t>(want.size()));
      }
    }
  }
}

TEST_CASE("drafts lie behind the last token, each in a slot that no token has", "[pages][ring]") {
  for (const RingCase& c : ring_cases()) {
    const RingShape shape = c.shape();
    for (std::int32_t tokens = 1; tokens <= kMostTokens; ++tokens) {
      INFO(c.sinks << " sinks, window " << c.window << ", draft " << c.draft << ", " << tokens);
      RingRun runs[kMaxRingRuns];
      const std::uint32_t count = shape.runs(tokens, c.draft, runs);
      REQUIRE(count <= kMaxRingRuns);
      std::vector<std::int32_t> want = held(c, tokens);
      for (std::uint32_t d = 0; d < c.draft; ++d)
        want.push_back(tokens + static_cast<std::int32_t>(d));
      std::vector<std::int32_t> got;
      std::vector<std::uint32_t> slots;
      for (std::uint32_t i = 0; i < count; ++i) {
        for (std::uint32_t t = 0; t < runs[i].count; ++t) {
          got.push_back(runs[i].first_position + static_cast<std::int32_t>(t));
          slots.push_back(runs[i].first_slot + t);
        }
      }
      REQUIRE(got == want);
      std::sort(slots.begin(), slots.end());
      REQUIRE(std::adjacent_find(slots.begin(), slots.end()) == slots.end());
    }
  }
}

}  // namespace
}  // namespace quire
