// Continuous batching on one cache: requests are admitted and preempted by the closed forms, never
// by trial; a preempted one moves out as a frame and in again later.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "bench/replay/options.hpp"
#include "bench/replay/trace.hpp"
#include "quire/quire.hpp"

namespace quire::bench {
namespace {

void need(const Result& result) {
  if (result.ok()) return;
  std::fprintf(stderr, "%s: %s\n", result.field(), result.text());
  std::exit(1);
}

std::uint32_t recipe_named(const std::string& name) {
  const std::pair<const char*, std::uint32_t> known[] = {
      {"diffkv_upstream", QUIRE_RECIPE_DIFFKV_UPSTREAM},
      {"diffkv_paper", QUIRE_RECIPE_DIFFKV_PAPER},
      {"keep_all", QUIRE_RECIPE_KEEP_ALL},
      {"quire_budget", QUIRE_RECIPE_QUIRE_BUDGET},
      {"quire_uniform", QUIRE_RECIPE_QUIRE_UNIFORM},
      {"h2o", QUIRE_RECIPE_H2O}};
  for (const auto& [text, recipe] : known)
    if (name == text) return recipe;
  std::fprintf(stderr, "no such policy: %s (see --help)\n", name.c_str());
  std::exit(2);
}

struct Totals {
  std::uint64_t steps = 0;
  std::uint64_t tokens = 0;
  std::uint64_t swaps = 0;
  std::uint64_t swapped_bytes = 0;
  double fragmentation_sum = 0.0;  // over steps
  double fragmentation_most = 0.0;
  double cache_seconds = 0.0;
  std::uint64_t digest = 0;
  std::uint32_t completed = 0;
};

class Replay {
 public:
  explicit Replay(const ReplayOptions& options)
      : o_(options),
        random_(options.seed),
        keys_(std::size_t{o_.kv_heads} * o_.dim, o_.max_tokens, options.seed + 1),
        values_(std::size_t{o_.kv_heads} * o_.dim, o_.max_tokens, options.seed + 2),
        queries_(std::size_t{o_.kv_heads} * o_.dim, o_.max_tokens, options.seed + 3) {
    quire_group_desc group = QUIRE_GROUP_DESC_INIT;
    need(Result::of([&](quire_error* e) {
      return quire_recipe_get(recipe_named(o_.policy), &policy_, &group, e);
    }));
    group.layers = o_.layers;
    group.kv_heads = group.q_heads = o_.kv_heads;
    group.layout.head_dim_k = group.layout.head_dim_v = o_.dim;
    group.layout.page_bytes = o_.page_bytes;
    quire_cache_desc desc = QUIRE_CACHE_DESC_INIT;
    desc.max_sequences = desc.max_batch = o_.batch;
    desc.max_tokens = o_.max_tokens + 1;
    desc.pages = o_.pages;
    desc.groups = &group;
    need(Cache::create(desc, &cache_));
  }

  int run() {
    print_head();
    while (totals.completed < o_.sequences) {
      arrive();
      make_room();
      bring_back();
      admit();
      step();
      if (totals.steps % o_.every == 0) print_line();
    }
    print_line();
    print_totals();
    if (!o_.json.empty()) write_json();
    const quire_stats stats = cache_.stats();
    return stats.live_pages == 0 && stats.sequences == 0 && stats.shortages == 0 ? 0 : 1;
  }

  Totals totals;

