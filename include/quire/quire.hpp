// C++ over quire.h: owns the memory of a cache, closes what it opened, carries error texts.
//
// Header-only, C++17, no exceptions. Every call of quire.h that is not wrapped takes Cache::get().
#pragma once

#if __cplusplus < 201703L
#error "quire.hpp needs C++17"
#endif

#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "quire/quire.h"

namespace quire {

// What a call returned: a status, and on failure field and text.
class [[nodiscard]] Result {
 public:
  Result() = default;

  bool ok() const { return status_ == QUIRE_OK; }
  quire_status status() const { return status_; }
  const char* field() const { return error_.field; }
  const char* text() const {
    return error_.text[0] != '\0' ? error_.text : quire_status_text(status_);
  }
  std::uint64_t needed() const { return error_.needed; }
  std::uint64_t given() const { return error_.given; }

  // For calls with an error argument: run(pointer to the error) -> status.
  template <class CallT>
  static Result of(CallT&& run) {
    Result result;
    result.status_ = run(&result.error_);
    return result;
  }

 private:
  quire_status status_ = QUIRE_OK;
  quire_error error_ = QUIRE_ERROR_INIT;
};

// Rows of an engine's array, dense unless strides are given.
inline quire_rows rows_of(const float* data,
                          std::int64_t sequence_stride = 0,
                          std::int64_t token_stride = 0,
                          std::int64_t head_stride = 0) {
  return {const_cast<float*>(data), QUIRE_F32, 0, sequence_stride, token_stride, head_stride};
}

inline quire_rows half_rows_of(const std::uint16_t* data,
                               std::uint32_t dtype,
                               std::int64_t sequence_stride = 0,
                               std::int64_t token_stride = 0,
                               std::int64_t head_stride = 0) {
  return {const_cast<std::uint16_t*>(data), dtype, 0, sequence_stride, token_stride, head_stride};
}

// A cache and its memory. Movable; one writer, as quire.h says.
class Cache {
 public:
  Cache() = default;
  Cache(Cache&& other) noexcept { *this = std::move(other); }
  Cache& operator=(Cache&& other) noexcept {
    std::swap(cache_, other.cache_);
    for (int i = 0; i < kRegions; ++i) std::swap(region_[i], other.region_[i]);
    return *this;
  }
  ~Cache() { quire_cache_destroy(cache_); }

  // Asks for the sizes, allocates the five regions, creates the cache.
  static Result create(const quire_cache_desc& desc, Cache* out) {
    Cache made;
    const Result result = Result::of([&](quire_error* error) {
      quire_cache_desc d = desc;
      d.error = error;
      return made.build(d);
    });
    if (result.ok()) *out = std::move(made);
    return result;
  }

  quire_cache* get() const { return cache_; }
  explicit operator bool() const { return cache_ != nullptr; }

