// Frames that are refused: short, damaged, of another version, shape or format, or without room.
// Oracle: the status and field that quire.h names; nothing is changed.
#include "src/checksum.hpp"
#include "src/frame.hpp"
#include "support/lifecycle.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kPrompt = 90;

struct Fixture {
  explicit Fixture(const RigSpec& spec = fork_spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, 2))
      : rng(9401), stream(fork_shape(kPrompt + 8), rng), rig(spec), slot(rig.open()) {
    rig.prompt(slot, stream, kPrompt);
    frame = exported(rig, slot);
  }

  // Changes the frame's header and makes the checksum right again.
  template <class ChangeT>
  std::vector<std::uint8_t> with_header(ChangeT&& change) const {
    std::vector<std::uint8_t> changed = frame;
    FrameHeader header;
    std::memcpy(&header, changed.data(), sizeof(header));
    change(header);
    std::memcpy(changed.data(), &header, sizeof(header));
    return sealed(changed);
  }

  static std::vector<std::uint8_t> sealed(std::vector<std::uint8_t> changed) {
    const std::uint64_t sum =
        checksum(changed.data() + kFrameChecked, changed.size() - kFrameChecked);
    std::memcpy(changed.data() + 8, &sum, sizeof(sum));
    return changed;
  }

  void refused(const std::vector<std::uint8_t>& bad, quire_status status, const char* field) {
    check_refused(rig, bad, status, field);
  }

  static void check_refused(const Rig& into,
                            const std::vector<std::uint8_t>& bad,
                            quire_status status,
                            const char* field) {
    const quire_stats before = into.cache.stats();
    std::int32_t made = 77;
    const Result result = into.cache.import_frame(bad.data(), bad.size(), &made);
    INFO(result.text());
    REQUIRE(result.status() == status);
    REQUIRE(std::string(result.field()) == field);
    REQUIRE(made == 77);
    const quire_stats after = into.cache.stats();
    REQUIRE(after.sequences == before.sequences);
    REQUIRE(after.live_pages == before.live_pages);
    REQUIRE(check_pool(into.state()) == "");
  }

  Rng rng;
  Stream stream;
  Rig rig;
  std::int32_t slot;
  std::vector<std::uint8_t> frame;
};

TEST_CASE("a frame cut off anywhere is refused", "[lifecycle][export][errors]") {
  Fixture f;
  for (std::size_t bytes = 0; bytes < f.frame.size(); bytes += 1 + bytes / 7) {
    const std::vector<std::uint8_t> part(f.frame.begin(),
                                         f.frame.begin() + static_cast<std::ptrdiff_t>(bytes));
    f.refused(part, bytes == 0 ? QUIRE_INVALID_ARGUMENT : QUIRE_BAD_VALUE, "frame");
  }
  std::vector<std::uint8_t> longer = f.frame;
  longer.push_back(0);
  f.refused(longer, QUIRE_BAD_VALUE, "frame");
}

TEST_CASE("a frame with any damaged byte is refused", "[lifecycle][export][errors]") {
  Fixture f;
  std::vector<std::uint8_t> bad = f.frame;
  for (int i = 0; i < 3000; ++i) {
    const std::size_t at = i < 600 ? static_cast<std::size_t>(i) % bad.size()
                                   : f.rng.below(static_cast<std::uint32_t>(bad.size()));
    const auto bit = static_cast<std::uint8_t>(1u << f.rng.below(8));
    INFO("byte " << at);
    bad[at] = static_cast<std::uint8_t>(bad[at] ^ bit);
    std::int32_t made = 77;
    const quire_status status = f.rig.cache.import_frame(bad.data(), bad.size(), &made).status();
    REQUIRE((status == QUIRE_BAD_VALUE || status == QUIRE_ABI_MISMATCH));
    REQUIRE(made == 77);
    bad[at] = static_cast<std::uint8_t>(bad[at] ^ bit);
  }
  REQUIRE(bad == f.frame);
  REQUIRE(check_pool(f.rig.state()) == "");
}

