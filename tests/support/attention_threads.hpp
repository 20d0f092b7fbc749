// Ways to carry out the tasks of a parallel call: real threads, or one thread in a chosen order.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "quire/quire.h"
#include "src/backend.hpp"

namespace quire::test {

enum class Order { kForward, kBackward, kOddFirst, kThreads };

class Workers {
 public:
  Workers(std::uint32_t width, Order order) : width_(width), order_(order) {}

  Parallel parallel() { return {&Workers::run, this, width_}; }
  quire_parallel c_parallel() { return {&Workers::run, this, width_, 0}; }
  std::uint32_t most_tasks() const { return most_tasks_; }

 private:
  using Task = void (*)(void*, std::uint32_t);

  static void run(void* user, std::uint32_t tasks, Task task, void* context) {
    static_cast<Workers*>(user)->run_all(tasks, task, context);
  }

  void run_all(std::uint32_t tasks, Task task, void* context) {
    most_tasks_ = tasks > most_tasks_ ? tasks : most_tasks_;
    switch (order_) {
      case Order::kForward:
        for (std::uint32_t i = 0; i < tasks; ++i) task(context, i);
        break;
      case Order::kBackward:
        for (std::uint32_t i = tasks; i > 0; --i) task(context, i - 1);
        break;
      case Order::kOddFirst:
        for (std::uint32_t i = 1; i < tasks; i += 2) task(context, i);
        for (std::uint32_t i = 0; i < tasks; i += 2) task(context, i);
        break;
      case Order::kThreads: run_threads(tasks, task, context);
    }
  }

  static void run_threads(std::uint32_t tasks, Task task, void* context) {
    std::vector<std::thread> threads;
    for (std::uint32_t i = 0; i < tasks; ++i) threads.emplace_back(task, context, i);
    for (std::thread& thread : threads) thread.join();
  }

  std::uint32_t width_;
  Order order_;
  std::uint32_t most_tasks_ = 0;
};

}  // namespace quire::test
