// The shapes that all benches of the life of a sequence share, and their lists.
#pragma once

#include <cstdint>

namespace quire::bench {

struct Shape {
  std::uint32_t layers = 32;
  std::uint32_t kv_heads = 8;
  std::uint32_t tokens = 32768;     // of the sequence that is forked and moved
  std::uint32_t sequences = 64;     // of a step
  std::uint32_t step_tokens = 256;  // of each of them
  std::uint32_t evicted_mib = 64;   // written between two steps, so that caches are cold
  std::int64_t repetitions = 20;    // the least time counts, and copies in between are not free

  static Shape tiny() { return {2, 4, 512, 3, 96, 0, 2}; }
};

void register_lifecycle(const Shape& shape);
void register_step_begin(const Shape& shape);

}  // namespace quire::bench