  Result open(const quire_policy& policy, std::int32_t* slot) const {
    quire_seq_open_args args = QUIRE_SEQ_OPEN_ARGS_INIT;
    args.policy = &policy;
    return open(args, slot);
  }
  Result open(quire_seq_open_args args, std::int32_t* slot) const {
    return with_error(args, [&](const auto* a) { return quire_seq_open(cache_, a, slot); });
  }
  Result fork(std::int32_t parent, std::int32_t* slot) const {
    quire_seq_fork_args args = QUIRE_SEQ_FORK_ARGS_INIT;
    args.slot = parent;
    return fork(args, slot);
  }
  Result fork(quire_seq_fork_args args, std::int32_t* slot) const {
    return with_error(args, [&](const auto* a) { return quire_seq_fork(cache_, a, slot); });
  }
  // From now on a prefix that others read; `identity` [2] may be nullptr.
  Result freeze(std::int32_t slot,
                const std::int32_t* token_ids,
                std::uint32_t token_count,
                std::uint64_t* identity) const {
    quire_seq_freeze_args args = QUIRE_SEQ_FREEZE_ARGS_INIT;
    args.slot = slot;
    args.token_ids = token_ids;
    args.token_count = token_count;
    args.identity = identity;
    return with_error(args, [&](const auto* a) { return quire_seq_freeze(cache_, a); });
  }
  Result find_prefix(quire_prefix_find_args args) const {
    return with_error(args, [&](const auto* a) { return quire_prefix_find(cache_, a); });
  }
  Result evict_prefixes(std::uint64_t pages, std::uint64_t* freed, std::uint32_t* closed) const {
    return Result::of(
        [&](quire_error* e) { return quire_prefix_evict(cache_, pages, freed, closed, e); });
  }
  Result export_bytes(std::int32_t slot, std::uint64_t* bytes) const {
    return Result::of(
        [&](quire_error* e) { return quire_seq_export_bytes(cache_, slot, bytes, e); });
  }
  Result export_frame(std::int32_t slot, void* frame, std::uint64_t bytes) const {
    return Result::of(
        [&](quire_error* e) { return quire_seq_export(cache_, slot, frame, bytes, e); });
  }
  Result import_frame(const void* frame, std::uint64_t bytes, std::int32_t* slot) const {
    return Result::of(
        [&](quire_error* e) { return quire_seq_import(cache_, frame, bytes, slot, e); });
  }
  // Back to a length; `lossy` may be nullptr.
  Result truncate(std::int32_t slot, std::uint32_t tokens, std::uint32_t* lossy) const {
    quire_seq_truncate_args args = QUIRE_SEQ_TRUNCATE_ARGS_INIT;
    args.slot = slot;
    args.tokens = tokens;
    args.lossy = lossy;
    return truncate(args);
  }
  Result truncate(quire_seq_truncate_args args) const {
    return with_error(args, [&](const auto* a) { return quire_seq_truncate(cache_, a); });
  }
  Result remove_span(quire_seq_remove_span_args args) const {
    return with_error(args, [&](const auto* a) { return quire_seq_remove_span(cache_, a); });
  }
  Result close(std::int32_t slot) const {
    return Result::of([&](quire_error* e) { return quire_seq_close(cache_, slot, e); });
  }

  // flags: quire_prefill_flag bits.
  Result prefill_begin(std::int32_t slot, std::uint32_t tokens, std::uint32_t flags = 0) const {
    quire_prefill_begin_args args = QUIRE_PREFILL_BEGIN_ARGS_INIT;
    args.slot = slot;
    args.tokens = tokens;
    args.flags = flags;
    return with_error(args, [&](const auto* a) { return quire_prefill_begin(cache_, a); });
  }
  Result prefill_layer(quire_prefill_layer_args args) const {
    return with_error(args, [&](const auto* a) { return quire_prefill_layer(cache_, a); });
  }
  // A layer of a prompt whose policy needs no scores.
  Result prefill_layer(std::int32_t slot,
                       std::uint32_t layer,
                       const quire_rows& k,
                       const quire_rows& v) const {
    quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
    args.slot = slot;
    args.layer = layer;
    args.k = k;
    args.v = v;
    return prefill_layer(args);
  }
  Result prefill_end(std::int32_t slot) const {
    return Result::of([&](quire_error* e) { return quire_prefill_end(cache_, slot, e); });
  }
  Result prefill_cancel(std::int32_t slot) const {
    return Result::of([&](quire_error* e) { return quire_prefill_cancel(cache_, slot, e); });
  }