 private:
  // Runs a call of the cache on the clock.
  template <class CallT>
  void timed(CallT&& call) {
    const auto begin = std::chrono::steady_clock::now();
    need(call());
    totals.cache_seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  static quire_rows rows_of(float* data) { return {data, QUIRE_F32, 0, 0, 0, 0}; }

  void arrive() {
    for (std::uint32_t n = random_.poisson(o_.arrivals); n > 0 && arrived_ < o_.sequences; --n)
      waiting_.push_back(draw_request(o_, arrived_++, random_));
  }

  // Pages that are free beside what the next step of those running can need.
  std::uint64_t spare() const {
    std::vector<std::int32_t> slots;
    for (const Request& r : running_) slots.push_back(r.slot);
    std::uint64_t needed = 0, available = 0;
    need(Result::of([&](quire_error* e) {
      return quire_headroom_pages(cache_.get(),
                                  slots.data(),
                                  static_cast<std::uint32_t>(slots.size()),
                                  1,
                                  &needed,
                                  &available,
                                  e);
    }));
    short_ = needed > available;
    return short_ ? 0 : available - needed;
  }

  // The latest to come are the first to go.
  void make_room() {
    for (spare(); short_ && !running_.empty(); spare()) {
      Request r = std::move(running_.back());
      running_.pop_back();
      std::uint64_t bytes = 0;
      need(cache_.export_bytes(r.slot, &bytes));
      r.frame.resize(bytes);
      r.pages = cache_.info(r.slot).live_pages;
      timed([&] { return cache_.export_frame(r.slot, r.frame.data(), bytes); });
      need(cache_.close(r.slot));
      swapped_.push_front(std::move(r));
      ++totals.swaps;
      totals.swapped_bytes += bytes;
    }
  }

  // A step may take as many pages again as there are heads and tiers.
  std::uint64_t margin() const { return std::uint64_t{2} * o_.layers * o_.kv_heads; }

  void bring_back() {
    while (!swapped_.empty() && running_.size() < o_.batch) {
      Request& r = swapped_.front();
      if (r.pages + margin() > spare()) return;
      timed([&] { return cache_.import_frame(r.frame.data(), r.frame.size(), &r.slot); });
      r.frame = {};
      running_.push_back(std::move(r));
      swapped_.pop_front();
    }
  }

  void admit() {
    while (swapped_.empty() && !waiting_.empty() && running_.size() < o_.batch) {
      Request& r = waiting_.front();
      std::uint64_t pages = 0;
      need(Result::of([&](quire_error* e) {
        return quire_pages_for(cache_.get(), &policy_, r.prompt, &pages, nullptr, e);
      }));
      if (pages + margin() > spare()) {
        if (running_.empty()) {
          std::fprintf(stderr,
                       "--pages: a prompt of %u tokens needs %llu\n",
                       r.prompt,
                       static_cast<unsigned long long>(pages));
          std::exit(1);
        }
        return;
      }
      need(cache_.open(policy_, &r.slot));
      prompt(r);
      running_.push_back(std::move(r));
      waiting_.pop_front();
    }
  }

  void prompt(const Request& r) {
    need(cache_.prefill_begin(r.slot, r.prompt));
    for (std::uint32_t layer = 0; layer < o_.layers; ++layer) {
      quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
      args.slot = r.slot;
      args.layer = layer;
      args.k = rows_of(keys_.rows(r.id, 0, layer));
      args.v = rows_of(values_.rows(r.id, 0, layer));
      args.q_rows = std::min(r.prompt, policy_.tail_queries);
      args.q = rows_of(queries_.rows(r.id, r.prompt - args.q_rows, layer));
      timed([&] { return cache_.prefill_layer(args); });
    }
    need(cache_.prefill_end(r.slot));
  }

  void step() {
    ++totals.steps;
    if (running_.empty()) return;
    std::vector<std::int32_t> slots;
    for (const Request& r : running_) slots.push_back(r.slot);
    timed(
        [&] { return cache_.step_begin(slots.data(), static_cast<std::uint32_t>(slots.size())); });
    const std::size_t row = std::size_t{o_.kv_heads} * o_.dim;
    std::vector<float> k(slots.size() * row), v(k.size()), q(k.size()), out(k.size());
    for (std::uint32_t layer = 0; layer < o_.layers; ++layer) {
      for (std::size_t i = 0; i < running_.size(); ++i) {
        const Request& r = running_[i];
        std::copy_n(keys_.rows(r.id, r.tokens(), layer),
                    row,
                    k.begin() + static_cast<std::ptrdiff_t>(i * row));
        std::copy_n(values_.rows(r.id, r.tokens(), layer),
                    row,
                    v.begin() + static_cast<std::ptrdiff_t>(i * row));
        std::copy_n(queries_.rows(r.id, r.tokens(), layer),
                    row,
                    q.begin() + static_cast<std::ptrdiff_t>(i * row));
      }
      quire_attention_args args = QUIRE_ATTENTION_ARGS_INIT;
      args.layer = layer;
      args.q = rows_of(q.data());
      args.out = rows_of(out.data());
      args.splits = 1;
      timed([&] { return cache_.append(layer, rows_of(k.data()), rows_of(v.data())); });
      timed([&] { return cache_.attention(args); });
      for (std::size_t i = 0; i < running_.size(); ++i)
        add_digest(running_[i], out.data() + i * row, row);
    }
    timed([&] { return cache_.step_end(); });
    totals.tokens += running_.size();
    count_fragmentation();
    complete();
  }

  static void add_digest(Request& r, const float* out, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, out + i, sizeof(bits));
      r.digest = (r.digest ^ bits) * 0x100000001b3u;
    }
  }

