// A few threads for short jobs: they spin a little before they sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace smol {

class Pool {
 public:
  // threads counts the calling one; at least 1.
  explicit Pool(uint32_t threads);
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool();

  // Calls job(0) .. job(count - 1), on all threads, and returns when all are done.
  void run(uint32_t count, const std::function<void(uint32_t)>& job);

  uint32_t threads() const { return static_cast<uint32_t>(workers_.size()) + 1; }

 private:
  void work();
  void take_jobs();
  void await_round(uint64_t seen);

  // A round is one call of run(). Workers that have not left it are counted, so that the next round
  // cannot change the job under them.
  std::atomic<uint64_t> round_{0};
  std::atomic<uint32_t> next_{0};
  std::atomic<uint32_t> inside_{0};
  uint32_t count_ = 0;
  const std::function<void(uint32_t)>* job_ = nullptr;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable start_;
  std::vector<std::thread> workers_;
};

}  // namespace smol
