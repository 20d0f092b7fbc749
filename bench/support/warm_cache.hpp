// A cache whose memory has been written to before, so that a bench times work and not the first
// touch of memory; and sequences to put into it.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "quire/quire.h"

namespace quire::bench {

// A bench has nobody to report to.
inline void need(quire_status status, const quire_error& error) {
  if (status == QUIRE_OK) return;
  std::fprintf(stderr, "%s: %s: %s\n", quire_status_text(status), error.field, error.text);
  std::exit(1);
}

// Calls f(error*) and ends the program if it fails.
template <class CallT>
void need(CallT&& call) {
  quire_error error = QUIRE_ERROR_INIT;
  need(call(&error), error);
}

class Memory {
 public:
  enum class Touch { kNo, kYes };

  Memory() = default;
  explicit Memory(std::uint64_t bytes, Touch touch = Touch::kYes) : bytes_(bytes) {
    data_.reset(static_cast<std::uint8_t*>(::operator new (bytes, std::align_val_t{kAlign})));
    if (touch == Touch::kYes) std::memset(data_.get(), 0x5a, bytes);
  }
  std::uint8_t* data() const { return data_.get(); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kAlign = 4096;
  struct Free {
    void operator()(std::uint8_t* p) const { ::operator delete (p, std::align_val_t{kAlign}); }
  };
  std::unique_ptr<std::uint8_t[], Free> data_;
  std::uint64_t bytes_ = 0;
};

// quire_prefill_begin from plain arguments.
inline quire_status begin_prompt(quire_cache* cache,
                                 std::int32_t slot,
                                 std::uint32_t tokens,
                                 quire_error* error) {
  quire_prefill_begin_args args = QUIRE_PREFILL_BEGIN_ARGS_INIT;
  args.slot = slot;
  args.tokens = tokens;
  args.error = error;
  return quire_prefill_begin(cache, &args);
}

class WarmCache {
 public:
  explicit WarmCache(quire_cache_desc desc, Memory::Touch touch = Memory::Touch::kYes) {
    quire_cache_sizes sizes = QUIRE_CACHE_SIZES_INIT;
    need([&](quire_error* e) {
      desc.error = e;
      return quire_cache_sizes_get(&desc, &sizes);
    });
    const std::uint64_t bytes[] = {
        sizes.host, sizes.pages, sizes.rings, sizes.tables, sizes.workspace};
    for (int i = 0; i < 5; ++i) region_[i] = Memory(bytes[i], touch);
    quire_cache_memory memory = QUIRE_CACHE_MEMORY_INIT;
    void** const at[] = {
        &memory.host, &memory.pages, &memory.rings, &memory.tables, &memory.workspace};
    std::uint64_t* const given[] = {&memory.host_bytes,
                                    &memory.pages_bytes,
                                    &memory.rings_bytes,
                                    &memory.tables_bytes,
                                    &memory.workspace_bytes};
    for (int i = 0; i < 5; ++i) {
      *at[i] = region_[i].data();
      *given[i] = bytes[i];
    }
    need([&](quire_error* e) {
      desc.error = e;
      return quire_cache_create(&desc, &memory, &cache_);
    });
  }
  WarmCache(const WarmCache&) = delete;
  WarmCache& operator=(const WarmCache&) = delete;
  ~WarmCache() { quire_cache_destroy(cache_); }

  quire_cache* get() const { return cache_; }

  std::int32_t open(const quire_policy& policy) const {
    std::int32_t slot = -1;
    quire_seq_open_args args = QUIRE_SEQ_OPEN_ARGS_INIT;
    args.policy = &policy;
    need([&](quire_error* e) {
      args.error = e;
      return quire_seq_open(cache_, &args, &slot);
    });
    return slot;
  }
  std::int32_t fork(std::int32_t parent) const {
    std::int32_t slot = -1;
    quire_seq_fork_args args = QUIRE_SEQ_FORK_ARGS_INIT;
    args.slot = parent;
    need([&](quire_error* e) {
      args.error = e;
      return quire_seq_fork(cache_, &args, &slot);
    });
    return slot;
  }
  void close(std::int32_t slot) const {
    need([&](quire_error* e) { return quire_seq_close(cache_, slot, e); });
  }
  std::uint64_t frame_bytes(std::int32_t slot) const {
    std::uint64_t bytes = 0;
    need([&](quire_error* e) { return quire_seq_export_bytes(cache_, slot, &bytes, e); });
    return bytes;
  }
  void export_to(std::int32_t slot, const Memory& frame) const {
    need([&](quire_error* e) {
      return quire_seq_export(cache_, slot, frame.data(), frame.bytes(), e);
    });
  }
  std::int32_t import_from(const Memory& frame) const {
    std::int32_t slot = -1;
    need([&](quire_error* e) {
      return quire_seq_import(cache_, frame.data(), frame.bytes(), &slot, e);
    });
    return slot;
  }
  quire_seq_info info(std::int32_t slot) const {
    quire_seq_info info = QUIRE_SEQ_INFO_INIT;
    need([&](quire_error* e) { return quire_seq_info_get(cache_, slot, &info, e); });
    return info;
  }

 private:
  Memory region_[5];
  quire_cache* cache_ = nullptr;
};

// Rows of K, V or q in f16: small numbers, head h of token t begins at row t + h of one buffer.
class Rows {
 public:
  Rows(std::uint32_t tokens, std::uint32_t heads, std::uint32_t dim)
      : dim_(dim), data_((std::size_t{tokens} + heads) * dim) {
    std::uint32_t state = 1;
    for (std::uint16_t& x : data_) {
      state = state * 1664525u + 1013904223u;
      const std::uint32_t exponent = 11 + (state >> 30);  // 2^-4 to 2^0
      x = static_cast<std::uint16_t>((state >> 16 & 0x83ffu) | exponent << 10);
    }
  }

  // From token `first` on: [1, tokens, heads, dim], or [sequences, 1, heads, dim] of a step.
  quire_rows from(std::uint32_t first) {
    const std::int64_t row = dim_;
    return {data_.data() + std::size_t{first} * dim_, QUIRE_F16, 0, row, row, row};
  }

 private:
  std::uint32_t dim_;
  std::vector<std::uint16_t> data_;
};

// Seconds that f takes.
template <class CallT>
double seconds(CallT&& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace quire::bench
