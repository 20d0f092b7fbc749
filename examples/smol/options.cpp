#include "options.hpp"

#include <cstdlib>
#include <cstring>

namespace smol {
namespace {

// A whole number from 1 to 16 million.
bool parse_count(const char* text, uint32_t* out) {
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text, &end, 10);
  if (*text == '\0' || *text == '-' || *end != '\0' || value < 1 || value > 16000000) return false;
  *out = static_cast<uint32_t>(value);
  return true;
}

std::string set_value(const std::string& flag, const char* value, Options* out) {
  const auto count = [&](uint32_t* field) {
    return parse_count(value, field)
               ? std::string()
               : flag + " takes a whole number from 1 to 16000000, not '" + value + "'";
  };
  if (flag == "--tokens") return count(&out->tokens);
  if (flag == "--prompt") return count(&out->prompt);
  if (flag == "--threads") return count(&out->threads);
  if (flag == "--model") out->model = value;
  if (flag == "--text") out->text = value;
  if (flag == "--setting") out->settings.push_back(value);
  if (flag == "--json") out->json = value;
  if (flag == "--report") out->report = value;
  return "";
}

}  // namespace

std::string parse_options(int argc, char** argv, Options* out) {
  static const char* const kWithValue[] = {
      "--model", "--text", "--tokens", "--prompt", "--setting", "--json", "--report", "--threads"};
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--help" || flag == "-h") {
      out->help = true;
      return "";
    }
    if (flag == "--synthetic") {
      out->synthetic = true;
      continue;
    }
    bool known = false;
    for (const char* name : kWithValue) known = known || flag == name;
    if (!known && flag.find('=') != std::string::npos)
      return "'" + flag + "': a flag and its value are two words, without '='";
    if (!known) return "unknown flag '" + flag + "'; see --help";
    if (i + 1 >= argc) return flag + " needs a value";
    const std::string problem = set_value(flag, argv[++i], out);
    if (!problem.empty()) return problem;
  }
  if (out->tokens < 4) return "--tokens takes at least 4";
  if (out->prompt == 0) out->prompt = out->tokens / 2;
  if (out->prompt >= out->tokens - 1) return "--prompt must leave at least 2 tokens to decode";
  return "";
}

const char* help_text() {
  return R"(Runs a language model with its KV cache in quire and prints what each setting costs.

The first half of the text is the prompt: exact attention, then compressed. The second half is
decoded token by token through the cache, and every setting is compared with its own 16-bit cache.

  --text FILE      text to read (default: a slice of the King James Bible)
  --tokens N       tokens of it to use (default 2048)
  --prompt P       of them the prompt (default N/2)
  --setting NAME   only this setting beside fp16; may be repeated. Names:
                     fp16, K8V8, K8V4, K4V2, ...        uniform, widths 8 6 4 3 2
                     quire_uniform:K4V3                 one rotated tier
                     diffkv_paper:1,0.02                thresholds alpha_h, alpha_l
                     diffkv_upstream:3,0.1@0.21         the same under a byte target
                     quire_budget:0.21                  a share of fp16's bytes
                     snapkv@0.25, h2o@0.25, streaming_llm@0.25
  --json FILE      write all figures as JSON
  --report FILE    write the report (default report.html)
  --threads N      threads (default: all processors)
  --synthetic      no model file: a small random model and random tokens
  --model FILE     another GGUF file of a Llama model (default: SmolLM2-135M-Instruct)
)";
}

}  // namespace smol
