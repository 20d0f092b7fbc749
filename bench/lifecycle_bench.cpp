// Fork, export and import of one long sequence against a copy of as many bytes in the same run.
//
// Each repetition times a copy, then the call: cores and memory are shared with others, and the
// least time of each is what the machine can do. Counters: `of_copy`, the time of the call as a
// share of the copy's; `rate_of_copy`, the inverse; `copy_bytes_per_second`, measured in between.
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

// A sequence of `tokens` tokens, every third of them high, and the memory to move it around.
class Scene {
 public:
  Scene(const Shape& shape, std::uint32_t tokens) : tokens_(tokens) {
    need([&](quire_error* e) {
      quire_policy diffkv = QUIRE_POLICY_INIT;
      return quire_recipe_get(QUIRE_RECIPE_DIFFKV_UPSTREAM, &diffkv, &group_, e);
    });
    need([&](quire_error* e) {
      return quire_recipe_get(QUIRE_RECIPE_FOREIGN, &policy_, nullptr, e);
    });
    group_.layers = shape.layers;
    group_.kv_heads = group_.q_heads = shape.kv_heads;
    group_.layout.head_dim_k = group_.layout.head_dim_v = kDim;
    quire_layout layout = QUIRE_LAYOUT_INIT;
    need(quire_layout_make(&group_.layout, &layout), quire_error(QUIRE_ERROR_INIT));
    const std::uint64_t heads = std::uint64_t{shape.layers} * shape.kv_heads;
    desc_.flags = QUIRE_CACHE_SHARING;
    desc_.max_sequences = 2;
    desc_.max_tokens = tokens + 64;
    desc_.groups = &group_;
    // Two sequences; and the prompt reserves as if all of it were high.
    desc_.pages = heads * (tokens / layout.tier[0].tokens + tokens / layout.tier[1].tokens + 8);
    cache_ = std::make_unique<WarmCache>(desc_);
    make_sequence(shape);
    frame_ = Memory(cache_->frame_bytes(slot_));
    copy_ = Memory(frame_.bytes());
    cache_->export_to(slot_, frame_);
  }

  const WarmCache& cache() const { return *cache_; }
  std::int32_t slot() const { return slot_; }
  const Memory& frame() const { return frame_; }
  const Memory& copy() const { return copy_; }
  std::uint32_t tokens() const { return tokens_; }

  // What the ring and the open pages of a fork cost at the least.
  std::uint64_t owned_bytes() const {
    const std::int32_t child = cache_->fork(slot_);
    quire_stats stats = QUIRE_STATS_INIT;
    need([&](quire_error* e) { return quire_stats_get(cache_->get(), &stats, e); });
    const quire_seq_info info = cache_->info(child);
    cache_->close(child);
    quire_cache_sizes sizes = QUIRE_CACHE_SIZES_INIT;
    need(quire_cache_sizes_get(&desc_, &sizes), quire_error(QUIRE_ERROR_INIT));
    return info.ring_bytes + (info.live_pages - stats.shared_pages) * sizes.page_bytes;
  }

 private:
  void make_sequence(const Shape& shape) {
    Rows rows(tokens_, shape.kv_heads, kDim);
    std::vector<std::uint8_t> plan(std::size_t{shape.kv_heads} * tokens_);
    for (std::size_t i = 0; i < plan.size(); ++i) plan[i] = i % 3 == 0 ? 0 : 1;
    slot_ = cache_->open(policy_);
    need([&](quire_error* e) { return begin_prompt(cache_->get(), slot_, tokens_, e); });
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
      quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
      args.slot = slot_;
      args.layer = layer;
      args.k = args.v = rows.from(0);
      args.plan = plan.data();
      need([&](quire_error* e) {
        args.error = e;
        return quire_prefill_layer(cache_->get(), &args);
      });
    }
    need([&](quire_error* e) { return quire_prefill_end(cache_->get(), slot_, e); });
  }

  std::uint32_t tokens_;
  quire_group_desc group_ = QUIRE_GROUP_DESC_INIT;
  quire_policy policy_ = QUIRE_POLICY_INIT;
  quire_cache_desc desc_ = QUIRE_CACHE_DESC_INIT;
  std::unique_ptr<WarmCache> cache_;
  std::int32_t slot_ = -1;
  Memory frame_;
  Memory copy_;
};

// Least times of a call and of the copy before it.
class Against {
 public:
  explicit Against(const Scene& scene) : scene_(scene) {}

