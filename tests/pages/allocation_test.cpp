// "Nothing is allocated, then or later" (quire_cache_create). Oracle: a count of all calls of
// operator new, and of malloc where the C library lets itself be replaced, while a cache works.
#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "support/catch.hpp"
#include "support/pages_cache.hpp"
#include "support/pages_contents.hpp"
#include "support/prompt_call.hpp"

namespace {

std::atomic<bool> counting{false};
std::atomic<std::uint64_t> allocations{0};

void note() {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1);
}

void* allocate(std::size_t bytes, std::size_t alignment) {
  note();
  const std::size_t rounded = (bytes + alignment) / alignment * alignment;
  return std::aligned_alloc(alignment, rounded);
}

constexpr std::size_t kNewAlign = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes, kNewAlign); }
void* operator new[](std::size_t bytes) { return allocate(bytes, kNewAlign); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, kNewAlign);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, kNewAlign);
}
void* operator new(std::size_t bytes, std::align_val_t align) {
  return allocate(bytes, static_cast<std::size_t>(align));
}
void* operator new[](std::size_t bytes, std::align_val_t align) {
  return allocate(bytes, static_cast<std::size_t>(align));
}
void* operator new(std::size_t bytes, std::align_val_t align, const std::nothrow_t&) noexcept {
  return allocate(bytes, static_cast<std::size_t>(align));
}
void* operator new[](std::size_t bytes, std::align_val_t align, const std::nothrow_t&) noexcept {
  return allocate(bytes, static_cast<std::size_t>(align));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

// glibc keeps its own allocator under these names; sanitizers replace malloc themselves.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define QUIRE_TEST_COUNTS_MALLOC 1
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void* malloc(std::size_t n) noexcept { return note(), __libc_malloc(n); }
void* calloc(std::size_t n, std::size_t m) noexcept { return note(), __libc_calloc(n, m); }
void* realloc(void* p, std::size_t n) noexcept { return note(), __libc_realloc(p, n); }
void* memalign(std::size_t a, std::size_t n) noexcept { return note(), __libc_memalign(a, n); }
void* aligned_alloc(std::size_t a, std::size_t n) noexcept { return note(), __libc_memalign(a, n); }
int posix_memalign(void** p, std::size_t a, std::size_t n) noexcept {
  note();
  *p = __libc_memalign(a, n);
  return *p == nullptr ? 12 : 0;  // ENOMEM
}
}
#endif

namespace quire {
namespace {

using test::PoolSpec;

// Counts while it lives.
class Watch {
 public:
  Watch() {
    allocations = 0;
    counting = true;
  }
  ~Watch() { counting = false; }
  std::uint64_t count() const { return allocations; }
};

TEST_CASE("the counters of this test see an allocation", "[pages][allocation]") {
  std::uint64_t by_new = 0, by_malloc = 0;
  {
    const Watch watch;
    void* volatile p = ::operator new(100);  // a new expression might be left out
    ::operator delete(p);
    by_new = watch.count();
  }
  {
    const Watch watch;
    void* volatile p = std::malloc(100);
    std::free(p);
    by_malloc = watch.count();
  }
  REQUIRE(by_new > 0);
#if defined(QUIRE_TEST_COUNTS_MALLOC)
  REQUIRE(by_malloc == 1);
#else
  (void)by_malloc;
#endif
}

// Arguments of every call, made before the watch begins.
struct Calls {
  explicit Calls(const PoolSpec& pool_spec) : spec(pool_spec) {
    const quire_group_desc& g = spec.group;
    numbers = test::heap().window(3, 60000);
    out.resize(std::size_t{16} * 3 * g.q_heads * g.layout.head_dim_v);
    lse.resize(std::size_t{16} * 3 * g.q_heads);
    keys.resize(std::size_t{spec.max_tokens} * g.layout.head_dim_k);
    tiers.assign(std::size_t{g.layers} * g.kv_heads * spec.max_tokens, 255);
    positions.resize(spec.max_tokens);
    log.resize(1000);
    frame.resize(1u << 22);
  }

