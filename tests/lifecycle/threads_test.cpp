// Who may share what between threads: descriptions, policies, frames and pages that nobody writes
// are read by all; each cache has one writer; statistics are read from anywhere. Oracle: one thread
// alone gets the same bits. tests/run.sh runs this under a thread sanitizer, where a race is a
// failure.
#include <atomic>
#include <thread>

#include "support/attention_threads.hpp"
#include "support/drafts.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kPrompt = 60;
constexpr std::uint32_t kTokens = 140;
constexpr std::uint32_t kThreads = 4;

// What all threads read.
struct Shared {
  Shared() : rng(9951), stream(fork_shape(kTokens), rng), spec(make_spec()) {
    Rig rig(spec);
    const std::int32_t slot = rig.open();
    rig.prompt(slot, stream, kPrompt);
    frame = exported(rig, slot);
  }

  static RigSpec make_spec() {
    RigSpec s = fork_spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, 3);
    s.group.max_draft = 3;
    s.pages = 300;
    return s;
  }

  quire_cache_desc desc() const {
    quire_cache_desc d = QUIRE_CACHE_DESC_INIT;
    d.flags = QUIRE_CACHE_SHARING;
    d.max_sequences = 3;
    d.max_tokens = kTokens;
    d.threads = 3;
    d.pages = spec.pages;
    d.groups = &spec.group;
    return d;
  }

  Rng rng;
  Stream stream;
  RigSpec spec;
  std::vector<std::uint8_t> frame;
};

// A life in one cache: import, steps with drafts, a fork that goes its own way, close. No
// assertions: Catch2's are not for several threads.
struct Life {
  const Shared* shared = nullptr;
  Cache cache;
  std::atomic<const quire_cache*> visible{nullptr};  // to readers of statistics, when it is there
  Workers* workers = nullptr;                        // or nullptr: this thread alone
  std::vector<float> outputs;
  bool ok = true;

  void run() {
    ok = Cache::create(shared->desc(), &cache).ok();
    if (!ok) return;
    visible.store(cache.get());
    std::int32_t slot = -1;
    std::int32_t child = -1;
    need(cache.import_frame(shared->frame.data(), shared->frame.size(), &slot));
    std::uint32_t t = kPrompt;
    for (std::uint32_t round = 0; ok && round < 12; ++round) {
      const std::uint32_t rows = 1 + round % 4;
      step(slot, t, rows);
      if (rows > 1) need(cache.accept(slot, rows / 2));
      t += 1 + rows / 2;
      if (round == 5) need(cache.fork(slot, &child));
      if (round > 5) step(child, t, 1);
    }
    need(cache.close(slot));
    need(cache.close(child));
    ok = ok && cache.stats().live_pages == 0;
  }

 private:
  void need(const Result& result) { ok = ok && result.ok(); }

  void step(std::int32_t slot, std::uint32_t token, std::uint32_t rows) {
    const DraftRows d = chain(token, rows);
    quire_step_begin_args begin = QUIRE_STEP_BEGIN_ARGS_INIT;
    begin.slots = &slot;
    begin.batch = 1;
    begin.rows = rows;
    need(cache.step_begin(begin));
    quire_parallel parallel = {};
    if (workers != nullptr) parallel = workers->c_parallel();
    const quire_parallel* threads = workers == nullptr ? nullptr : &parallel;
    for (std::uint32_t layer = 0; layer < shared->stream.shape.layers; ++layer) {
      const std::vector<float> k = rows_from(shared->stream, d, layer, RowsOf::kKeys);
      const std::vector<float> v = rows_from(shared->stream, d, layer, RowsOf::kValues);
      const std::vector<float> q = rows_from(shared->stream, d, layer, RowsOf::kQueries);
      quire_append_args append = QUIRE_APPEND_ARGS_INIT;
      append.layer = layer;
      append.k = rows_of(k.data());
      append.v = rows_of(v.data());
      append.parallel = threads;
      need(cache.append(append));
      std::vector<float> out(q.size());
      quire_attention_args args = QUIRE_ATTENTION_ARGS_INIT;
      args.layer = layer;
      args.q = rows_of(q.data());
      args.out = rows_of(out.data());
      args.splits = 1;
      args.parallel = threads;
      need(cache.attention(args));
      outputs.insert(outputs.end(), out.begin(), out.end());
    }
    need(cache.step_end());
  }
};

void watch(const Life* lives,
           std::uint32_t count,
           const std::atomic<bool>& stop,
           std::atomic<std::uint64_t>& readings) {
  while (!stop.load()) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const quire_cache* cache = lives[i].visible.load();
      quire_stats stats = QUIRE_STATS_INIT;
      if (cache != nullptr && quire_stats_get(cache, &stats, nullptr) == QUIRE_OK)
        readings.fetch_add(1);
    }
  }
}

std::vector<float> alone(const Shared& shared) {
  Life life;
  life.shared = &shared;
  life.run();
  REQUIRE(life.ok);
  return life.outputs;
}

TEST_CASE("caches of many threads read the same descriptions and frames", "[lifecycle][threads]") {
  const Shared shared;
  const std::vector<float> want = alone(shared);
  Life lives[kThreads];
  std::vector<std::thread> threads;
  for (Life& life : lives) {
    life.shared = &shared;
    threads.emplace_back([&life] { life.run(); });
  }
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> readings{0};
  std::thread reader([&] { watch(lives, kThreads, stop, readings); });
  for (std::thread& thread : threads) thread.join();
  while (readings.load() == 0) std::this_thread::yield();
  stop.store(true);
  reader.join();
  for (const Life& life : lives) {
    REQUIRE(life.ok);
    REQUIRE((life.outputs == want));
  }
}

TEST_CASE("the caller's threads inside calls change no bit", "[lifecycle][threads]") {
  const Shared shared;
  const std::vector<float> want = alone(shared);
  Workers workers(3, Order::kThreads);
  Life life;
  life.shared = &shared;
  life.workers = &workers;
  life.run();
  REQUIRE(life.ok);
  REQUIRE((life.outputs == want));
  REQUIRE(workers.most_tasks() > 1);
}

}  // namespace
}  // namespace quire::test
