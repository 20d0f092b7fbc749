// The demo's command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace smol {

struct Options {
  std::string model;  // GGUF file
  std::string text;   // file; empty: the text that demo.sh hands in
  uint32_t tokens = 2048;
  uint32_t prompt = 0;                // 0: half of the tokens
  std::vector<std::string> settings;  // empty: the default table
  std::string json;
  std::string report = "report.html";
  uint32_t threads = 0;  // 0: all processors
  bool synthetic = false;
  bool help = false;
};

// Empty string, or what is wrong.
std::string parse_options(int argc, char** argv, Options* out);

const char* help_text();

}  // namespace smol
