// The memory of a cache. Oracle: what quire.h promises: exact sizes are enough and never left, a
// region one byte too small, misaligned or NULL is refused by name with no byte written.
#include <cstring>
#include <vector>

#include "quire/quire.h"
#include "support/catch.hpp"
#include "support/pages_cache.hpp"
#include "support/pages_memory.hpp"
#include "support/prompt_call.hpp"

namespace quire {
namespace {

using test::ExactMemory;
using test::kRegionNames;
using test::PoolSpec;

PoolSpec small_spec(std::uint32_t recipe) {
  PoolSpec spec(recipe, 2, 2, 32);
  spec.set_ring(2, 9);
  spec.sequences = 3;
  spec.max_tokens = 150;
  spec.pages = 60;
  return spec;
}

// Refused with this status, this region and these numbers; nothing written anywhere.
void require_refused(const PoolSpec& spec,
                     const ExactMemory& exact,
                     const quire_cache_memory& memory,
                     quire_status status,
                     int region,
                     std::uint64_t needed,
                     std::uint64_t given) {
  quire_error error = QUIRE_ERROR_INIT;
  quire_cache_desc desc = spec.desc();
  desc.error = &error;
  auto* untouched = reinterpret_cast<quire_cache*>(&desc);
  quire_cache* cache = untouched;
  REQUIRE(quire_cache_create(&desc, &memory, &cache) == status);
  REQUIRE(cache == untouched);
  REQUIRE(error.status == status);
  REQUIRE(std::string(error.field) == kRegionNames[region]);
  REQUIRE(error.needed == needed);
  REQUIRE(error.given == given);
  for (const test::GuardedRegion& r : exact.regions) REQUIRE(r.is_filled_with(0xc3));
}

TEST_CASE("a region that is too small, misaligned or missing is refused by name",
          "[pages][create]") {
  const PoolSpec spec = small_spec(QUIRE_RECIPE_QUIRE_BUDGET);
  const ExactMemory exact(spec.desc(), 0xc3);
  for (int region = 0; region < 5; ++region) {
    INFO(kRegionNames[region]);
    const std::uint64_t size = exact.regions[static_cast<std::size_t>(region)].size();
    REQUIRE(size > 0);
    for (const std::uint64_t bytes : {size - 1, size / 2, std::uint64_t{0}}) {
      quire_cache_memory memory = exact.memory();
      ExactMemory::bytes(memory, region) = bytes;
      require_refused(spec, exact, memory, QUIRE_MEMORY_TOO_SMALL, region, size, bytes);
    }
    for (const std::uint32_t shift : {1u, 4u, 8u, 16u, 32u, 64u, 127u}) {
      quire_cache_memory memory = exact.memory();
      auto* first = static_cast<std::uint8_t*>(ExactMemory::pointer(memory, region));
      ExactMemory::pointer(memory, region) = first + shift;
      require_refused(spec, exact, memory, QUIRE_MISALIGNED, region, 128, shift);
    }
    quire_cache_memory memory = exact.memory();
    ExactMemory::pointer(memory, region) = nullptr;
    require_refused(spec, exact, memory, QUIRE_INVALID_ARGUMENT, region, size, 0);
  }
}

TEST_CASE("a cache without rings asks for no ring memory", "[pages][create]") {
  PoolSpec spec = small_spec(QUIRE_RECIPE_KEEP_ALL);
  spec.set_ring(0, 0);
  const ExactMemory exact(spec.desc(), 0xc3);
  REQUIRE(exact.sizes.rings == 0);
  quire_cache_memory memory = exact.memory();
  memory.rings = nullptr;
  const quire_cache_desc desc = spec.desc();
  quire_cache* cache = nullptr;
  REQUIRE(quire_cache_create(&desc, &memory, &cache) == QUIRE_OK);
  quire_cache_destroy(cache);
}

TEST_CASE("creating a cache writes neither pages nor rings nor workspace", "[pages][create]") {
  const PoolSpec spec = small_spec(QUIRE_RECIPE_QUIRE_BUDGET);
  const ExactMemory exact(spec.desc(), 0xc3);
  const quire_cache_memory memory = exact.memory();
  const quire_cache_desc desc = spec.desc();
  quire_cache* cache = nullptr;
  REQUIRE(quire_cache_create(&desc, &memory, &cache) == QUIRE_OK);
  REQUIRE_FALSE(exact.regions[0].is_filled_with(0xc3));
  REQUIRE(exact.regions[1].is_filled_with(0xc3));
  REQUIRE(exact.regions[2].is_filled_with(0xc3));
  REQUIRE_FALSE(exact.regions[3].is_filled_with(0xc3));
  REQUIRE(exact.regions[4].is_filled_with(0xc3));
  quire_cache_destroy(cache);
}

// ---- A run in memory of exact size ----------------------------------------------------------

// Prompts and steps through the C calls alone; every attention output of the run, in order.
class PlainRun {
 public:
  PlainRun(const PoolSpec& spec, std::uint8_t fill) : spec_(spec), memory_(spec.desc(), fill) {
    const quire_cache_memory memory = memory_.memory();
    const quire_cache_desc desc = spec_.desc();
    REQUIRE(quire_cache_create(&desc, &memory, &cache_) == QUIRE_OK);
  }