  PoolSpec spec;
  const float* numbers;
  std::vector<float> out;
  std::vector<float> lse;
  std::vector<float> keys;
  std::vector<std::uint8_t> tiers;
  std::vector<std::int32_t> positions;
  std::vector<quire_plan_move> log;
  std::vector<unsigned char> frame;
};

int sum = 0;  // of statuses: 0 when all are QUIRE_OK; no REQUIRE while the watch runs

void prompt(quire_cache* cache,
            Calls& calls,
            std::int32_t slot,
            std::uint32_t tokens,
            std::uint32_t flags = 0,
            std::uint32_t earlier = 0) {  // tokens of the prompt's rounds before
  sum += test::begin_prompt(cache, slot, tokens, nullptr, flags);
  for (std::uint32_t layer = 0; layer < calls.spec.group.layers; ++layer) {
    quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
    args.slot = slot;
    args.layer = layer;
    args.k = args.v = args.q = rows_of(calls.numbers + layer);
    args.q_rows = earlier + tokens;
    sum += quire_prefill_layer(cache, &args);
  }
  sum += quire_prefill_end(cache, slot, nullptr);
}

void step(quire_cache* cache, Calls& calls, const std::int32_t* slots, std::uint32_t batch, int i) {
  std::uint64_t moves = 0, needed = 0, available = 0;
  sum += quire_headroom_pages(cache, slots, batch, 1, &needed, &available, nullptr);
  quire_step_begin_args begin = QUIRE_STEP_BEGIN_ARGS_INIT;
  begin.slots = slots;
  begin.batch = batch;
  begin.rows = i < 0 ? 3 : 1;  // with drafts
  if (batch == 1 && i >= 0) {
    begin.plan_out = calls.log.data();
    begin.plan_capacity = calls.log.size();
    begin.plan_out_count = &moves;
  }
  sum += quire_step_begin(cache, &begin);
  for (std::uint32_t layer = 0; layer < calls.spec.group.layers; ++layer) {
    quire_append_args append = QUIRE_APPEND_ARGS_INIT;
    append.layer = layer;
    append.k = append.v = rows_of(calls.numbers + 7 * (i & 63) + layer);
    sum += quire_append(cache, &append);
    quire_attention_args attend = QUIRE_ATTENTION_ARGS_INIT;
    attend.layer = layer;
    attend.q = rows_of(calls.numbers + 5 * (i & 63) + layer);
    attend.out = rows_of(calls.out.data());
    attend.lse = calls.lse.data();
    sum += quire_attention(cache, &attend);
  }
  sum += quire_step_end(cache, nullptr);
}

void look(quire_cache* cache, Calls& calls, std::int32_t slot) {
  std::uint32_t count = 0;
  quire_gather_args gather = QUIRE_GATHER_ARGS_INIT;
  gather.slot = slot;
  gather.capacity = calls.spec.max_tokens;
  gather.k = rows_of(calls.keys.data());
  gather.positions = calls.positions.data();
  gather.count = &count;
  sum += quire_gather(cache, &gather);
  quire_query_args query = QUIRE_QUERY_ARGS_INIT;
  query.slot = slot;
  query.capacity = calls.spec.max_tokens;
  query.positions = calls.positions.data();
  query.count = &count;
  sum += quire_query(cache, &query);
  quire_extend_args extend = QUIRE_EXTEND_ARGS_INIT;
  extend.slot = slot;
  extend.rows = 20;
  extend.first_position = 1000;
  extend.q = rows_of(calls.numbers);
  extend.out = rows_of(calls.out.data());
  sum += quire_extend(cache, &extend);
  quire_stats stats = QUIRE_STATS_INIT;
  sum += quire_stats_get(cache, &stats, nullptr);
  quire_seq_info info = QUIRE_SEQ_INFO_INIT;
  sum += quire_seq_info_get(cache, slot, &info, nullptr);
  std::uint64_t pages = 0;
  sum += quire_pages_for(cache, &calls.spec.policy, 50, &pages, nullptr, nullptr);
  if ((calls.spec.group.layout.flags & QUIRE_LAYOUT_NO_POSITION) != 0) return;
  quire_plan_apply_args plan = QUIRE_PLAN_APPLY_ARGS_INIT;
  plan.slot = slot;
  plan.layer_count = calls.spec.group.layers;
  plan.tokens = info.tokens;
  plan.tiers = calls.tiers.data();
  sum += quire_plan_apply(cache, &plan);
}

// Drafts, cuts, a fork, a move, a prefix.
void live(quire_cache* cache, Calls& calls, const std::int32_t* slots) {
  const std::uint32_t taken[] = {2, 0};
  quire_accept_args accept = QUIRE_ACCEPT_ARGS_INIT;
  accept.slots = slots;
  accept.batch = 2;
  accept.counts = taken;
  step(cache, calls, slots, 2, -1);
  sum += quire_accept(cache, &accept);
  quire_seq_truncate_args back = QUIRE_SEQ_TRUNCATE_ARGS_INIT;
  back.slot = slots[0];
  back.tokens = 180;
  sum += quire_seq_truncate(cache, &back);
  quire_seq_remove_span_args span = QUIRE_SEQ_REMOVE_SPAN_ARGS_INIT;
  span.slot = slots[0];
  span.first = 20;
  span.end = 60;
  const bool stored = (calls.spec.group.layout.flags & QUIRE_LAYOUT_NO_POSITION) == 0;
  sum += quire_seq_remove_span(cache, &span) - (stored ? QUIRE_OK : QUIRE_UNSUPPORTED);
  std::int32_t slot = -1;
  quire_seq_fork_args fork = QUIRE_SEQ_FORK_ARGS_INIT;
  fork.slot = slots[0];
  sum += quire_seq_fork(cache, &fork, &slot);
  std::uint64_t bytes = 0;
  sum += quire_seq_export_bytes(cache, slot, &bytes, nullptr);
  sum += quire_seq_export(cache, slot, calls.frame.data(), calls.frame.size(), nullptr);
  sum += quire_seq_close(cache, slot, nullptr);
  sum += quire_seq_import(cache, calls.frame.data(), bytes, &slot, nullptr);
  sum += quire_seq_close(cache, slot, nullptr);
  quire_seq_open_args open = QUIRE_SEQ_OPEN_ARGS_INIT;
  open.policy = &calls.spec.policy;
  sum += quire_seq_open(cache, &open, &slot);
  prompt(cache, calls, slot, 30);
  quire_seq_freeze_args freeze = QUIRE_SEQ_FREEZE_ARGS_INIT;
  freeze.slot = slot;
  freeze.token_ids = calls.positions.data();
  freeze.token_count = 30;
  sum += quire_seq_freeze(cache, &freeze);
  quire_prefix_find_args find = QUIRE_PREFIX_FIND_ARGS_INIT;
  std::int32_t found = -1;
  find.open = &open;
  find.token_ids = calls.positions.data();
  find.token_count = 40;
  find.slot = &found;
  sum += quire_prefix_find(cache, &find) + (found == slot ? 0 : 1);
  sum += quire_prefix_evict(cache, ~std::uint64_t{0}, nullptr, nullptr, nullptr);
}

// Create, prompts, steps, reads, a refused call, cancels, close, destroy.
void work(const quire_cache_desc& desc, const quire_cache_memory& memory, Calls& calls) {
  quire_cache* cache = nullptr;
  sum += quire_cache_create(&desc, &memory, &cache);
  std::int32_t slots[3] = {-1, -1, -1};
  for (int i = 0; i < 2; ++i) {
    quire_seq_open_args open = QUIRE_SEQ_OPEN_ARGS_INIT;
    open.policy = &calls.spec.policy;
    sum += quire_seq_open(cache, &open, &slots[i]);
    prompt(cache, calls, slots[i], i == 0 ? 150 : 20);
  }
  for (int i = 0; i < 40; ++i) step(cache, calls, slots, i % 4 == 3 ? 1 : 3, i);
  look(cache, calls, slots[0]);
  live(cache, calls, slots);
  quire_error error = QUIRE_ERROR_INIT;
  sum += test::begin_prompt(cache, slots[0], 5, &error, QUIRE_PREFILL_EXACT) - QUIRE_UNSUPPORTED;
  prompt(cache, calls, slots[0], 30, QUIRE_PREFILL_MORE);
  prompt(cache, calls, slots[0], 20, 0, 30);
  prompt(cache, calls, slots[1], 25);
  for (int i = 0; i < 10; ++i) step(cache, calls, slots, i % 4 == 3 ? 1 : 3, i);
  quire_step_begin_args begin = QUIRE_STEP_BEGIN_ARGS_INIT;
  begin.slots = slots;
  begin.batch = 2;
  sum += quire_step_begin(cache, &begin);
  sum += quire_step_cancel(cache, nullptr);
  for (int i = 0; i < 2; ++i) sum += quire_seq_close(cache, slots[i], nullptr);
  quire_cache_destroy(cache);
}

TEST_CASE("a cache allocates nothing from its creation to its end", "[pages][allocation]") {
  for (std::uint32_t recipe = QUIRE_RECIPE_KEEP_ALL; recipe <= QUIRE_RECIPE_FOREIGN; ++recipe) {
    INFO("recipe " << recipe);
    PoolSpec spec(recipe, 2, 2, 64);
    spec.set_ring(recipe % 3, 10);
    spec.sequences = 3;
    spec.group.max_draft = 2;
    if (spec.policy.kind == QUIRE_EVICT) spec.policy.budget_tokens = 40;
    if (recipe == QUIRE_RECIPE_SNAPKV) spec.policy.pool = 2;
    spec.policy.byte_target *= 1.5;
    quire_cache_desc desc = spec.desc();
    desc.flags = QUIRE_CACHE_SHARING;
    quire_cache_sizes sizes = QUIRE_CACHE_SIZES_INIT;
    REQUIRE(quire_cache_sizes_get(&desc, &sizes) == QUIRE_OK);
    struct alignas(128) Line {
      unsigned char bytes[128];
    };
    std::vector<Line> region[5];
    quire_cache_memory memory = QUIRE_CACHE_MEMORY_INIT;
    const auto give = [&](int i, std::uint64_t bytes, void*& data, std::uint64_t& given) {
      region[i].resize(bytes / 128 + 1);
      data = region[i].data();
      given = bytes;
    };
    give(0, sizes.host, memory.host, memory.host_bytes);
    give(1, sizes.pages, memory.pages, memory.pages_bytes);
    give(2, sizes.rings, memory.rings, memory.rings_bytes);
    give(3, sizes.tables, memory.tables, memory.tables_bytes);
    give(4, sizes.workspace, memory.workspace, memory.workspace_bytes);
    Calls calls(spec);
    sum = 0;
    std::uint64_t count = 0;
    {
      const Watch watch;
      work(desc, memory, calls);
      count = watch.count();
    }
    REQUIRE(sum == 0);
    REQUIRE(count == 0);
  }
}

}  // namespace
}  // namespace quire
