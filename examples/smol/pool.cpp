#include "pool.hpp"

namespace smol {
namespace {

// About 50 microseconds: longer than the gaps between the products of one token.
constexpr int kSpins = 20000;

}  // namespace

Pool::Pool(uint32_t threads) {
  for (uint32_t i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

Pool::~Pool() {
  stop_ = true;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++round_;
  }
  start_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::take_jobs() {
  for (uint32_t mine = next_++; mine < count_; mine = next_++) (*job_)(mine);
}

void Pool::await_round(uint64_t seen) {
  for (int i = 0; i < kSpins; ++i) {
    if (round_.load(std::memory_order_acquire) != seen) return;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  start_.wait(lock, [&] { return round_ != seen; });
}

void Pool::work() {
  for (uint64_t seen = 0; !stop_;) {
    await_round(seen);
    seen = round_;
    if (!stop_) take_jobs();
    --inside_;
  }
}

void Pool::run(uint32_t count, const std::function<void(uint32_t)>& job) {
  if (workers_.empty() || count == 1) {
    for (uint32_t i = 0; i < count; ++i) job(i);
    return;
  }
  job_ = &job;
  count_ = count;
  next_ = 0;
  inside_ = static_cast<uint32_t>(workers_.size());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++round_;
  }
  start_.notify_all();
  take_jobs();
  while (inside_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
}

}  // namespace smol