TEST_CASE("a frame of another version, shape or format is refused by name",
          "[lifecycle][export][errors]") {
  Fixture f;
  f.refused(
      f.with_header([](FrameHeader& h) { ++h.version; }), QUIRE_ABI_MISMATCH, "frame.version");
  const auto other = [&](const char* field, auto&& change) {
    RigSpec spec = fork_spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, 2);
    change(spec);
    Fixture::check_refused(Rig(spec), f.frame, QUIRE_INVALID_ARGUMENT, field);
  };
  other("frame.layers", [](RigSpec& s) { s.group.layers = 3; });
  other("frame.kv_heads", [](RigSpec& s) { s.group.kv_heads = 1; });
  other("frame.q_heads", [](RigSpec& s) { s.group.q_heads = 6; });
  other("frame.head_dim_k", [](RigSpec& s) { s.group.layout.head_dim_k = 48; });
  other("frame.head_dim_v", [](RigSpec& s) { s.group.layout.head_dim_v = 48; });
  other("frame.transform_seed", [](RigSpec& s) { s.group.transform_seed = 5; });
  other("frame.tier_count", [](RigSpec& s) { s.group.layout.tier_count = 1; });
  other("frame.tier", [](RigSpec& s) { s.group.layout.tier[1].v.bits = 3; });
  other("frame.ring_format", [](RigSpec& s) { s.group.ring_format = QUIRE_RING_BF16; });
  other("frame.layout.flags", [](RigSpec& s) { s.group.layout.flags = QUIRE_LAYOUT_NO_SCORE; });
  other("policy.recent_window", [](RigSpec& s) { s.group.recent_window = 15; });
}

TEST_CASE("a frame that is too long or finds no room is refused", "[lifecycle][export][errors]") {
  Fixture f;
  RigSpec spec = fork_spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, 1);
  spec.max_tokens = kPrompt - 1;
  Fixture::check_refused(Rig(spec), f.frame, QUIRE_CAPACITY, "max_tokens");
  spec.max_tokens = kPrompt;
  spec.pages = f.rig.cache.info(f.slot).live_pages - 1;
  Fixture::check_refused(Rig(spec), f.frame, QUIRE_OUT_OF_PAGES, "pages");
  ++spec.pages;
  Rig full(spec);
  const std::int32_t other = full.open();
  Fixture::check_refused(full, f.frame, QUIRE_CAPACITY, "max_sequences");
  REQUIRE(full.cache.close(other).ok());
  std::int32_t made = -1;
  REQUIRE(full.cache.import_frame(f.frame.data(), f.frame.size(), &made).ok());
}

// A right checksum does not make wrong numbers right: none may lead out of the frame or the cache.
TEST_CASE("a sealed frame with wrong numbers is refused", "[lifecycle][export][errors]") {
  Fixture f;
  const auto header = [&](quire_status status, const char* field, auto&& change) {
    f.refused(f.with_header(change), status, field);
  };
  header(QUIRE_CAPACITY, "max_tokens", [](FrameHeader& h) { h.tokens = -1; });
  header(QUIRE_BAD_VALUE, "frame", [](FrameHeader& h) { h.tokens = 20; });
  header(QUIRE_BAD_VALUE, "frame", [](FrameHeader& h) { h.controlled_at = 1000; });
  header(QUIRE_BAD_VALUE, "frame", [](FrameHeader& h) { h.prompt_end_count = 9; });
  header(QUIRE_BAD_VALUE, "frame", [](FrameHeader& h) { h.factor = std::nanf(""); });
  header(QUIRE_INVALID_ARGUMENT, "alpha_low", [](FrameHeader& h) { h.policy.alpha_low = 9e9f; });
  header(QUIRE_ABI_MISMATCH, "struct_size", [](FrameHeader& h) { h.policy.struct_size = 8; });
  header(QUIRE_INVALID_ARGUMENT, "kind", [](FrameHeader& h) { h.policy.kind = 77; });
  for (const std::uint32_t tokens : {0xffffffffu, 0x7fffffffu, 1000000u, 74u, 0u}) {
    std::vector<std::uint8_t> bad = f.frame;
    std::memcpy(bad.data() + sizeof(FrameHeader), &tokens, sizeof(tokens));
    f.refused(Fixture::sealed(bad), QUIRE_BAD_VALUE, "frame");
  }
}

