// quire_layout_make. Oracle: page_layout() of the headers, field by field, and the rules of quire.h
// for wrong calls: a status number, the field in the error, the layout untouched.
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "quire/codec/page_layout.hpp"
#include "quire/quire.h"
#include "support/catch.hpp"
#include "support/codec_call.hpp"
#include "support/codec_layout.hpp"

namespace quire {
namespace {

quire_vector_format c_format(const VectorFormat& f) {
  return {static_cast<std::uint32_t>(f.grid), f.bits, f.group, f.transform};
}

quire_layout_desc c_desc(const PageLayoutSpec& spec) {
  quire_layout_desc desc = QUIRE_LAYOUT_DESC_INIT;
  if (!spec.fields.score) desc.flags |= QUIRE_LAYOUT_NO_SCORE;
  if (!spec.fields.position) desc.flags |= QUIRE_LAYOUT_NO_POSITION;
  desc.head_dim_k = spec.head_dim_k;
  desc.head_dim_v = spec.head_dim_v;
  desc.tier_count = spec.tier_count;
  desc.expected_tokens = spec.expected_tokens;
  desc.page_bytes = spec.page_bytes;
  for (std::uint32_t t = 0; t < kMaxTiers; ++t) {
    desc.tier[t] = {c_format(spec.tier[t].k), c_format(spec.tier[t].v)};
  }
  return desc;
}

// A layout of garbage, so that "untouched" can be seen.
quire_layout garbage() {
  quire_layout layout;
  std::memset(&layout, 0x6b, sizeof(layout));
  layout.struct_size = sizeof(layout);
  return layout;
}

bool equal(const quire_layout& a, const quire_layout& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

void check_tier(const quire_tier_layout& got, const TierLayout& expected, double waste) {
  REQUIRE(got.tokens == expected.tokens);
  REQUIRE(got.record_bytes == expected.record_bytes);
  for (int p = 0; p < 2; ++p) {
    REQUIRE(got.k_plane[p] == expected.k_plane[p]);
    REQUIRE(got.v_plane[p] == expected.v_plane[p]);
  }
  REQUIRE(got.k_meta == expected.k_meta);
  REQUIRE(got.v_meta == expected.v_meta);
  REQUIRE(got.score == expected.score);
  REQUIRE(got.position == expected.position);
  REQUIRE(got.bytes == expected.bytes);
  REQUIRE(got.waste == waste);
}

TEST_CASE("quire_layout_make answers what the headers answer", "[codec][plain][layout]") {
  test::Rng rng(121);
  INFO(rng.describe());
  for (int repeat = 0; repeat < 1000; ++repeat) {
    PageLayoutSpec spec = test::random_spec(rng);
    spec.fields.bias = false;
    if (rng.below(3) == 0) spec.expected_tokens = 1 + rng.below(10000);
    if (rng.below(3) == 0) spec.page_bytes = 64 * (600 + rng.below(400));
    const Expected<PageLayout> expected = page_layout(spec);
    REQUIRE(expected.ok());
    const quire_layout_desc desc = c_desc(spec);
    quire_layout layout = QUIRE_LAYOUT_INIT;
    REQUIRE(quire_layout_make(&desc, &layout) == QUIRE_OK);
    REQUIRE(layout.struct_size == sizeof(layout));
    REQUIRE(layout.flags == desc.flags);
    REQUIRE(layout.layout_version == 0);
    REQUIRE(layout.tier_count == spec.tier_count);
    REQUIRE(layout.page_bytes == expected.value().page_bytes);
    for (std::uint32_t t = 0; t < spec.tier_count; ++t) {
      check_tier(layout.tier[t], expected.value().tier[t], expected.value().waste(t));
    }
  }
}

TEST_CASE("the promised pages through the C interface", "[codec][plain][layout]") {
  const quire_layout_desc desc = c_desc(test::diffkv_spec(128));
  quire_layout layout = QUIRE_LAYOUT_INIT;
  REQUIRE(quire_layout_make(&desc, &layout) == QUIRE_OK);
  REQUIRE(layout.page_bytes == 14336);
  REQUIRE(layout.tier[0].tokens == 64);
  REQUIRE(layout.tier[1].tokens == 128);
  REQUIRE(layout.tier[0].record_bytes == 208);
  REQUIRE(layout.tier[1].record_bytes == 112);
  REQUIRE(layout.tier[1].waste == 0.0);
}

TEST_CASE("score and position flags take four bytes each", "[codec][plain][layout]") {
  for (const std::uint32_t flags : {0u, 1u, 2u, 3u}) {
    quire_layout_desc desc = c_desc(test::diffkv_spec(64));
    desc.flags = flags;
    quire_layout layout = QUIRE_LAYOUT_INIT;
    REQUIRE(quire_layout_make(&desc, &layout) == QUIRE_OK);
    const std::uint32_t saved = ((flags & QUIRE_LAYOUT_NO_SCORE) != 0 ? 4u : 0u) +
                                ((flags & QUIRE_LAYOUT_NO_POSITION) != 0 ? 4u : 0u);
    INFO("flags " << flags);
    REQUIRE(layout.tier[0].record_bytes == 112 - saved);
    REQUIRE(layout.tier[1].record_bytes == 64 - saved);
    REQUIRE(layout.flags == flags);
  }
}

struct BadDesc {
  const char* what;
  int status;
  const char* field;
  std::function<void(quire_layout_desc&)> spoil;
};

std::vector<BadDesc> bad_descs() {
  std::vector<BadDesc> list = {
      {"bias", QUIRE_UNSUPPORTED, "flags", [](auto& d) { d.flags = QUIRE_LAYOUT_BIAS; }},
      {"unknown flag", QUIRE_ABI_MISMATCH, "flags", [](auto& d) { d.flags = 8; }},
      {"high flag", QUIRE_ABI_MISMATCH, "flags", [](auto& d) { d.flags = 1u << 31; }},
      {"dim k 0", QUIRE_INVALID_ARGUMENT, "head_dim_k", [](auto& d) { d.head_dim_k = 0; }},
      {"dim k 20", QUIRE_INVALID_ARGUMENT, "head_dim_k", [](auto& d) { d.head_dim_k = 20; }},
      {"dim v 0", QUIRE_INVALID_ARGUMENT, "head_dim_v", [](auto& d) { d.head_dim_v = 0; }},
      {"dim v 272", QUIRE_INVALID_ARGUMENT, "head_dim_v", [](auto& d) { d.head_dim_v = 272; }},
      {"no tier", QUIRE_INVALID_ARGUMENT, "tier_count", [](auto& d) { d.tier_count = 0; }},
      {"three tiers", QUIRE_INVALID_ARGUMENT, "tier_count", [](auto& d) { d.tier_count = 3; }},
      {"many tiers", QUIRE_INVALID_ARGUMENT, "tier_count", [](auto& d) { d.tier_count = ~0u; }},
      {"odd page", QUIRE_INVALID_ARGUMENT, "page_bytes", [](auto& d) { d.page_bytes = 7200; }},
      {"small page", QUIRE_INVALID_ARGUMENT, "page_bytes", [](auto& d) { d.page_bytes = 64; }},
      {"large page", QUIRE_INVALID_ARGUMENT, "page_bytes", [](auto& d) { d.page_bytes = 1 << 21; }},
      {"transform",
       QUIRE_INVALID_ARGUMENT,
       "transform",
       [](auto& d) { d.tier[1].k.transform = 1; }},
  };
  for (int t = 0; t < 2; ++t) {
    list.push_back(
        {"grid of k", QUIRE_INVALID_ARGUMENT, "grid", [t](auto& d) { d.tier[t].k.grid = 0; }});
    list.push_back(
        {"grid of v", QUIRE_INVALID_ARGUMENT, "grid", [t](auto& d) { d.tier[t].v.grid = 9; }});
    list.push_back(
        {"bits of k", QUIRE_INVALID_ARGUMENT, "bits", [t](auto& d) { d.tier[t].k.bits = 1; }});
    list.push_back(
        {"bits of v", QUIRE_INVALID_ARGUMENT, "bits", [t](auto& d) { d.tier[t].v.bits = 5; }});
    list.push_back(
        {"group of k", QUIRE_INVALID_ARGUMENT, "group", [t](auto& d) { d.tier[t].k.group = 16; }});
    list.push_back(
        {"group of v", QUIRE_INVALID_ARGUMENT, "group", [t](auto& d) { d.tier[t].v.group = 128; }});
  }
  return list;
}

TEST_CASE("wrong layout questions are refused by name and write nothing",
          "[codec][plain][layout][args]") {
  for (const BadDesc& bad : bad_descs()) {
    quire_layout_desc desc = c_desc(test::diffkv_spec(64));
    quire_error error = QUIRE_ERROR_INIT;
    desc.error = &error;
    bad.spoil(desc);
    quire_layout layout = garbage();
    const quire_layout before = layout;
    const quire_status status = quire_layout_make(&desc, &layout);
    INFO(bad.what << ": status " << status << " field " << error.field);
    REQUIRE(test::reports(status, error, bad.status, bad.field));
    REQUIRE(equal(layout, before));
  }
}

TEST_CASE("a refused tier count tells the most there may be and the given one",
          "[codec][plain][layout][args]") {
  for (const std::uint32_t count : {3u, 4u, 5u, ~0u}) {
    quire_layout_desc desc = c_desc(test::diffkv_spec(64));
    quire_error error = QUIRE_ERROR_INIT;
    desc.error = &error;
    desc.tier_count = count;
    for (quire_format& tier : desc.tier) tier = desc.tier[0];
    quire_layout layout = garbage();
    INFO("tier_count " << count);
    REQUIRE(quire_layout_make(&desc, &layout) == QUIRE_INVALID_ARGUMENT);
    REQUIRE(error.needed == 2);
    REQUIRE(error.given == count);
  }
}

TEST_CASE("a refused page size names the bytes that are enough", "[codec][plain][layout][args]") {
  quire_layout_desc desc = c_desc(test::diffkv_spec(128));
  quire_error error = QUIRE_ERROR_INIT;
  desc.error = &error;
  desc.page_bytes = 3264;
  quire_layout layout = garbage();
  REQUIRE(quire_layout_make(&desc, &layout) == QUIRE_INVALID_ARGUMENT);
  REQUIRE(error.given == 3264);
  REQUIRE(error.needed == 16 * 208);  // no padding: every segment is a multiple of 64
  REQUIRE(std::string(error.text).find("3328") != std::string::npos);
}

TEST_CASE("missing pointers and foreign struct sizes are refused", "[codec][plain][layout][args]") {
  quire_layout_desc desc = c_desc(test::diffkv_spec(64));
  quire_error error = QUIRE_ERROR_INIT;
  desc.error = &error;
  quire_layout layout = garbage();
  const quire_layout before = layout;
  REQUIRE(quire_layout_make(nullptr, &layout) == QUIRE_INVALID_ARGUMENT);
  REQUIRE(quire_layout_make(nullptr, nullptr) == QUIRE_INVALID_ARGUMENT);
  REQUIRE(
      test::reports(quire_layout_make(&desc, nullptr), error, QUIRE_INVALID_ARGUMENT, "layout"));
  for (const std::uint32_t size : {0u, 4u, std::uint32_t{sizeof(desc)} - 1}) {
    quire_layout_desc other = desc;
    other.struct_size = size;
    INFO("struct_size " << size);
    REQUIRE(quire_layout_make(&other, &layout) == QUIRE_ABI_MISMATCH);
    REQUIRE(equal(layout, before));
  }
  quire_layout small = garbage();
  small.struct_size = sizeof(small) - 1;
  const quire_layout small_before = small;
  const quire_status status = quire_layout_make(&desc, &small);
  REQUIRE(test::reports(status, error, QUIRE_ABI_MISMATCH, "struct_size"));
  REQUIRE(equal(small, small_before));
}

TEST_CASE("newer structs are taken while their new fields are zero",
          "[codec][plain][layout][args]") {
  struct NewerDesc {
    quire_layout_desc desc;
    unsigned char more[24];
  };
  struct NewerLayout {
    quire_layout layout;
    unsigned char more[24];
  };
  for (const std::size_t set : {std::size_t{0}, std::size_t{23}, std::size_t{24}}) {
    NewerDesc desc = {};
    desc.desc = c_desc(test::diffkv_spec(64));
    desc.desc.struct_size = sizeof(desc);
    NewerLayout layout = {};
    layout.layout.struct_size = sizeof(layout);
    if (set < 24) desc.more[set] = 1;
    INFO("byte " << set << " behind the struct");
    const quire_status status = quire_layout_make(&desc.desc, &layout.layout);
    REQUIRE(status == (set < 24 ? QUIRE_ABI_MISMATCH : QUIRE_OK));
    if (status != QUIRE_OK) continue;
    REQUIRE(layout.layout.page_bytes == 7168);
    REQUIRE(layout.layout.struct_size == sizeof(layout));
    for (const unsigned char byte : layout.more) REQUIRE(byte == 0);
  }
}

}  // namespace
}  // namespace quire
