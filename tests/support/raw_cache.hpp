// A cache in memory of the test's own, through quire.h alone, so that every byte of it can be
// compared before and after a call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "quire/quire.h"
#include "src/cache.hpp"
#include "support/catch.hpp"

namespace quire::test {

// A region of caller memory between two guards.
class RawRegion {
 public:
  static constexpr std::size_t kGuard = 256;
  static constexpr std::size_t kAlign = 128;
  static constexpr unsigned char kFill = 0xa5;

  void allocate(std::uint64_t bytes) {
    bytes_ = bytes;
    storage_.assign(static_cast<std::size_t>(bytes) + 2 * kGuard + kAlign, kFill);
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data()) + kGuard;
    data_ = storage_.data() + kGuard + (kAlign - address % kAlign) % kAlign;
  }

  unsigned char* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }

  std::vector<unsigned char> copy() const { return {data_, data_ + bytes_}; }

  bool guards_intact() const {
    const auto is_fill = [](unsigned char c) { return c == kFill; };
    return std::all_of(storage_.data(), static_cast<const unsigned char*>(data_), is_fill) &&
           std::all_of(static_cast<const unsigned char*>(data_) + bytes_,
                       storage_.data() + storage_.size(),
                       is_fill);
  }

 private:
  std::vector<unsigned char> storage_;
  unsigned char* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

// The regions that hold state, as they were at one moment.
struct RawImage {
  static constexpr int kRegions = 4;
  static constexpr const char* kName[kRegions] = {"host", "pages", "rings", "tables"};

  std::vector<unsigned char> region[kRegions];

  // "" when equal, else the first byte that differs and how many do.
  std::string difference(const RawImage& other) const {
    for (int r = 0; r < kRegions; ++r) {
      if (region[r] == other.region[r]) continue;
      std::size_t first = 0;
      std::size_t count = 0;
      for (std::size_t i = region[r].size(); i > 0; --i) {
        if (region[r][i - 1] == other.region[r][i - 1]) continue;
        first = i - 1;
        ++count;
      }
      return std::string(kName[r]) + "+" + std::to_string(first) + ", " + std::to_string(count) +
             " bytes";
    }
    return "";
  }
};

// Two small layers with two KV heads; fields may be changed before a cache is made of it.
struct RawSpec {
  quire_group_desc group = QUIRE_GROUP_DESC_INIT;
  quire_policy policy = QUIRE_POLICY_INIT;
  quire_cache_desc desc = QUIRE_CACHE_DESC_INIT;

  explicit RawSpec(std::uint32_t recipe = QUIRE_RECIPE_DIFFKV_UPSTREAM) {
    REQUIRE(quire_recipe_get(recipe, &policy, &group, nullptr) == QUIRE_OK);
    group.layers = 2;
    group.q_heads = 4;
    group.kv_heads = 2;
    group.layout.head_dim_k = 32;
    group.layout.head_dim_v = 16;
    group.sink_tokens = policy.sink_tokens = 1;
    group.max_draft = 2;
    set_window(4);
    desc.flags = QUIRE_CACHE_SHARING;
    desc.max_sequences = 3;
    desc.max_tokens = 100;
    desc.threads = 2;
    desc.max_splits = 4;
    desc.pages = 120;
  }

  void set_window(std::uint32_t window) { group.recent_window = policy.recent_window = window; }
};

class RawCache {
 public:
  explicit RawCache(const RawSpec& raw_spec) : spec(raw_spec) {
    spec.desc.groups = &spec.group;
    REQUIRE(quire_cache_sizes_get(&spec.desc, &sizes) == QUIRE_OK);
    quire_cache_memory memory = take_memory();
    REQUIRE(quire_cache_create(&spec.desc, &memory, &cache_) == QUIRE_OK);
  }
  RawCache(const RawCache&) = delete;
  RawCache& operator=(const RawCache&) = delete;
  ~RawCache() { quire_cache_destroy(cache_); }

  quire_cache* get() const { return cache_; }

  // All state. What a refused quire_step_begin may leave behind is blanked: its unused plan
  // (scratch of a step that is not open) and the count of shortages, which is there to count
  // refusals.
  RawImage image() const {
    RawImage image;
    for (int r = 0; r < RawImage::kRegions; ++r) image.region[r] = region_[r].copy();
    blank(image, 0, &cache_->counters.shortages, sizeof(cache_->counters.shortages));
    const Step& step = cache_->step;
    if (step.open) return image;
    blank(image, 0, step.slots, cache_->max.batch * sizeof(StepSlot));
    blank(image, 3, step.plans, cache_->max.batch * cache_->group.heads() * sizeof(HeadPlan));
    return image;
  }

  bool guards_intact() const {
    return std::all_of(
        region_, region_ + 5, [](const RawRegion& region) { return region.guards_intact(); });
  }

  quire_stats stats() const {
    quire_stats stats = QUIRE_STATS_INIT;
    REQUIRE(quire_stats_get(cache_, &stats, nullptr) == QUIRE_OK);
    return stats;
  }

  quire_seq_info info(std::int32_t slot) const {
    quire_seq_info info = QUIRE_SEQ_INFO_INIT;
    REQUIRE(quire_seq_info_get(cache_, slot, &info, nullptr) == QUIRE_OK);
    return info;
  }

  RawSpec spec;
  quire_cache_sizes sizes = QUIRE_CACHE_SIZES_INIT;

 private:
  quire_cache_memory take_memory() {
    const std::uint64_t bytes[5] = {
        sizes.host, sizes.pages, sizes.rings, sizes.tables, sizes.workspace};
    for (int r = 0; r < 5; ++r) region_[r].allocate(bytes[r]);
    quire_cache_memory memory = QUIRE_CACHE_MEMORY_INIT;
    memory.host = region_[0].data();
    memory.pages = region_[1].data();
    memory.rings = region_[2].data();
    memory.tables = region_[3].data();
    memory.workspace = region_[4].data();
    memory.host_bytes = bytes[0];
    memory.pages_bytes = bytes[1];
    memory.rings_bytes = bytes[2];
    memory.tables_bytes = bytes[3];
    memory.workspace_bytes = bytes[4];
    return memory;
  }

  void blank(RawImage& image, int region, const void* from, std::size_t bytes) const {
    const auto* first = static_cast<const unsigned char*>(from);
    const std::ptrdiff_t at = first - region_[region].data();
    REQUIRE(at >= 0);
    REQUIRE(static_cast<std::size_t>(at) + bytes <= image.region[region].size());
    std::fill_n(image.region[region].begin() + at, bytes, static_cast<unsigned char>(0));
  }

  RawRegion region_[5];
  quire_cache* cache_ = nullptr;
};

}  // namespace quire::test