  void run() {
    const std::uint32_t prompts[3] = {spec_.max_tokens - 40, 1, 30};
    std::vector<std::int32_t> slots;
    for (const std::uint32_t tokens : prompts) slots.push_back(prompt(tokens));
    slots.push_back(-1);
    for (std::uint32_t i = 0; i < 40; ++i) step(slots, i);
    slots.pop_back();
    for (const std::int32_t slot : slots)
      REQUIRE(quire_seq_close(cache_, slot, nullptr) == QUIRE_OK);
    quire_stats stats = QUIRE_STATS_INIT;
    REQUIRE(quire_stats_get(cache_, &stats, nullptr) == QUIRE_OK);
    REQUIRE(stats.live_pages == 0);
    quire_cache_destroy(cache_);
    for (test::GuardedRegion& region : memory_.regions) REQUIRE(region.guard_intact());
  }

  const std::vector<float>& outputs() const { return outputs_; }

 private:
  quire_rows rows(std::uint64_t seed, std::size_t count) const {
    return {const_cast<float*>(test::heap().window(seed, count)), QUIRE_F32, 0, 0, 0, 0};
  }

  std::int32_t prompt(std::uint32_t tokens) {
    std::int32_t slot = -1;
    quire_seq_open_args open = QUIRE_SEQ_OPEN_ARGS_INIT;
    open.policy = &spec_.policy;
    REQUIRE(quire_seq_open(cache_, &open, &slot) == QUIRE_OK);
    REQUIRE(test::begin_prompt(cache_, slot, tokens, nullptr) == QUIRE_OK);
    const std::size_t row = std::size_t{tokens} * spec_.group.layout.head_dim_k;
    for (std::uint32_t layer = 0; layer < spec_.group.layers; ++layer) {
      quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
      args.slot = slot;
      args.layer = layer;
      args.k = rows(layer, row * spec_.group.kv_heads);
      args.v = rows(layer + 9, row * spec_.group.kv_heads);
      args.q = rows(layer + 18, row * spec_.group.q_heads);
      args.q_rows = tokens;
      REQUIRE(quire_prefill_layer(cache_, &args) == QUIRE_OK);
    }
    REQUIRE(quire_prefill_end(cache_, slot, nullptr) == QUIRE_OK);
    return slot;
  }

  void step(const std::vector<std::int32_t>& slots, std::uint64_t seed) {
    // max_batch is 3: one of the three sits out in turn, padding takes its place.
    std::vector<std::int32_t> batch = slots;
    batch.erase(batch.begin() + static_cast<std::ptrdiff_t>(seed % 3));
    quire_step_begin_args begin = QUIRE_STEP_BEGIN_ARGS_INIT;
    begin.slots = batch.data();
    begin.batch = static_cast<std::uint32_t>(batch.size());
    REQUIRE(quire_step_begin(cache_, &begin) == QUIRE_OK);
    const std::size_t row = batch.size() * spec_.group.layout.head_dim_k;
    for (std::uint32_t layer = 0; layer < spec_.group.layers; ++layer) {
      quire_append_args append = QUIRE_APPEND_ARGS_INIT;
      append.layer = layer;
      append.k = rows(seed + 100 + layer, row * spec_.group.kv_heads);
      append.v = rows(seed + 200 + layer, row * spec_.group.kv_heads);
      REQUIRE(quire_append(cache_, &append) == QUIRE_OK);
      std::vector<float> out(row * spec_.group.q_heads, -1.0f);
      quire_attention_args attend = QUIRE_ATTENTION_ARGS_INIT;
      attend.layer = layer;
      attend.q = rows(seed + 300 + layer, row * spec_.group.q_heads);
      attend.out = {out.data(), QUIRE_F32, 0, 0, 0, 0};
      REQUIRE(quire_attention(cache_, &attend) == QUIRE_OK);
      outputs_.insert(outputs_.end(), out.begin(), out.end());
    }
    REQUIRE(quire_step_end(cache_, nullptr) == QUIRE_OK);
  }

  PoolSpec spec_;
  ExactMemory memory_;
  quire_cache* cache_ = nullptr;
  std::vector<float> outputs_;
};

TEST_CASE("exact sizes are enough, and what the memory held before does not matter",
          "[pages][create]") {
  for (std::uint32_t recipe = QUIRE_RECIPE_KEEP_ALL; recipe <= QUIRE_RECIPE_FOREIGN; ++recipe) {
    INFO("recipe " << recipe);
    PoolSpec spec = small_spec(recipe);
    spec.pages = 120;
    spec.batch = 3;
    if (recipe % 2 == 0) spec.group.max_draft = 2;
    if (recipe % 3 == 0)
      spec.group.page_stride = static_cast<std::int64_t>(spec.group.layout.page_bytes) + 128;
    if (spec.policy.kind == QUIRE_EVICT) spec.policy.budget_tokens = 40;
    PlainRun zeros(spec, 0x00);
    PlainRun ones(spec, 0xff);
    PlainRun marks(spec, 0x37);
    for (PlainRun* run : {&zeros, &ones, &marks}) run->run();
    REQUIRE(zeros.outputs().size() > 10000);
    REQUIRE(zeros.outputs() == ones.outputs());  // 0xff are NaN: they would show
    REQUIRE(zeros.outputs() == marks.outputs());
  }
}

}  // namespace
}  // namespace quire