  template <class CallT>
  void measure(benchmark::State& state, CallT&& call) {
    const double copied = seconds(
        [&] { std::memcpy(scene_.copy().data(), scene_.frame().data(), scene_.frame().bytes()); });
    const double called = seconds(call);
    copy_ = std::min(copy_, copied);
    call_ = std::min(call_, called);
    state.SetIterationTime(called);
  }

  void report(benchmark::State& state) const {
    const auto bytes = static_cast<double>(scene_.frame().bytes());
    state.counters["of_copy"] = call_ / copy_;
    state.counters["rate_of_copy"] = copy_ / call_;
    state.counters["least_ms"] = 1e3 * call_;
    state.counters["copy_bytes_per_second"] = bytes / copy_;
    state.counters["tokens_per_second"] = scene_.tokens() / call_;
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
  }

 private:
  const Scene& scene_;
  double copy_ = std::numeric_limits<double>::infinity();
  double call_ = std::numeric_limits<double>::infinity();
};

void fork_bench(benchmark::State& state, const Scene& scene) {
  Against copy(scene);
  for (auto _ : state) {
    std::int32_t child = -1;
    copy.measure(state, [&] { child = scene.cache().fork(scene.slot()); });
    scene.cache().close(child);
  }
  copy.report(state);
  state.counters["owned_share"] =
      static_cast<double>(scene.owned_bytes()) / static_cast<double>(scene.frame().bytes());
}

void close_bench(benchmark::State& state, const Scene& scene) {
  Against copy(scene);
  for (auto _ : state) {
    const std::int32_t child = scene.cache().fork(scene.slot());
    copy.measure(state, [&] { scene.cache().close(child); });
  }
  copy.report(state);
}

void export_bench(benchmark::State& state, const Scene& scene) {
  Against copy(scene);
  for (auto _ : state)
    copy.measure(state, [&] { scene.cache().export_to(scene.slot(), scene.copy()); });
  copy.report(state);
}

void import_bench(benchmark::State& state, const Scene& scene) {
  Against copy(scene);
  for (auto _ : state) {
    std::int32_t made = -1;
    copy.measure(state, [&] { made = scene.cache().import_from(scene.frame()); });
    scene.cache().close(made);
  }
  copy.report(state);
}

void copy_bench(benchmark::State& state, const Scene& scene) {
  Against copy(scene);
  for (auto _ : state) {
    copy.measure(state, [&] {
      std::memcpy(scene.copy().data(), scene.frame().data(), scene.frame().bytes());
    });
  }
  copy.report(state);
}

// What a page of memory costs that nobody has written to: the control of all "warm" above.
void first_touch_bench(benchmark::State& state, const Scene& scene) {
  Against copy(scene);
  for (auto _ : state) {
    const Memory fresh(scene.frame().bytes(), Memory::Touch::kNo);
    copy.measure(state,
                 [&] { std::memcpy(fresh.data(), scene.frame().data(), scene.frame().bytes()); });
  }
  copy.report(state);
}

}  // namespace

void register_lifecycle(const Shape& shape) {
  using Bench = void (*)(benchmark::State&, const Scene&);
  struct Case {
    const char* op;
    Bench run;
  };
  static constexpr Case kCases[] = {{"copy", copy_bench},
                                    {"first_touch_copy", first_touch_bench},
                                    {"fork", fork_bench},
                                    {"close_fork", close_bench},
                                    {"export", export_bench},
                                    {"import", import_bench}};
  static std::unique_ptr<Scene> scene;  // made by the first bench that runs
  for (const Case& c : kCases) {
    const std::string name =
        std::string("lifecycle/") + c.op + "/cpu/k8v4_k4v2/tokens=" + std::to_string(shape.tokens);
    benchmark::RegisterBenchmark(name.c_str(),
                                 [&c, shape](benchmark::State& state) {
                                   if (!scene) scene = std::make_unique<Scene>(shape, shape.tokens);
                                   c.run(state, *scene);
                                 })
        ->UseManualTime()
        ->Iterations(shape.repetitions)
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace quire::bench

int main(int argc, char** argv) {
  quire::bench::Shape shape;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) != "--tiny") continue;
    shape = quire::bench::Shape::tiny();
    std::copy(argv + i + 1, argv + argc, argv + i);
    --argc;
    break;
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  quire::bench::register_lifecycle(shape);
  quire::bench::register_step_begin(shape);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