// Fields of the first head's high tier.
TEST_CASE("a sealed frame with a wrong head is refused", "[lifecycle][export][errors]") {
  Fixture f;
  const Group& g = f.rig.state().group;
  const std::uint32_t high = f.rig.state().head_state(f.slot, 0, 0).tokens[0];
  const TierLayout block = frame_layout(g.layout.tier[0], high);
  const std::size_t head = sizeof(FrameHeader);
  const std::size_t ring = ring_tokens(f.rig.state().slots[f.slot].shape, kPrompt);
  const std::size_t records =
      head + sizeof(FrameHead) + g.ring.offset_bytes + ring * g.ring.tokens.record_bytes;
  const auto poke = [&](std::size_t at, auto value, quire_status status, const char* field) {
    std::vector<std::uint8_t> bad = f.frame;
    std::memcpy(bad.data() + at, &value, sizeof(value));
    INFO("byte " << at << " becomes " << value);
    f.refused(Fixture::sealed(bad), status, field);
  };
  const auto last = static_cast<std::int32_t>(kPrompt) - 1;
  for (const std::int32_t position : {-1, 0, last, last + 1, 1 << 30})  // 0 and last: in the ring
    poke(records + block.position, position, QUIRE_BAD_VALUE, "frame");
  for (const float score : {-1.0f, std::nanf(""), std::numeric_limits<float>::infinity()})
    poke(records + block.score, score, QUIRE_BAD_VALUE, "frame");
  for (const float alpha : {-1.0f, std::nanf("")})
    poke(head + offsetof(FrameHead, alpha_high), alpha, QUIRE_INVALID_ARGUMENT, "alpha_high");
  // Tokens moved from tier to tier, so that bytes or counts do not add up.
  std::uint32_t both = high + 4096;
  poke(head, both, QUIRE_BAD_VALUE, "frame");
  both = high - 1;
  poke(head, both, QUIRE_BAD_VALUE, "frame");
}

// More tokens than lie outside the ring, in a frame whose bytes add up.
TEST_CASE("a frame that holds more tokens than there are is refused",
          "[lifecycle][export][errors]") {
  RigSpec spec = fork_spec(QUIRE_RECIPE_KEEP_ALL, 2);
  Fixture f(spec);
  f.refused(
      f.with_header([](FrameHeader& h) { h.tokens = kPrompt - 1; }), QUIRE_BAD_VALUE, "frame");
}

TEST_CASE("bytes of any kind behind a right checksum are taken or refused",
          "[lifecycle][export][errors]") {
  Fixture f;
  int taken = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::uint8_t> bad = f.frame;
    for (std::uint32_t n = 1 + f.rng.below(4); n > 0; --n) {
      const std::size_t at =
          kFrameChecked + 8 +
          f.rng.below(static_cast<std::uint32_t>(bad.size() - kFrameChecked - 8));
      bad[at] = static_cast<std::uint8_t>(f.rng.below(256));
    }
    bad = Fixture::sealed(bad);
    std::int32_t made = -1;
    if (!f.rig.cache.import_frame(bad.data(), bad.size(), &made).ok()) continue;
    ++taken;
    REQUIRE(check_pool(f.rig.state()) == "");
    const std::uint32_t tokens = f.rig.cache.info(made).tokens;
    if (tokens < kPrompt + 8) f.rig.step(made, f.stream, tokens);
    REQUIRE(f.rig.cache.close(made).ok());
  }
  REQUIRE(taken > 100);
}

TEST_CASE("an export without room or out of order is refused", "[lifecycle][export][errors]") {
  Fixture f;
  std::vector<std::uint8_t> room(f.frame.size(), 0xaa);
  const std::vector<std::uint8_t> before = room;
  const Result small = f.rig.cache.export_frame(f.slot, room.data(), room.size() - 1);
  REQUIRE(small.status() == QUIRE_MEMORY_TOO_SMALL);
  REQUIRE(std::string(small.field()) == "bytes");
  REQUIRE(small.needed() == room.size());
  REQUIRE(f.rig.cache.export_frame(f.slot, nullptr, 0).status() == QUIRE_INVALID_ARGUMENT);
  REQUIRE(f.rig.cache.export_frame(1, room.data(), room.size()).status() == QUIRE_BAD_STATE);
  REQUIRE(f.rig.begin(f.slot).ok());
  REQUIRE(f.rig.cache.export_frame(f.slot, room.data(), room.size()).status() == QUIRE_BAD_STATE);
  REQUIRE(room == before);
}

}  // namespace
}  // namespace quire::test
