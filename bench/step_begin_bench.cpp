// quire_step_begin of a full batch: planning, counting and assigning pages for all layers and
// heads.
//
// A step that is begun and cancelled before any append leaves the sequences as they were, so the
// same plan is made again and again. One whole step with attention comes first: it leaves the
// least significant tokens behind, which plans read instead of all scores. Between two calls other
// memory is written, as attention would do it.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>

#include "bench/lifecycle_bench.hpp"
#include "bench/support/warm_cache.hpp"

namespace quire::bench {
namespace {

constexpr std::uint32_t kDim = 128;
constexpr std::uint32_t kGroup = 1;  // query heads per KV head: not what a plan depends on

struct Case {
  const char* name;
  std::uint32_t recipe;
  std::uint32_t steps;  // before the one that is timed
};

// After a prompt nobody has left the least significant tokens yet: plans read all scores. The byte
// controller of quire_budget does so every 16 steps.
constexpr Case kCases[] = {{"keep_all", QUIRE_RECIPE_KEEP_ALL, 1},
                           {"diffkv_upstream", QUIRE_RECIPE_DIFFKV_UPSTREAM, 1},
                           {"diffkv_upstream_after_a_prompt", QUIRE_RECIPE_DIFFKV_UPSTREAM, 0},
                           {"h2o", QUIRE_RECIPE_H2O, 1},
                           {"quire_budget", QUIRE_RECIPE_QUIRE_BUDGET, 1},
                           {"quire_budget_at_a_run", QUIRE_RECIPE_QUIRE_BUDGET, 16}};

class Batch {
 public:
  Batch(const Case& c, const Shape& shape)
      : shape_(shape), rows_(shape.step_tokens + 512, 64, kDim) {
    need([&](quire_error* e) { return quire_recipe_get(c.recipe, &policy_, &group_, e); });
    group_.layers = shape.layers;
    group_.kv_heads = shape.kv_heads;
    group_.q_heads = shape.kv_heads * kGroup;
    group_.layout.head_dim_k = group_.layout.head_dim_v = kDim;
    if (policy_.budget_tokens != 0) policy_.budget_tokens = shape.step_tokens - 16;
    if (policy_.byte_target != 0.0) policy_.byte_target = 0.5;
    desc_.max_sequences = shape.sequences;
    desc_.max_tokens = shape.step_tokens + 64;
    desc_.groups = &group_;
    desc_.pages = pages_per_head() * heads() + 1024;
    cache_ = std::make_unique<WarmCache>(desc_);
    open_sequences();
    for (std::uint32_t i = 0; i < c.steps; ++i) step(i + 1 == c.steps);
  }

  void begin() const {
    quire_step_begin_args args = QUIRE_STEP_BEGIN_ARGS_INIT;
    args.slots = slots_.data();
    args.batch = shape_.sequences;
    need([&](quire_error* e) {
      args.error = e;
      return quire_step_begin(cache_->get(), &args);
    });
  }
  void cancel() const {
    need([&](quire_error* e) { return quire_step_cancel(cache_->get(), e); });
  }
  std::uint64_t heads() const {
    return std::uint64_t{shape_.sequences} * shape_.layers * shape_.kv_heads;
  }

 private:
  // All tokens in any tier, and the open page of each.
  std::uint64_t pages_per_head() const {
    quire_layout layout = QUIRE_LAYOUT_INIT;
    need(quire_layout_make(&group_.layout, &layout), quire_error(QUIRE_ERROR_INIT));
    std::uint64_t pages = 0;
    for (std::uint32_t t = 0; t < layout.tier_count; ++t)
      pages += shape_.step_tokens / layout.tier[t].tokens + 2;
    return pages;
  }

