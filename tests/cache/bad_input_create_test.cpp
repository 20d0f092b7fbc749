// Oracle: the ranges in the comments of quire_group_desc, quire_cache_desc and quire_cache_memory.
// A refused create writes nothing into the memory it was given.
#include <array>

#include "support/raw_calls.hpp"

namespace quire::test {
namespace {

using Spec = RawSpec;
constexpr quire_status kBadSize = QUIRE_ABI_MISMATCH;

const Bad<Spec> kBad[] = {
    {"no layers", [](Spec& s) { s.group.layers = 0; }, {1, "layers", "1 to 1024", -1, 0}},
    {"1025 layers", [](Spec& s) { s.group.layers = 1025; }, {1, "layers", "1024", -1, 1025}},
    {"no KV heads", [](Spec& s) { s.group.kv_heads = 0; }, {1, "kv_heads", "1 to", -1, 0}},
    {"1025 KV heads", [](Spec& s) { s.group.kv_heads = 1025; }, {1, "kv_heads", "1024", -1, 1025}},
    {"no query heads", [](Spec& s) { s.group.q_heads = 0; }, {1, "q_heads", "64 times", 2, 0}},
    {"G below 1", [](Spec& s) { s.group.q_heads = 1; }, {1, "q_heads", "64 times", 2, 1}},
    {"G not whole", [](Spec& s) { s.group.q_heads = 5; }, {1, "q_heads", "64 times", 2, 5}},
    {"G of 65", [](Spec& s) { s.group.q_heads = 130; }, {1, "q_heads", "64 times", 2, 130}},
    {"too many sinks",
     [](Spec& s) { s.group.sink_tokens = 4097; },
     {1, "sink_tokens", "4096", 4096, 4097}},
    {"too long a window",
     [](Spec& s) { s.group.recent_window = 65537; },
     {1, "recent_window", "65536", 65536, 65537}},
    {"too many drafts",
     [](Spec& s) { s.group.max_draft = 1025; },
     {1, "max_draft", "1024", 1024, 1025}},
    {"ring format 5", [](Spec& s) { s.group.ring_format = 5; }, {1, "ring_format", "0 to 4", 4, 5}},
    {"stride below the page",
     [](Spec& s) { s.group.page_stride = 64; },
     {1, "page_stride", "not below page_bytes", -1, 64}},
    {"negative stride", [](Spec& s) { s.group.page_stride = -4096; }, {1, "page_stride", "64"}},
    {"odd stride", [](Spec& s) { s.group.page_stride = (1 << 20) + 32; }, {1, "page_stride", "64"}},
    {"stride whose pages wrap around",
     [](Spec& s) {
       s.group.page_stride = std::int64_t{1} << 62;
       s.desc.pages = 5;
     },
     {1, "page_stride", "page_bytes"}},
    {"group flags", [](Spec& s) { s.group.flags = 1; }, {kBadSize, "flags", "", 0, 1}},
    {"group too small",
     [](Spec& s) { s.group.struct_size -= 8; },
     {kBadSize, "struct_size", "", sizeof(quire_group_desc), sizeof(quire_group_desc) - 8}},
    {"layout of size 0",
     [](Spec& s) { s.group.layout.struct_size = 0; },
     {kBadSize, "struct_size", "", sizeof(quire_layout_desc), 0}},
    {"layout larger than its place",
     [](Spec& s) { s.group.layout.struct_size += 8; },
     {kBadSize, "struct_size", "", sizeof(quire_layout_desc)}},
    {"low tier above the high one",
     [](Spec& s) { std::swap(s.group.layout.tier[0], s.group.layout.tier[1]); },
     {1, "tier", "not larger than the high one"}},
    {"no sequences", [](Spec& s) { s.desc.max_sequences = 0; }, {1, "max_sequences", "1 to"}},
    {"65537 sequences",
     [](Spec& s) { s.desc.max_sequences = 65537; },
     {1, "max_sequences", "65536", 65536, 65537}},
    {"batch above sequences",
     [](Spec& s) { s.desc.max_batch = 4; },
     {1, "max_batch", "up to max_sequences", 3, 4}},
    {"no tokens", [](Spec& s) { s.desc.max_tokens = 0; }, {1, "max_tokens", "16777215", -1, 0}},
    {"2^24 tokens",
     [](Spec& s) { s.desc.max_tokens = 1u << 24; },
     {1, "max_tokens", "16777215", 16777215, 1 << 24}},
    {"1025 threads", [](Spec& s) { s.desc.threads = 1025; }, {1, "threads", "1024", 1024, 1025}},
    {"65 splits", [](Spec& s) { s.desc.max_splits = 65; }, {1, "max_splits", "64", 64, 65}},
    {"no pages", [](Spec& s) { s.desc.pages = 0; }, {1, "pages", "1 to", -1, 0}},
    {"2^31 pages", [](Spec& s) { s.desc.pages = 1ull << 31; }, {1, "pages", "2^31", -1, 1ll << 31}},
    {"no group",
     [](Spec& s) { s.desc.group_count = 0; },
     {QUIRE_INVALID_ARGUMENT, "group_count", "1 to 8", 8, 0}},
    {"nine groups",
     [](Spec& s) { s.desc.group_count = 9; },
     {QUIRE_INVALID_ARGUMENT, "group_count", "1 to 8", 8, 9}},
    {"cache flags", [](Spec& s) { s.desc.flags = 4 + 1; }, {kBadSize, "flags", "", 3, 5}},
};

// Memory for a cache that create is asked to refuse.
struct Place {
  RawRegion region[5];
  quire_cache_sizes sizes = QUIRE_CACHE_SIZES_INIT;
  quire_cache_memory memory = QUIRE_CACHE_MEMORY_INIT;