  void count_fragmentation() {
    const double now = cache_.stats().fragmentation;
    totals.fragmentation_sum += now;
    totals.fragmentation_most = std::max(totals.fragmentation_most, now);
    ++measured_;
  }

  void complete() {
    for (std::size_t i = running_.size(); i-- > 0;) {
      Request& r = running_[i];
      if (++r.made < r.answer) continue;
      if (cache_.info(r.slot).tokens != r.tokens()) std::exit(1);
      need(cache_.close(r.slot));
      totals.digest ^= Random(r.digest + r.id).bits();
      ++totals.completed;
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  static void print_head() {
    std::printf("%7s %9s %8s %8s %8s %8s %7s %7s %10s %6s\n",
                "step",
                "tokens",
                "running",
                "waiting",
                "swapped",
                "pages",
                "frag %",
                "swaps",
                "swap MiB",
                "short");
  }

  void print_line() const {
    const quire_stats stats = cache_.stats();
    std::uint64_t live = 0;
    for (const Request& r : running_) live += r.tokens();
    std::printf("%7llu %9llu %8zu %8zu %8zu %8llu %7.2f %7llu %10.1f %6llu\n",
                static_cast<unsigned long long>(totals.steps),
                static_cast<unsigned long long>(live),
                running_.size(),
                waiting_.size(),
                swapped_.size(),
                static_cast<unsigned long long>(stats.live_pages),
                100.0 * stats.fragmentation,
                static_cast<unsigned long long>(totals.swaps),
                static_cast<double>(totals.swapped_bytes) / 1048576.0,
                static_cast<unsigned long long>(stats.shortages));
  }

  double mean_fragmentation() const {
    return measured_ == 0 ? 0.0 : totals.fragmentation_sum / static_cast<double>(measured_);
  }

  void print_totals() const {
    std::printf("%u of %u sequences, %llu tokens decoded, %.0f tokens per second in quire\n",
                totals.completed,
                o_.sequences,
                static_cast<unsigned long long>(totals.tokens),
                static_cast<double>(totals.tokens) / totals.cache_seconds);
    std::printf("fragmentation: mean %.2f %%, most %.2f %%\n",
                100.0 * mean_fragmentation(),
                100.0 * totals.fragmentation_most);
    std::printf("digest %016llx\n", static_cast<unsigned long long>(totals.digest));
  }

  void write_json() const {
    std::FILE* file = std::fopen(o_.json.c_str(), "w");
    if (file == nullptr) {
      std::fprintf(stderr, "cannot write %s\n", o_.json.c_str());
      std::exit(1);
    }
    std::fprintf(file,
                 "{\"sequences\": %u, \"steps\": %llu, \"tokens\": %llu, \"swaps\": %llu, "
                 "\"swapped_bytes\": %llu, \"fragmentation_mean\": %.6f, "
                 "\"fragmentation_most\": %.6f, \"shortages\": %llu, \"cache_seconds\": %.3f, "
                 "\"digest\": \"%016llx\"}\n",
                 totals.completed,
                 static_cast<unsigned long long>(totals.steps),
                 static_cast<unsigned long long>(totals.tokens),
                 static_cast<unsigned long long>(totals.swaps),
                 static_cast<unsigned long long>(totals.swapped_bytes),
                 mean_fragmentation(),
                 totals.fragmentation_most,
                 static_cast<unsigned long long>(cache_.stats().shortages),
                 totals.cache_seconds,
                 static_cast<unsigned long long>(totals.digest));
    std::fclose(file);
  }

  ReplayOptions o_;
  Random random_;
  Vectors keys_, values_, queries_;
  Cache cache_;
  quire_policy policy_ = QUIRE_POLICY_INIT;
  std::deque<Request> waiting_, swapped_;
  std::vector<Request> running_;
  std::uint32_t arrived_ = 0;
  std::uint64_t measured_ = 0;
  mutable bool short_ = false;
};

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  quire::bench::ReplayOptions options;
  if (!quire::bench::read_options(argc, argv, &options)) return 2;
  return quire::bench::Replay(options).run();
}
