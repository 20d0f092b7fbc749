// Oracle: "statistics may be read from any thread at any time" (quire.h). While one thread lives a
// cache's life, others read: numbers of one reading fit together, and counts of events never fall.
// Run under a thread sanitizer as well; there it is the race that fails.
#include <atomic>
#include <thread>

#include "support/raw_calls.hpp"

namespace quire::test {
namespace {

// Catch2 assertions are not for several threads at once: readers note the first thing that is
// wrong.
struct Reader {
  const RawCache* cache;
  const std::atomic<bool>* stop;
  const char* wrong = nullptr;
  std::uint64_t readings = 0;

  void check(const quire_stats& now, const quire_stats& last) {
    const std::uint64_t page = cache->sizes.page_bytes;
    if (now.pages != cache->spec.desc.pages) wrong = "pages";
    if (now.live_pages > now.pages) wrong = "live_pages";
    if (now.sequences > cache->spec.desc.max_sequences) wrong = "sequences";
    if (now.page_bytes != now.live_pages * page) wrong = "page_bytes";
    if (now.free_bytes != (now.pages - now.live_pages) * page) wrong = "free_bytes";
    if (now.promised_pages > now.pages) wrong = "promised_pages";
    if (now.tokens_dropped < last.tokens_dropped) wrong = "tokens_dropped";
    if (now.tokens_demoted < last.tokens_demoted) wrong = "tokens_demoted";
    if (now.steps < last.steps) wrong = "steps";
    if (now.shortages < last.shortages) wrong = "shortages";
    if (now.values_saturated < last.values_saturated) wrong = "values_saturated";
  }

  void run() {
    quire_stats last = QUIRE_STATS_INIT;
    do {
      quire_stats now = QUIRE_STATS_INIT;
      if (quire_stats_get(cache->get(), &now, nullptr) != QUIRE_OK) wrong = "status";
      check(now, last);
      last = now;
      ++readings;
    } while (!stop->load());
  }
};

void live(RawCalls& calls, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const std::int32_t a = calls.open_with(50);
    const std::int32_t b = calls.open_with(20);
    for (int step = 0; step < 10; ++step) calls.step({a, b});
    calls.need(test::begin_prompt(calls.cache, calls.open_with(0), 40, &calls.error));
    calls.need(quire_prefill_cancel(calls.cache, calls.opened, &calls.error));
    for (const std::int32_t slot : {a, b, calls.opened})
      calls.need(quire_seq_close(calls.cache, slot, &calls.error));
  }
}

}  // namespace

TEST_CASE("statistics are read from other threads while the writer works", "[cache][stats]") {
  RawCache cache{RawSpec()};
  RawCalls calls(cache, 121);
  std::atomic<bool> stop{false};
  Reader readers[3];
  std::vector<std::thread> threads;
  for (Reader& reader : readers) {
    reader.cache = &cache;
    reader.stop = &stop;
    threads.emplace_back([&reader] { reader.run(); });
  }
  live(calls, 10);
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  for (const Reader& reader : readers) {
    CHECK(std::string(reader.wrong == nullptr ? "" : reader.wrong) == "");
    CHECK(reader.readings > 0);
  }
  CHECK(cache.stats().live_pages == 0);
  CHECK(cache.stats().steps == 100);
}

// The caller's run() is a point inside a call that can be held still.
TEST_CASE("statistics read inside a call fit together", "[cache][stats]") {
  RawCache cache{RawSpec()};
  RawCalls calls(cache, 122);
  struct Hook {
    const RawCache* cache;
    int runs = 0;
    bool sane = true;
    static void run(void* user, std::uint32_t tasks, void (*task)(void*, std::uint32_t), void* c) {
      auto* hook = static_cast<Hook*>(user);
      for (std::uint32_t i = 0; i < tasks; ++i) {
        const quire_stats stats = hook->cache->stats();
        hook->sane = hook->sane && stats.record_bytes <= stats.page_bytes &&
                     stats.fragmentation >= 0.0 && stats.fragmentation <= 1.0;
        task(c, i);
        ++hook->runs;
      }
    }
  } hook{&cache};
  const quire_parallel parallel = {Hook::run, &hook, 2, 0};
  const std::int32_t slot = calls.open_with(0);
  calls.need(test::begin_prompt(cache.get(), slot, 50, &calls.error));
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    quire_prefill_layer_args args = calls.prompt(slot, layer, 50);
    args.parallel = &parallel;
    calls.need(quire_prefill_layer(cache.get(), &args));
  }
  calls.need(quire_prefill_end(cache.get(), slot, &calls.error));
  for (int step = 0; step < 20; ++step) {
    const quire_step_begin_args begin = calls.begin({slot});
    calls.need(quire_step_begin(cache.get(), &begin));
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
      quire_append_args append = calls.append(layer);
      append.parallel = &parallel;
      calls.need(quire_append(cache.get(), &append));
    }
    calls.need(quire_step_end(cache.get(), &calls.error));
  }
  CHECK(hook.runs > 40);
  CHECK(hook.sane);
}

}  // namespace quire::test