  explicit Place(const quire_cache_desc& desc) {
    REQUIRE(quire_cache_sizes_get(&desc, &sizes) == QUIRE_OK);
    const std::uint64_t bytes[5] = {
        sizes.host, sizes.pages, sizes.rings, sizes.tables, sizes.workspace};
    for (int r = 0; r < 5; ++r) region[r].allocate(bytes[r]);
    for (int r = 0; r < 5; ++r) {
      *data(r) = region[r].data();
      *size(r) = bytes[r];
    }
  }

  void** data(int r) {
    void** const all[5] = {
        &memory.host, &memory.pages, &memory.rings, &memory.tables, &memory.workspace};
    return all[r];
  }
  std::uint64_t* size(int r) {
    std::uint64_t* const all[5] = {&memory.host_bytes,
                                   &memory.pages_bytes,
                                   &memory.rings_bytes,
                                   &memory.tables_bytes,
                                   &memory.workspace_bytes};
    return all[r];
  }

  bool untouched() const {
    return std::all_of(region, region + 5, [](const RawRegion& r) {
      const std::vector<unsigned char> bytes = r.copy();
      return r.guards_intact() && std::all_of(bytes.begin(), bytes.end(), [](unsigned char c) {
               return c == RawRegion::kFill;
             });
    });
  }
};

constexpr std::array<const char*, 5> kRegionName = {
    "host", "pages", "rings", "tables", "workspace"};

quire_cache* const kNotACache = reinterpret_cast<quire_cache*>(std::uintptr_t{64});

// Asks for a cache that must be refused with an error whose field begins with the region's name.
void refuse_memory(Place& place, quire_cache_desc desc, quire_status status, int region) {
  quire_error error = QUIRE_ERROR_INIT;
  desc.error = &error;
  quire_cache* cache = kNotACache;
  INFO(kRegionName[static_cast<std::size_t>(region)]);
  CHECK(quire_cache_create(&desc, &place.memory, &cache) == status);
  CHECK(cache == kNotACache);
  CHECK(place.untouched());
  CHECK(error.status == status);
  CHECK(std::string(error.field).find(kRegionName[static_cast<std::size_t>(region)]) == 0);
  const std::uint64_t size = *place.size(region);
  if (status == QUIRE_MEMORY_TOO_SMALL) CHECK(error.needed == size + 1);
  if (status == QUIRE_MEMORY_TOO_SMALL) CHECK(error.given == size);
  if (status == QUIRE_MISALIGNED) CHECK(error.needed == place.sizes.alignment);
}

}  // namespace

TEST_CASE("a description out of range is refused by field and range", "[cache][bad_input]") {
  for (const Bad<Spec>& bad : kBad) {
    INFO(bad.what);
    RawSpec spec;
    spec.desc.groups = &spec.group;
    Place place(spec.desc);
    quire_error error = QUIRE_ERROR_INIT;
    bad.spoil(spec);
    spec.desc.error = &error;
    quire_cache_sizes sizes = QUIRE_CACHE_SIZES_INIT;
    const quire_status status = quire_cache_sizes_get(&spec.desc, &sizes);
    CHECK(status == bad.want.status);
    if (status == QUIRE_OK) continue;
    CHECK(sizes.host == 0);
    require_error(error, bad.want);
    error = QUIRE_ERROR_INIT;
    quire_cache* cache = kNotACache;
    CHECK(quire_cache_create(&spec.desc, &place.memory, &cache) == bad.want.status);
    require_error(error, bad.want);
    CHECK(cache == kNotACache);
    CHECK(place.untouched());
  }
}

TEST_CASE("memory that is null, misaligned or a byte too small is refused by region",
          "[cache][bad_input]") {
  RawSpec spec;
  spec.desc.groups = &spec.group;
  Place place(spec.desc);
  for (int r = 0; r < 5; ++r) {
    void* const data = *place.data(r);
    *place.data(r) = nullptr;
    refuse_memory(place, spec.desc, QUIRE_INVALID_ARGUMENT, r);
    for (const int shift : {1, 2, 4, 8, 16, 32, 64}) {
      *place.data(r) = static_cast<unsigned char*>(data) + shift;
      refuse_memory(place, spec.desc, QUIRE_MISALIGNED, r);
    }
    *place.data(r) = data;
    *place.size(r) -= 1;
    refuse_memory(place, spec.desc, QUIRE_MEMORY_TOO_SMALL, r);
    *place.size(r) += 1;
  }
  quire_cache* cache = nullptr;
  CHECK(quire_cache_create(&spec.desc, &place.memory, &cache) == QUIRE_OK);
  CHECK(cache != nullptr);
  quire_cache_destroy(cache);
  CHECK(std::all_of(
      place.region, place.region + 5, [](const RawRegion& r) { return r.guards_intact(); }));
}

TEST_CASE("create and its sizes name the struct that is missing", "[cache][bad_input]") {
  RawSpec spec;
  spec.desc.groups = &spec.group;
  Place place(spec.desc);
  quire_error error = QUIRE_ERROR_INIT;
  spec.desc.error = &error;
  quire_cache* cache = kNotACache;
  CHECK(quire_cache_sizes_get(nullptr, &place.sizes) == QUIRE_INVALID_ARGUMENT);
  CHECK(quire_cache_create(nullptr, &place.memory, &cache) == QUIRE_INVALID_ARGUMENT);
  CHECK(quire_cache_sizes_get(&spec.desc, nullptr) == QUIRE_INVALID_ARGUMENT);
  require_error(error, {QUIRE_INVALID_ARGUMENT, "sizes", "not NULL"});
  CHECK(quire_cache_create(&spec.desc, nullptr, &cache) == QUIRE_INVALID_ARGUMENT);
  require_error(error, {QUIRE_INVALID_ARGUMENT, "memory", "not NULL"});
  CHECK(quire_cache_create(&spec.desc, &place.memory, nullptr) == QUIRE_INVALID_ARGUMENT);
  require_error(error, {QUIRE_INVALID_ARGUMENT, "cache", "not NULL"});
  spec.desc.groups = nullptr;
  CHECK(quire_cache_create(&spec.desc, &place.memory, &cache) == QUIRE_INVALID_ARGUMENT);
  require_error(error, {QUIRE_INVALID_ARGUMENT, "groups", "not NULL"});
  CHECK(cache == kNotACache);
  CHECK(place.untouched());
  quire_cache_destroy(nullptr);
}

TEST_CASE("the description may be changed or forgotten after create", "[cache][bad_input]") {
  RawSpec spec;
  spec.desc.groups = &spec.group;
  Place place(spec.desc);
  quire_cache* cache = nullptr;
  REQUIRE(quire_cache_create(&spec.desc, &place.memory, &cache) == QUIRE_OK);
  std::memset(static_cast<void*>(&spec.group), 0xff, sizeof(spec.group));
  std::memset(static_cast<void*>(&spec.desc), 0xff, sizeof(spec.desc));
  std::memset(static_cast<void*>(&place.memory), 0xff, sizeof(place.memory));
  quire_seq_open_args open = QUIRE_SEQ_OPEN_ARGS_INIT;
  open.policy = &spec.policy;
  std::int32_t slot = -1;
  CHECK(quire_seq_open(cache, &open, &slot) == QUIRE_OK);
  CHECK(slot == 0);
  CHECK(test::begin_prompt(cache, slot, 50, nullptr) == QUIRE_OK);
  quire_cache_destroy(cache);
}

}  // namespace quire::test
