// Bump allocation from the caller's workspace.
#pragma once

#include <cstdint>

#include "quire/core/config.hpp"
#include "quire/core/types.hpp"

namespace quire {

// Scratch of one call.
struct Workspace {
  std::uint8_t* data = nullptr;
  std::uint64_t bytes = 0;
};

inline constexpr std::uint64_t kBufferAlign = 128;

// With data == nullptr nothing is handed out, only counted: the closed forms of workspace sizes run
// the same code as the calls.
class Arena {
 public:
  explicit Arena(Workspace workspace) : workspace_(workspace) {}

  template <class T>
  T* take(std::uint64_t count) {
    const std::uint64_t start = used_;
    used_ += round_up(count * sizeof(T), kBufferAlign);
    if (workspace_.data == nullptr) return nullptr;
    QUIRE_ASSERT(used_ <= workspace_.bytes);
    return reinterpret_cast<T*>(workspace_.data + start);
  }

  std::uint64_t used() const { return used_; }

  // What is left, as a workspace of its own.
  Workspace rest() const {
    if (workspace_.data == nullptr) return {};
    return {workspace_.data + used_, workspace_.bytes - used_};
  }

 private:
  Workspace workspace_;
  std::uint64_t used_ = 0;
};

}  // namespace quire
