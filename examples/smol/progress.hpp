// A progress bar on the terminal; silent when the output is not one.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace smol {

class Progress {
 public:
  Progress(const char* what, uint64_t total)
      : what_(what), total_(total), live_(isatty(STDERR_FILENO) != 0) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() {
    if (live_ && drawn_) std::fprintf(stderr, "\r\033[K");
  }

  void at(uint64_t done) {
    if (!live_) return;
    const auto now = std::chrono::steady_clock::now();
    if (drawn_ && done < total_ && now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    drawn_ = true;
    constexpr uint64_t kCells = 32;
    const uint64_t full = total_ == 0 ? kCells : done * kCells / total_;
    const std::string bar = std::string(full, '#') + std::string(kCells - full, '.');
    const double passed = std::chrono::duration<double>(now - start_).count();
    const double left =
        done == 0 ? 0.0 : passed * static_cast<double>(total_ - done) / static_cast<double>(done);
    std::fprintf(stderr,
                 "\r\033[K%-10s [%s] %llu/%llu, about %.0f s left",
                 what_,
                 bar.c_str(),
                 static_cast<unsigned long long>(done),
                 static_cast<unsigned long long>(total_),
                 left);
  }

 private:
  const char* what_;
  uint64_t total_;
  bool live_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_;
};

}  // namespace smol
