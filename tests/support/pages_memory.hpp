// The memory of a cache: regions of the exact size asked for with a guard behind each, and
// snapshots of all regions of a running cache, byte by byte.
#pragma once

#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "src/cache.hpp"
#include "support/catch.hpp"
#include "support/pages_cache.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace quire::test {

// One region; the bytes behind it must not even be read.
class GuardedRegion {
 public:
  GuardedRegion(std::uint64_t size, std::uint8_t fill) : size_(size), data_(allocate(size)) {
    std::memset(data_, fill, size);
    std::memset(data_ + size, kGuard, kGuardBytes);
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(data_ + size, kGuardBytes);
#endif
  }
  GuardedRegion(GuardedRegion&& other) noexcept : size_(other.size_), data_(other.data_) {
    other.data_ = nullptr;
  }
  ~GuardedRegion() {
    unguard();
    ::operator delete (data_, std::align_val_t{128});
  }

  std::uint8_t* data() const { return data_; }
  std::uint64_t size() const { return size_; }

  bool is_filled_with(std::uint8_t value) const {
    for (std::uint64_t i = 0; i < size_; ++i) {
      if (data_[i] != value) return false;
    }
    return true;
  }

  bool guard_intact() {
    unguard();
    for (std::uint64_t i = 0; i < kGuardBytes; ++i) {
      if (data_[size_ + i] != kGuard) return false;
    }
    return true;
  }

 private:
  static constexpr std::uint64_t kGuardBytes = 256;
  static constexpr std::uint8_t kGuard = 0x5a;

  static std::uint8_t* allocate(std::uint64_t size) {
    return static_cast<std::uint8_t*>(::operator new (size + kGuardBytes, std::align_val_t{128}));
  }

  void unguard() const {
#if defined(__SANITIZE_ADDRESS__)
    if (data_ != nullptr) __asan_unpoison_memory_region(data_ + size_, kGuardBytes);
#endif
  }

  std::uint64_t size_;
  std::uint8_t* data_;
};

constexpr const char* kRegionNames[5] = {"host", "pages", "rings", "tables", "workspace"};

// The five regions of a description, exactly as large as quire_cache_sizes_get says.
class ExactMemory {
 public:
  ExactMemory(const quire_cache_desc& desc, std::uint8_t fill) {
    REQUIRE(quire_cache_sizes_get(&desc, &sizes) == QUIRE_OK);
    for (const std::uint64_t bytes :
         {sizes.host, sizes.pages, sizes.rings, sizes.tables, sizes.workspace})
      regions.emplace_back(bytes, fill);
  }

  quire_cache_memory memory() const {
    quire_cache_memory m = QUIRE_CACHE_MEMORY_INIT;
    for (int i = 0; i < 5; ++i) {
      pointer(m, i) = regions[static_cast<std::size_t>(i)].data();
      bytes(m, i) = regions[static_cast<std::size_t>(i)].size();
    }
    return m;
  }

  static void*& pointer(quire_cache_memory& m, int i) {
    void** all[5] = {&m.host, &m.pages, &m.rings, &m.tables, &m.workspace};
    return *all[i];
  }
  static std::uint64_t& bytes(quire_cache_memory& m, int i) {
    std::uint64_t* all[5] = {
        &m.host_bytes, &m.pages_bytes, &m.rings_bytes, &m.tables_bytes, &m.workspace_bytes};
    return *all[i];
  }

  quire_cache_sizes sizes = QUIRE_CACHE_SIZES_INIT;
  std::vector<GuardedRegion> regions;
};

// Copies of the host, pages, rings and tables regions of a cache that the facade owns. Two things
// may change in a refused call: the count of shortages (and the fault counter that caused it), and
// the plan of the step, scratch until a step is open.
class MemorySnapshot {
 public:
  explicit MemorySnapshot(const PoolCache& box) : cache_(box.state()) {
    const quire_cache_desc desc = box.spec.desc();
    quire_cache_sizes sizes = QUIRE_CACHE_SIZES_INIT;
    REQUIRE(quire_cache_sizes_get(&desc, &sizes) == QUIRE_OK);
    add("host", box.cache.get(), sizes.host);
    add("pages", cache_.space.base, sizes.pages);
    add("rings", cache_.rings, sizes.rings);
    add("tables", cache_.free_pages.ids, sizes.tables);
    allow(&cache_.counters.shortages, sizeof(cache_.counters.shortages));
    allow(&cache_.fault_countdown, sizeof(cache_.fault_countdown));
    allow(cache_.step.slots, cache_.max.batch * sizeof(StepSlot));
    allow(cache_.step.plans, cache_.max.batch * cache_.group.heads() * sizeof(HeadPlan));
  }

  // Empty when nothing changed, else where.
  std::string difference() const {
    for (const Part& part : parts_) {
      for (std::size_t i = 0; i < part.copy.size(); ++i) {
        if (part.data[i] != part.copy[i] && !allowed(part.data + i))
          return std::string(part.name) + " at byte " + std::to_string(i);
      }
    }
    return "";
  }

 private:
  struct Part {
    const char* name;
    const std::uint8_t* data;
    std::vector<std::uint8_t> copy;
  };
  struct Range {
    const std::uint8_t* data;
    std::size_t bytes;
  };

  void add(const char* name, const void* data, std::uint64_t bytes) {
    const auto* first = static_cast<const std::uint8_t*>(data);
    parts_.push_back({name, first, std::vector<std::uint8_t>(first, first + bytes)});
  }
  void allow(const void* data, std::size_t bytes) {
    allowed_.push_back({static_cast<const std::uint8_t*>(data), bytes});
  }
  bool allowed(const std::uint8_t* byte) const {
    for (const Range& r : allowed_) {
      if (byte >= r.data && byte < r.data + r.bytes) return true;
    }
    return false;
  }

  const CacheState& cache_;
  std::vector<Part> parts_;
  std::vector<Range> allowed_;
};

}  // namespace quire::test