  // One prompt, and copies of it that share nothing.
  void open_sequences() {
    slots_.push_back(cache_->open(policy_));
    need([&](quire_error* e) { return begin_prompt(cache_->get(), 0, shape_.step_tokens, e); });
    for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
      quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
      args.layer = layer;
      args.k = args.v = args.q = rows_.from(layer);
      args.q_rows = shape_.step_tokens;
      need([&](quire_error* e) {
        args.error = e;
        return quire_prefill_layer(cache_->get(), &args);
      });
    }
    need([&](quire_error* e) { return quire_prefill_end(cache_->get(), 0, e); });
    const Memory frame(cache_->frame_bytes(0));
    cache_->export_to(0, frame);
    for (std::uint32_t i = 1; i < shape_.sequences; ++i)
      slots_.push_back(cache_->import_from(frame));
  }

  void step(bool attend) {
    begin();
    std::vector<float> out(std::size_t{shape_.sequences} * group_.q_heads * kDim);
    const std::int64_t dim = kDim;
    for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
      quire_append_args args = QUIRE_APPEND_ARGS_INIT;
      args.layer = layer;
      args.k = args.v = rows_.from(layer);
      need([&](quire_error* e) {
        args.error = e;
        return quire_append(cache_->get(), &args);
      });
      if (!attend) continue;
      quire_attention_args attention = QUIRE_ATTENTION_ARGS_INIT;
      attention.layer = layer;
      attention.q = rows_.from(layer);
      attention.out = {out.data(), QUIRE_F32, 0, dim * group_.q_heads, dim * group_.q_heads, dim};
      need([&](quire_error* e) {
        attention.error = e;
        return quire_attention(cache_->get(), &attention);
      });
    }
    need([&](quire_error* e) { return quire_step_end(cache_->get(), e); });
  }

  Shape shape_;
  Rows rows_;
  quire_group_desc group_ = QUIRE_GROUP_DESC_INIT;
  quire_policy policy_ = QUIRE_POLICY_INIT;
  quire_cache_desc desc_ = QUIRE_CACHE_DESC_INIT;
  std::unique_ptr<WarmCache> cache_;
  std::vector<std::int32_t> slots_;
};

void step_begin_bench(benchmark::State& state, const Batch& batch, std::uint32_t evicted_mib) {
  std::vector<std::uint8_t> other(std::size_t{evicted_mib} << 20);
  double least = std::numeric_limits<double>::infinity();
  for (auto _ : state) {
    for (std::size_t i = 0; i < other.size(); i += 64) ++other[i];  // read, too: a plain fill may
    benchmark::DoNotOptimize(other.data());                         // pass the caches by
    const double begun = seconds([&] { batch.begin(); });
    batch.cancel();
    least = std::min(least, begun);
    state.SetIterationTime(begun);
  }
  state.counters["least_ms"] = 1e3 * least;
  state.counters["ns_per_head"] = 1e9 * least / static_cast<double>(batch.heads());
}

}  // namespace

void register_step_begin(const Shape& shape) {
  // One batch at a time in memory; benches of one batch follow each other.
  static std::unique_ptr<Batch> batch;
  static std::string made;
  for (const Case& c : kCases) {
    for (std::uint32_t heads = std::max(shape.kv_heads / 4, 1u); heads <= shape.kv_heads;
         heads *= 2) {
      Shape mine = shape;
      mine.kv_heads = heads;
      const std::string group = std::string("lifecycle/step_begin/cpu/") + c.name +
                                "/sequences=" + std::to_string(shape.sequences) +
                                "/layers=" + std::to_string(shape.layers) +
                                "/heads=" + std::to_string(heads);
      for (const std::uint32_t mib : {0u, shape.evicted_mib}) {
        const std::string name = group + (mib == 0 ? "/caches=warm" : "/caches=cold");
        benchmark::RegisterBenchmark(name.c_str(),
                                     [&c, mine, mib, group](benchmark::State& state) {
                                       if (made != group) {
                                         batch.reset();
                                         batch = std::make_unique<Batch>(c, mine);
                                         made = group;
                                       }
                                       step_begin_bench(state, *batch, mib);
                                     })
            ->UseManualTime()
            ->Iterations(shape.repetitions)
            ->Unit(benchmark::kMillisecond);
        if (shape.evicted_mib == 0) break;
      }
    }
  }
}

}  // namespace quire::bench
