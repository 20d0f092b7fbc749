// Reader of tests/golden/smollm2_reference.txt; its header says what the numbers are.
#pragma once

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace smol::test {

struct GoldenLogit {
  int32_t id = 0;
  double logit = 0.0;
};

// The first four elements of one head of the last token.
struct GoldenFirst {
  uint32_t layer = 0;
  char what = 'q';  // q, k or v
  uint32_t head = 0;
  double values[4] = {};
};

struct GoldenPrompt {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<std::vector<GoldenLogit>> top;  // [position][5], falling
  std::vector<GoldenFirst> first;
};

// Text up to the closing bar, with \n and \\ taken back.
inline std::string unescape_golden(const std::string& line) {
  std::string text;
  for (std::size_t i = 0; i + 1 < line.size(); ++i) {
    const bool escaped = line[i] == '\\';
    if (escaped) ++i;
    text += escaped && line[i] == 'n' ? '\n' : line[i];
  }
  return text;
}

inline void read_golden_line(const std::string& line, std::vector<GoldenPrompt>& prompts) {
  std::istringstream in(line);
  std::string kind;
  in >> kind;
  if (kind == "prompt") {
    prompts.emplace_back();
    prompts.back().text = unescape_golden(line.substr(7));
  } else if (kind == "tokens") {
    for (int32_t id = 0; in >> id;) prompts.back().tokens.push_back(id);
  } else if (kind == "top") {
    std::size_t position = 0;
    in >> position;
    prompts.back().top.emplace_back();
    for (GoldenLogit l; in >> l.id >> l.logit;) prompts.back().top.back().push_back(l);
  } else if (kind == "first") {
    GoldenFirst f;
    in >> f.layer >> f.what >> f.head;
    for (double& value : f.values) in >> value;
    prompts.back().first.push_back(f);
  }
}

inline std::vector<GoldenPrompt> read_golden(const std::string& path) {
  std::vector<GoldenPrompt> prompts;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') read_golden_line(line, prompts);
  }
  return prompts;
}

}  // namespace smol::test