  Result step_begin(const std::int32_t* slots, std::uint32_t batch) const {
    quire_step_begin_args args = QUIRE_STEP_BEGIN_ARGS_INIT;
    args.slots = slots;
    args.batch = batch;
    return step_begin(args);
  }
  Result step_begin(quire_step_begin_args args) const {
    return with_error(args, [&](const auto* a) { return quire_step_begin(cache_, a); });
  }
  Result append(quire_append_args args) const {
    return with_error(args, [&](const auto* a) { return quire_append(cache_, a); });
  }
  Result attention(quire_attention_args args) const {
    return with_error(args, [&](const auto* a) { return quire_attention(cache_, a); });
  }
  Result append(std::uint32_t layer, const quire_rows& k, const quire_rows& v) const {
    quire_append_args args = QUIRE_APPEND_ARGS_INIT;
    args.layer = layer;
    args.k = k;
    args.v = v;
    return append(args);
  }
  Result attention(std::uint32_t layer, const quire_rows& q, const quire_rows& out) const {
    quire_attention_args args = QUIRE_ATTENTION_ARGS_INIT;
    args.layer = layer;
    args.q = q;
    args.out = out;
    return attention(args);
  }
  Result step_end() const {
    return Result::of([&](quire_error* e) { return quire_step_end(cache_, e); });
  }
  Result step_cancel() const {
    return Result::of([&](quire_error* e) { return quire_step_cancel(cache_, e); });
  }

  Result accept(quire_accept_args args) const {
    return with_error(args, [&](const auto* a) { return quire_accept(cache_, a); });
  }
  // Rows 1 to `count` of one sequence's drafts.
  Result accept(std::int32_t slot, std::uint32_t count) const {
    quire_accept_args args = QUIRE_ACCEPT_ARGS_INIT;
    args.slots = &slot;
    args.batch = 1;
    args.counts = &count;
    return accept(args);
  }

  Result extend(quire_extend_args args) const {
    return with_error(args, [&](const auto* a) { return quire_extend(cache_, a); });
  }
  Result plan_apply(quire_plan_apply_args args) const {
    return with_error(args, [&](const auto* a) { return quire_plan_apply(cache_, a); });
  }
  Result gather(quire_gather_args args) const {
    return with_error(args, [&](const auto* a) { return quire_gather(cache_, a); });
  }
  Result query(quire_query_args args) const {
    return with_error(args, [&](const auto* a) { return quire_query(cache_, a); });
  }

  quire_stats stats() const {
    quire_stats stats = QUIRE_STATS_INIT;
    (void)quire_stats_get(cache_, &stats, nullptr);
    return stats;
  }
  quire_seq_info info(std::int32_t slot) const {
    quire_seq_info info = QUIRE_SEQ_INFO_INIT;
    (void)quire_seq_info_get(cache_, slot, &info, nullptr);
    return info;
  }

 private:
  static constexpr int kRegions = 5;
  static constexpr std::align_val_t kAlign{128};

  struct Free {
    void operator()(unsigned char* memory) const { ::operator delete[](memory, kAlign); }
  };

  // Fills in the error pointer of an args struct.
  template <class ArgsT, class CallT>
  static Result with_error(ArgsT args, CallT&& call) {
    return Result::of([&](quire_error* error) {
      args.error = error;
      return call(&args);
    });
  }

  quire_status build(const quire_cache_desc& desc) {
    quire_cache_sizes sizes = QUIRE_CACHE_SIZES_INIT;
    const quire_status asked = quire_cache_sizes_get(&desc, &sizes);
    if (asked != QUIRE_OK) return asked;
    const std::uint64_t bytes[kRegions] = {
        sizes.host, sizes.pages, sizes.rings, sizes.tables, sizes.workspace};
    for (int i = 0; i < kRegions; ++i) {
      region_[i].reset(new (kAlign, std::nothrow) unsigned char[bytes[i] + 1]);
      if (region_[i] == nullptr) return QUIRE_MEMORY_TOO_SMALL;
    }
    quire_cache_memory memory = QUIRE_CACHE_MEMORY_INIT;
    memory.host = region_[0].get();
    memory.pages = region_[1].get();
    memory.rings = region_[2].get();
    memory.tables = region_[3].get();
    memory.workspace = region_[4].get();
    memory.host_bytes = sizes.host;
    memory.pages_bytes = sizes.pages;
    memory.rings_bytes = sizes.rings;
    memory.tables_bytes = sizes.tables;
    memory.workspace_bytes = sizes.workspace;
    return quire_cache_create(&desc, &memory, &cache_);
  }

  quire_cache* cache_ = nullptr;
  std::unique_ptr<unsigned char[], Free> region_[kRegions];
};

}  // namespace quire
