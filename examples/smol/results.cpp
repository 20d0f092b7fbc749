#include "results.hpp"

#include <fmt/format.h>

#include <cstdio>

namespace smol {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      out += fmt::format("\\u{:04x}", byte);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string speed(const SettingResult& s) {
  return s.tokens_per_second > 0.0 ? fmt::format("{:.1f}", s.tokens_per_second) : "-";
}

}  // namespace

std::string table_text(const RunResult& run) {
  std::string out = fmt::format("{:<28}{:>10}{:>8}{:>10}{:>9}{:>9}{:>9}{:>10}{:>8}\n",
                                "setting",
                                "KiB",
                                "share",
                                "mean KL",
                                "p99 KL",
                                "same top",
                                "ppl",
                                "cache ms",
                                "tok/s");
  for (const SettingResult& s : run.settings) {
    out += fmt::format("{:<28}{:>10.1f}{:>8.4f}{:>10.5f}{:>9.4f}{:>9.4f}{:>9}{:>10.3f}{:>8}\n",
                       s.name,
                       s.bytes / 1024.0,
                       s.share(),
                       s.kld_mean,
                       s.kld_p99,
                       s.same_top,
                       s.ppl < 1e4 ? fmt::format("{:.4f}", s.ppl) : fmt::format("{:.3g}", s.ppl),
                       s.cache_ms_per_token,
                       speed(s));
  }
  return out;
}

std::string json_text(const RunResult& run) {
  std::string out =
      fmt::format("{{\"model\": {}, \"text\": {}, \"tokens\": {}, \"prompt\": {}, \"settings\": [",
                  quoted(run.model),
                  quoted(run.text),
                  run.tokens,
                  run.prompt);
  bool first = true;
  for (const SettingResult& s : run.settings) {
    out += first ? "\n" : ",\n";
    first = false;
    out += fmt::format(
        "  {{\"name\": {}, \"bytes\": {:.1f}, \"fp16_bytes\": {:.1f}, \"share\": {:.6f}, "
        "\"kld_mean\": {:.8g}, \"kld_p99\": {:.8g}, \"same_top\": {:.6f}, \"ppl\": {:.6f}, "
        "\"cache_ms_per_token\": {:.4f}, \"tokens_per_second\": {}, \"scratch_bytes\": {}}}",
        quoted(s.name),
        s.bytes,
        s.fp16_bytes,
        s.share(),
        s.kld_mean,
        s.kld_p99,
        s.same_top,
        s.ppl,
        s.cache_ms_per_token,
        s.tokens_per_second > 0.0 ? fmt::format("{:.2f}", s.tokens_per_second) : "null",
        s.scratch_bytes);
  }
  return out + "\n]}\n";
}

std::string write_file(const std::string& path, const std::string& content) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return "cannot write " + path;
  const std::size_t written = std::fwrite(content.data(), 1, content.size(), file);
  const bool closed = std::fclose(file) == 0;
  return written == content.size() && closed ? "" : "could not write all of " + path;
}

}  // namespace smol
