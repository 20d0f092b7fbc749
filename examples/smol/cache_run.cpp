#include "cache_run.hpp"

#include <chrono>
#include <cstdlib>
#include <utility>

namespace smol {
namespace {

struct FreeDeleter {
  void operator()(void* p) const { std::free(p); }
};
using Region = std::unique_ptr<void, FreeDeleter>;

Region allocate(uint64_t bytes, uint32_t alignment) {
  const uint64_t rounded = (bytes + alignment) / alignment * alignment;
  return Region(std::aligned_alloc(alignment, rounded));
}

std::string message(const char* call, quire_status status, const quire_error& error) {
  const char* text = error.text[0] != '\0' ? error.text : quire_status_text(status);
  return std::string(call) + ": " + text;
}

quire_rows rows_of(const float* data) { return {const_cast<float*>(data), QUIRE_F32, 0, 0, 0, 0}; }

// Adds the time until it goes out of scope.
class Timer {
 public:
  explicit Timer(double* seconds) : seconds_(seconds), start_(std::chrono::steady_clock::now()) {}
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() {
    *seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  double* seconds_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace

struct CacheRun::Memory {
  Region host;
  Region pages;
  Region rings;
  Region tables;
  Region workspace;
  uint64_t workspace_bytes = 0;
};

CacheRun::CacheRun() = default;
CacheRun::CacheRun(CacheRun&& other) noexcept { *this = std::move(other); }
CacheRun& CacheRun::operator=(CacheRun&& other) noexcept {
  std::swap(setting_, other.setting_);
  std::swap(memory_, other.memory_);
  std::swap(cache_, other.cache_);
  std::swap(slot_, other.slot_);
  std::swap(seconds_, other.seconds_);
  return *this;
}
CacheRun::~CacheRun() { quire_cache_destroy(cache_); }

std::string CacheRun::create(const Setting& setting, uint32_t tokens) {
  setting_ = setting;
  quire_error error = QUIRE_ERROR_INIT;
  quire_layout layout = QUIRE_LAYOUT_INIT;
  quire_layout_desc layout_desc = setting.group.layout;
  layout_desc.error = &error;
  quire_status status = quire_layout_make(&layout_desc, &layout);
  if (status != QUIRE_OK) return message("quire_layout_make", status, error);
  quire_cache_desc desc = QUIRE_CACHE_DESC_INIT;
  desc.max_sequences = 1;
  desc.max_tokens = tokens;
  desc.groups = &setting_.group;
  desc.error = &error;
  // Enough for every token in the larger tier, and a page per tier and head.
  const uint64_t heads = uint64_t{setting.group.layers} * setting.group.kv_heads;
  desc.pages = heads * (tokens / layout.tier[0].tokens + 3);
  quire_cache_sizes sizes = QUIRE_CACHE_SIZES_INIT;
  status = quire_cache_sizes_get(&desc, &sizes);
  if (status != QUIRE_OK) return message("quire_cache_sizes_get", status, error);
  memory_ = std::make_unique<Memory>();
  memory_->host = allocate(sizes.host, sizes.alignment);
  memory_->pages = allocate(sizes.pages, sizes.alignment);
  memory_->rings = allocate(sizes.rings, sizes.alignment);
  memory_->tables = allocate(sizes.tables, sizes.alignment);
  memory_->workspace = allocate(sizes.workspace, sizes.alignment);
  memory_->workspace_bytes = sizes.workspace;
  quire_cache_memory memory = QUIRE_CACHE_MEMORY_INIT;
  memory.host = memory_->host.get();
  memory.pages = memory_->pages.get();
  memory.rings = memory_->rings.get();
  memory.tables = memory_->tables.get();
  memory.workspace = memory_->workspace.get();
  memory.host_bytes = sizes.host;
  memory.pages_bytes = sizes.pages;
  memory.rings_bytes = sizes.rings;
  memory.tables_bytes = sizes.tables;
  memory.workspace_bytes = sizes.workspace;
  status = quire_cache_create(&desc, &memory, &cache_);
  if (status != QUIRE_OK) return message("quire_cache_create", status, error);
  quire_seq_open_args open = QUIRE_SEQ_OPEN_ARGS_INIT;
  open.policy = &setting_.policy;
  open.error = &error;
  status = quire_seq_open(cache_, &open, &slot_);
  return status == QUIRE_OK ? "" : message("quire_seq_open", status, error);
}

std::string CacheRun::begin_prompt(uint32_t tokens) {
  quire_error error = QUIRE_ERROR_INIT;
  quire_prefill_begin_args args = QUIRE_PREFILL_BEGIN_ARGS_INIT;
  args.slot = slot_;
  args.tokens = tokens;
  args.error = &error;
  const quire_status status = quire_prefill_begin(cache_, &args);
  return status == QUIRE_OK ? "" : message("quire_prefill_begin", status, error);
}

std::string CacheRun::prompt_layer(const PromptLayer& layer) {
  quire_error error = QUIRE_ERROR_INIT;
  quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
  args.slot = slot_;
  args.layer = layer.layer;
  args.k = rows_of(layer.k);
  args.v = rows_of(layer.v);
  args.q = rows_of(layer.q);
  args.q_rows = layer.tokens;
  args.lse = layer.lse;
  args.error = &error;
  const quire_status status = quire_prefill_layer(cache_, &args);
  return status == QUIRE_OK ? "" : message("quire_prefill_layer", status, error);
}

std::string CacheRun::end_prompt() {
  quire_error error = QUIRE_ERROR_INIT;
  const quire_status status = quire_prefill_end(cache_, slot_, &error);
  return status == QUIRE_OK ? "" : message("quire_prefill_end", status, error);
}

std::string CacheRun::begin_step() {
  const Timer timer(&seconds_);
  quire_error error = QUIRE_ERROR_INIT;
  quire_step_begin_args args = QUIRE_STEP_BEGIN_ARGS_INIT;
  args.slots = &slot_;
  args.batch = 1;
  args.error = &error;
  const quire_status status = quire_step_begin(cache_, &args);
  return status == QUIRE_OK ? "" : message("quire_step_begin", status, error);
}

std::string CacheRun::step_layer(
    uint32_t layer, const float* k, const float* v, const float* q, float* out) {
  const Timer timer(&seconds_);
  quire_error error = QUIRE_ERROR_INIT;
  quire_append_args append = QUIRE_APPEND_ARGS_INIT;
  append.layer = layer;
  append.k = rows_of(k);
  append.v = rows_of(v);
  append.error = &error;
  quire_status status = quire_append(cache_, &append);
  if (status != QUIRE_OK) return message("quire_append", status, error);
  quire_attention_args attention = QUIRE_ATTENTION_ARGS_INIT;
  attention.layer = layer;
  attention.q = rows_of(q);
  attention.out = rows_of(out);
  attention.error = &error;
  status = quire_attention(cache_, &attention);
  return status == QUIRE_OK ? "" : message("quire_attention", status, error);
}

std::string CacheRun::end_step() {
  const Timer timer(&seconds_);
  quire_error error = QUIRE_ERROR_INIT;
  const quire_status status = quire_step_end(cache_, &error);
  return status == QUIRE_OK ? "" : message("quire_step_end", status, error);
}

CacheBytes CacheRun::bytes() const {
  quire_seq_info info = QUIRE_SEQ_INFO_INIT;
  (void)quire_seq_info_get(cache_, slot_, &info, nullptr);
  return {static_cast<double>(info.total_bytes), static_cast<double>(info.fp16_bytes)};
}

uint64_t CacheRun::scratch_bytes() const {
  return memory_ == nullptr ? 0 : memory_->workspace_bytes;
}

std::vector<uint8_t> CacheRun::tiers(uint32_t layer, uint32_t head) const {
  quire_seq_info info = QUIRE_SEQ_INFO_INIT;
  (void)quire_seq_info_get(cache_, slot_, &info, nullptr);
  std::vector<int32_t> positions(info.tokens);
  std::vector<uint8_t> stored(info.tokens);
  uint32_t count = 0;
  quire_query_args args = QUIRE_QUERY_ARGS_INIT;
  args.slot = slot_;
  args.layer = layer;
  args.head = head;
  args.capacity = info.tokens;
  args.positions = positions.data();
  args.tiers = stored.data();
  args.count = &count;
  std::vector<uint8_t> tiers(info.tokens, 254);
  if (quire_query(cache_, &args) != QUIRE_OK) return tiers;
  for (uint32_t i = 0; i < count; ++i) tiers[static_cast<uint32_t>(positions[i])] = stored[i];
  return tiers;
}

}  // namespace smol
