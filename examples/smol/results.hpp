// Figures of one setting, and the three ways they are shown: table, JSON, HTML report.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace smol {

// Tiers of all heads at the end of a run, for the report's map.
struct TierMap {
  uint32_t layers = 0;
  uint32_t heads = 0;
  uint32_t tokens = 0;
  std::vector<std::vector<uint8_t>> rows;  // [layers * heads][tokens]
};

struct SettingResult {
  std::string name;
  double bytes = 0.0;  // means over the decode steps
  double fp16_bytes = 0.0;
  double kld_mean = 0.0;
  double kld_p99 = 0.0;
  double same_top = 0.0;
  double ppl = 0.0;
  double cache_ms_per_token = 0.0;
  double tokens_per_second = 0.0;  // 0: not measured
  uint64_t scratch_bytes = 0;
  TierMap map;

  double share() const { return fp16_bytes > 0.0 ? bytes / fp16_bytes : 0.0; }
};

struct RunResult {
  std::string model;
  std::string text;
  uint32_t tokens = 0;
  uint32_t prompt = 0;
  std::vector<SettingResult> settings;
};

std::string table_text(const RunResult& run);

std::string json_text(const RunResult& run);

// A self-contained page: table, curve of quality against bytes, map of tiers.
std::string report_html(const RunResult& run);

// Empty string, or why the file could not be written.
std::string write_file(const std::string& path, const std::string& content);

}  // namespace smol
