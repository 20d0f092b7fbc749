// Oracle: the ranges in the comments of quire_layout_desc, quire_vector_format and quire_format.
// A description out of range is refused with its field and range, and the output is untouched.
#include <limits>

#include "support/raw_calls.hpp"

namespace quire::test {
namespace {

using Desc = quire_layout_desc;

Desc good_desc() {
  Desc desc = QUIRE_LAYOUT_DESC_INIT;
  desc.head_dim_k = 128;
  desc.head_dim_v = 64;
  desc.tier_count = 2;
  desc.tier[0] = {{QUIRE_GRID_AFFINE, 8, 0, 0}, {QUIRE_GRID_AFFINE, 4, 64, 0}};
  desc.tier[1] = {{QUIRE_GRID_AFFINE, 4, 32, 0}, {QUIRE_GRID_AFFINE, 2, 0, 0}};
  return desc;
}

constexpr const char* kDims = "multiple of 16 from 16 to 256";
constexpr const char* kBits = "8, 6, 4, 3, 2";
constexpr const char* kGroups = "32 or 64";

const Bad<Desc> kBad[] = {
    {"head_dim_k 0", [](Desc& d) { d.head_dim_k = 0; }, {1, "head_dim_k", kDims, 0, 0}},
    {"head_dim_k 8", [](Desc& d) { d.head_dim_k = 8; }, {1, "head_dim_k", kDims, 0, 8}},
    {"head_dim_k 15", [](Desc& d) { d.head_dim_k = 15; }, {1, "head_dim_k", kDims, 0, 15}},
    {"head_dim_k 100", [](Desc& d) { d.head_dim_k = 100; }, {1, "head_dim_k", kDims, 0, 100}},
    {"head_dim_k 257", [](Desc& d) { d.head_dim_k = 257; }, {1, "head_dim_k", kDims, 0, 257}},
    {"head_dim_k 272", [](Desc& d) { d.head_dim_k = 272; }, {1, "head_dim_k", kDims, 0, 272}},
    {"head_dim_k all ones", [](Desc& d) { d.head_dim_k = QUIRE_ALL; }, {1, "head_dim_k", kDims}},
    {"head_dim_v 0", [](Desc& d) { d.head_dim_v = 0; }, {1, "head_dim_v", kDims, 0, 0}},
    {"head_dim_v 40", [](Desc& d) { d.head_dim_v = 40; }, {1, "head_dim_v", kDims, 0, 40}},
    {"head_dim_v 512", [](Desc& d) { d.head_dim_v = 512; }, {1, "head_dim_v", kDims, 0, 512}},
    {"no tier", [](Desc& d) { d.tier_count = 0; }, {1, "tier_count", "1 or 2", -1, 0}},
    {"three tiers", [](Desc& d) { d.tier_count = 3; }, {1, "tier_count", "1 or 2", -1, 3}},
    {"many tiers", [](Desc& d) { d.tier_count = QUIRE_ALL; }, {1, "tier_count", "1 or 2"}},
    {"bias", [](Desc& d) { d.flags = QUIRE_LAYOUT_BIAS; }, {QUIRE_UNSUPPORTED, "flags", "BIAS"}},
    {"unknown flag", [](Desc& d) { d.flags = 8 + 1; }, {QUIRE_ABI_MISMATCH, "flags", "", -1, 9}},
    {"top flag",
     [](Desc& d) { d.flags = 0x80000000u; },
     {QUIRE_ABI_MISMATCH, "flags", "", -1, 0x80000000}},
    {"page of 63 bytes", [](Desc& d) { d.page_bytes = 63; }, {1, "page_bytes", "64", -1, 63}},
    {"page of 4100 bytes", [](Desc& d) { d.page_bytes = 4100; }, {1, "page_bytes", "64", -1, 4100}},
    {"page too small", [](Desc& d) { d.page_bytes = 64; }, {1, "page_bytes", "16 tokens", -1, 64}},
    {"page too large",
     [](Desc& d) { d.page_bytes = (1u << 20) + 64; },
     {1, "page_bytes", "1 MiB", -1, (1 << 20) + 64}},
    {"page of 2^63", [](Desc& d) { d.page_bytes = 1ull << 63; }, {1, "page_bytes", "1 MiB"}},
    {"grid 0", [](Desc& d) { d.tier[0].k.grid = 0; }, {1, "grid", "1 to 5", -1, 0}},
    {"grid 6", [](Desc& d) { d.tier[1].v.grid = 6; }, {1, "grid", "1 to 5", -1, 6}},
    {"0 bits", [](Desc& d) { d.tier[0].k.bits = 0; }, {1, "bits", kBits, -1, 0}},
    {"5 bits", [](Desc& d) { d.tier[0].v.bits = 5; }, {1, "bits", kBits, -1, 5}},
    {"7 bits", [](Desc& d) { d.tier[1].k.bits = 7; }, {1, "bits", kBits, -1, 7}},
    {"16 affine bits", [](Desc& d) { d.tier[1].v.bits = 16; }, {1, "bits", kBits, -1, 16}},
    {"8 bits uniform",
     [](Desc& d) {
       d.tier[0].k = {QUIRE_GRID_SYMMETRIC_UNIFORM, 8, 0, 0};
     },
     {1, "bits", "symmetric uniform", -1, 8}},
    {"6 bits table",
     [](Desc& d) {
       d.tier[0].k = {QUIRE_GRID_SYMMETRIC_TABLE, 6, 0, 0};
     },
     {1, "bits", "table", -1, 6}},
    {"f16 of 8 bits",
     [](Desc& d) {
       d.tier[0].k = {QUIRE_GRID_F16, 8, 0, 0};
     },
     {1, "bits", "16 for f16", -1, 8}},
    {"group 16", [](Desc& d) { d.tier[0].k.group = 16; }, {1, "group", kGroups, -1, 16}},
    {"group 128", [](Desc& d) { d.tier[0].k.group = 128; }, {1, "group", kGroups, -1, 128}},
    {"group on f16",
     [](Desc& d) {
       d.tier[0].k = {QUIRE_GRID_F16, 16, 32, 0};
     },
     {1, "group", "0 for 16-bit", -1, 32}},
    {"group does not divide",
     [](Desc& d) { d.head_dim_v = 96; },
     {1, "group", "divisor of the head dim", 96, 64}},
    {"transform 4", [](Desc& d) { d.tier[0].k.transform = 4; }, {1, "transform", "1", 3, 4}},
    {"K transforms differ",
     [](Desc& d) { d.tier[1].k.transform = QUIRE_TRANSFORM_HADAMARD; },
     {1, "transform", "same for all tiers", 0, 1}},
    {"V transforms differ",
     [](Desc& d) { d.tier[1].v.transform = QUIRE_TRANSFORM_OFFSET; },
     {1, "transform", "same for all tiers", 0, 2}},
};

template <class T>
std::vector<unsigned char> bytes_of(const T& value) {
  const auto* raw = reinterpret_cast<const unsigned char*>(&value);
  return {raw, raw + sizeof(T)};
}

}  // namespace

TEST_CASE("a layout out of range is refused by field and range, output untouched",
          "[cache][bad_input]") {
  for (const Bad<Desc>& bad : kBad) {
    INFO(bad.what);
    quire_error error = QUIRE_ERROR_INIT;
    quire_layout layout = QUIRE_LAYOUT_INIT;
    layout.page_bytes = 77;
    const std::vector<unsigned char> before = bytes_of(layout);
    Desc desc = good_desc();
    bad.spoil(desc);
    desc.error = &error;
    CHECK(quire_layout_make(&desc, &layout) == bad.want.status);
    CHECK(before == bytes_of(layout));
    require_error(error, bad.want);
  }
  quire_layout layout = QUIRE_LAYOUT_INIT;
  const Desc desc = good_desc();
  CHECK(quire_layout_make(&desc, &layout) == QUIRE_OK);
  CHECK(layout.page_bytes > 0);
}

TEST_CASE("the ranges of a layout hold inside a layer group", "[cache][bad_input]") {
  for (const Bad<Desc>& bad : kBad) {
    INFO(bad.what);
    quire_error error = QUIRE_ERROR_INIT;
    RawSpec spec;
    spec.desc.groups = &spec.group;
    spec.group.layout = good_desc();
    bad.spoil(spec.group.layout);
    spec.desc.error = &error;
    quire_cache_sizes sizes = QUIRE_CACHE_SIZES_INIT;
    const std::vector<unsigned char> before = bytes_of(sizes);
    CHECK(quire_cache_sizes_get(&spec.desc, &sizes) == bad.want.status);
    CHECK(before == bytes_of(sizes));
    require_error(error, bad.want);
  }
}

TEST_CASE("a layout call without its structs names the missing one", "[cache][bad_input]") {
  quire_error error = QUIRE_ERROR_INIT;
  Desc desc = good_desc();
  desc.error = &error;
  quire_layout layout = QUIRE_LAYOUT_INIT;
  CHECK(quire_layout_make(nullptr, &layout) == QUIRE_INVALID_ARGUMENT);
  CHECK(quire_layout_make(nullptr, nullptr) == QUIRE_INVALID_ARGUMENT);
  CHECK(quire_layout_make(&desc, nullptr) == QUIRE_INVALID_ARGUMENT);
  require_error(error, {QUIRE_INVALID_ARGUMENT, "layout", "not NULL"});
}

TEST_CASE("an error struct of an older or missing size is left alone", "[cache][bad_input]") {
  for (const std::uint32_t size : {0u, 8u, std::uint32_t{sizeof(quire_error)} - 1}) {
    quire_error error = QUIRE_ERROR_INIT;
    error.struct_size = size;
    const std::vector<unsigned char> before = bytes_of(error);
    Desc desc = good_desc();
    desc.head_dim_k = 1;
    desc.error = &error;
    quire_layout layout = QUIRE_LAYOUT_INIT;
    CHECK(quire_layout_make(&desc, &layout) == QUIRE_INVALID_ARGUMENT);
    CHECK(before == bytes_of(error));
  }
}

TEST_CASE("an error is written on failure only and its strings are ended", "[cache][bad_input]") {
  quire_error error = QUIRE_ERROR_INIT;
  std::memset(error.field, 'x', sizeof(error.field));
  std::memset(error.text, 'y', sizeof(error.text));
  const std::vector<unsigned char> before = bytes_of(error);
  Desc desc = good_desc();
  desc.error = &error;
  quire_layout layout = QUIRE_LAYOUT_INIT;
  CHECK(quire_layout_make(&desc, &layout) == QUIRE_OK);
  CHECK(before == bytes_of(error));
  desc.head_dim_k = 1;
  CHECK(quire_layout_make(&desc, &layout) == QUIRE_INVALID_ARGUMENT);
  CHECK(std::memchr(error.field, '\0', sizeof(error.field)) != nullptr);
  CHECK(std::memchr(error.text, '\0', sizeof(error.text)) != nullptr);
}

TEST_CASE("every status number has a name of its own and unknown numbers have one too",
          "[cache][bad_input]") {
  std::vector<std::string> names;
  for (quire_status s = QUIRE_OK; s <= QUIRE_INTERNAL; ++s) {
    names.emplace_back(quire_status_text(s));
    CHECK_FALSE(names.back().empty());
  }
  const std::string unknown = quire_status_text(QUIRE_INTERNAL + 1);
  names.push_back(unknown);
  std::sort(names.begin(), names.end());
  CHECK(std::adjacent_find(names.begin(), names.end()) == names.end());
  for (const quire_status s : {-1,
                               1000,
                               std::numeric_limits<quire_status>::min(),
                               std::numeric_limits<quire_status>::max()})
    CHECK(std::string(quire_status_text(s)) == unknown);
}

TEST_CASE("a recipe that does not exist changes neither policy nor group", "[cache][bad_input]") {
  quire_policy policy = QUIRE_POLICY_INIT;
  policy.cadence = 77;
  quire_group_desc group = QUIRE_GROUP_DESC_INIT;
  group.recent_window = 99;
  const std::vector<unsigned char> policy_before = bytes_of(policy);
  const std::vector<unsigned char> group_before = bytes_of(group);
  for (const std::uint32_t recipe : {0u, 10u, QUIRE_ALL}) {
    quire_error error = QUIRE_ERROR_INIT;
    CHECK(quire_recipe_get(recipe, &policy, &group, &error) == QUIRE_INVALID_ARGUMENT);
    require_error(error, {QUIRE_INVALID_ARGUMENT, "recipe", "1 to 9", -1, recipe});
  }
  CHECK(quire_recipe_get(QUIRE_RECIPE_H2O, nullptr, &group, nullptr) == QUIRE_INVALID_ARGUMENT);
  group.struct_size = sizeof(group) - 8;
  CHECK(quire_recipe_get(QUIRE_RECIPE_H2O, &policy, &group, nullptr) == QUIRE_ABI_MISMATCH);
  group.struct_size = sizeof(group);
  CHECK(policy_before == bytes_of(policy));
  CHECK(group_before == bytes_of(group));
}

}  // namespace quire::test
