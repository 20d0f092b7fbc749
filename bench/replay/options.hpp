// Flags of the replay driver.
#pragma once

#include <cstdint>
#include <string>

namespace quire::bench {

struct ReplayOptions {
  std::uint32_t sequences = 240;
  std::uint64_t seed = 1;
  std::uint64_t pages = 3200;
  std::uint32_t batch = 48;
  double arrivals = 0.12;  // per step
  std::uint32_t layers = 2;
  std::uint32_t kv_heads = 2;
  std::uint32_t dim = 128;
  std::uint64_t page_bytes = 7168;
  std::uint32_t max_tokens = 8192;
  double prompt_median = 800.0;
  double answer_median = 200.0;
  double sigma = 1.0;
  std::uint32_t every = 250;  // steps between two lines
  std::string policy = "diffkv_upstream";
  std::string json;
};

// False after a message when the flags are wrong, or --help was asked for.
bool read_options(int argc, char** argv, ReplayOptions* out);

}  // namespace quire::bench
