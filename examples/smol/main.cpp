// The demo: a real model, its KV cache in quire, a table of bytes and quality.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "lockstep.hpp"
#include "metrics.hpp"
#include "options.hpp"
#include "results.hpp"
#include "tokenizer.hpp"

namespace smol {
namespace {

struct Input {
  Model model;
  std::vector<int32_t> tokens;
  std::string text_name;
};

std::string read_text(const std::string& path, std::string* out) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return path + ": is a folder";
  std::ifstream file(path, std::ios::binary);
  if (!file) return path + ": cannot be opened";
  out->assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  return "";
}

// Random tokens with repetitions, so that there is something to attend to.
std::vector<int32_t> synthetic_tokens(uint32_t count, uint32_t vocabulary) {
  std::vector<int32_t> tokens(count);
  uint64_t state = 1;
  for (uint32_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const auto draw = static_cast<uint32_t>(state >> 33);
    const bool repeat = i > 64 && draw % 4 != 0;
    tokens[i] = repeat ? tokens[i - 1 - draw / 4 % 64] : static_cast<int32_t>(draw % vocabulary);
  }
  return tokens;
}

std::string load_input(const Options& options, Input* in) {
  if (options.synthetic) {
    in->model = synthetic_model(1);
    in->tokens = synthetic_tokens(options.tokens, in->model.config.vocabulary);
    in->text_name = "synthetic";
    return "";
  }
  if (options.model.empty())
    return "no model file: run examples/demo.sh, or give --model FILE or --synthetic";
  if (options.text.empty()) return "no text: run examples/demo.sh, or give --text FILE";
  GgufFile file;
  std::string problem = file.load(options.model);
  if (problem.empty()) problem = load_model(file, &in->model);
  Tokenizer tokenizer;
  if (problem.empty()) problem = tokenizer.load(file);
  std::string text;
  if (problem.empty()) problem = read_text(options.text, &text);
  if (!problem.empty()) return problem;
  in->tokens = tokenizer.encode(text);
  if (in->tokens.size() < options.tokens) {
    return fmt::format("{} holds {} tokens, fewer than --tokens {}",
                       options.text,
                       in->tokens.size(),
                       options.tokens);
  }
  in->tokens.resize(options.tokens);
  const std::size_t slash = options.text.rfind('/');
  in->text_name = slash == std::string::npos ? options.text : options.text.substr(slash + 1);
  return "";
}

// fp16 first: every comparison is against it.
std::string make_caches(const Options& options,
                        const Config& config,
                        std::vector<CacheRun>* caches) {
  std::vector<std::string> names = options.settings.empty() ? default_settings() : options.settings;
  names.insert(names.begin(), "fp16");
  for (auto name = names.begin(); name != names.end();)  // each once
    name = std::find(names.begin(), name, *name) == name ? name + 1 : names.erase(name);
  // What a head holds on average is about half of the text.
  const CacheShape shape = {
      config.layers, config.q_heads, config.kv_heads, config.head_dim, options.tokens / 2};
  for (const std::string& name : names) {
    Setting setting;
    std::string problem = parse_setting(name, shape, &setting);
    if (!problem.empty()) return problem;
    caches->emplace_back();
    problem = caches->back().create(setting, options.tokens);
    if (!problem.empty()) return name + ": " + problem;
  }
  return "";
}

TierMap map_of(const CacheRun& cache, const Config& config, uint32_t tokens) {
  TierMap map = {config.layers, config.kv_heads, tokens, {}};
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    for (uint32_t head = 0; head < config.kv_heads; ++head)
      map.rows.push_back(cache.tiers(layer, head));
  }
  return map;
}

// Settings whose tokens are not all alike.
bool worth_a_map(const Setting& setting) { return setting.policy.kind != QUIRE_KEEP_ALL; }

void announce(const Options& options, const Input& in, std::size_t settings) {
  std::fprintf(stderr,
               "%s: %u tokens of %s, the first %u as prompt, %zu settings\n",
               in.model.name.c_str(),
               options.tokens,
               in.text_name.c_str(),
               options.prompt,
               settings);
  if (options.tokens >= 512) return;
  std::fprintf(
      stderr,
      "note: most of a short text lies in the 16-bit ring of the last 64 tokens; shares mean "
      "little below 1,000 tokens\n");
}

// The whole table in lockstep.
std::string measure(const Options& options,
                    const Input& in,
                    Pool& pool,
                    std::vector<SettingResult>* results) {
  std::vector<CacheRun> caches;
  std::string problem = make_caches(options, in.model.config, &caches);
  if (!problem.empty()) return problem;
  announce(options, in, caches.size());
  Lockstep engine(in.model, pool);
  problem = engine.run_prompt(in.tokens, options.prompt, caches);
  if (!problem.empty()) return problem;
  const uint32_t vocabulary = in.model.config.vocabulary;
  std::vector<Quality> quality(caches.size());
  std::vector<CacheBytes> bytes(caches.size());
  std::vector<LogitRow> rows(caches.size());
  const auto observe = [&](uint32_t position, const float* logits) {
    const bool last = position + 1 == options.tokens;
    const int32_t next = last ? -1 : in.tokens[position + 1];
    const auto count = static_cast<uint32_t>(caches.size());
    pool.run(count, [&](uint32_t i) {
      rows[i] = summarise(logits + std::size_t{i} * vocabulary, vocabulary);
    });
    pool.run(count, [&](uint32_t i) {
      quality[i].add(rows[0], rows[i], vocabulary, next);
      const CacheBytes now = caches[i].bytes();
      bytes[i].total += now.total;
      bytes[i].fp16 += now.fp16;
    });
  };
  problem = engine.run_steps(in.tokens, options.prompt, options.tokens, caches, observe);
  if (!problem.empty()) return problem;
  const double steps = options.tokens - options.prompt;
  for (std::size_t i = 0; i < caches.size(); ++i) {
    SettingResult r;
    r.name = caches[i].setting().name;
    r.bytes = bytes[i].total / steps;
    r.fp16_bytes = bytes[i].fp16 / steps;
    r.kld_mean = quality[i].kld_mean();
    r.kld_p99 = quality[i].kld_p99();
    r.same_top = quality[i].same_top();
    r.ppl = quality[i].perplexity();
    r.cache_ms_per_token = caches[i].seconds() * 1e3 / steps;
    r.scratch_bytes = caches[i].scratch_bytes();
    if (!std::isfinite(r.kld_mean) || !std::isfinite(r.ppl))
      return r.name + ": logits that are no numbers; is the model file damaged?";
    if (worth_a_map(caches[i].setting()))
      r.map = map_of(caches[i], in.model.config, options.tokens);
    results->push_back(std::move(r));
  }
  return "";
}

// Decodes a few tokens with one cache alone: what an engine of one user would see.
std::string measure_speed(const Options& options,
                          const Input& in,
                          Pool& pool,
                          const std::string& name,
                          double* tokens_per_second) {
  Options alone = options;
  alone.settings = {name};
  std::vector<CacheRun> caches;
  std::string problem = make_caches(alone, in.model.config, &caches);
  if (problem.empty() && name != "fp16") caches.erase(caches.begin());
  Lockstep engine(in.model, pool);
  if (problem.empty()) problem = engine.run_prompt(in.tokens, options.prompt, caches);
  if (!problem.empty()) return problem;
  constexpr uint32_t kWarmUp = 4;
  constexpr uint32_t kMeasured = 48;
  const uint32_t first = std::min(options.prompt + kWarmUp, options.tokens - 1);
  const uint32_t last = std::min(first + kMeasured, options.tokens);
  const auto ignore = [](uint32_t, const float*) {};
  problem = engine.run_steps(in.tokens, options.prompt, first, caches, ignore);
  const auto start = std::chrono::steady_clock::now();
  if (problem.empty()) problem = engine.run_steps(in.tokens, first, last, caches, ignore);
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  *tokens_per_second = (last - first) / passed.count();
  return problem;
}

// Before minutes of work, not after. What was not there is not left behind.
std::string check_writable(const std::string& path) {
  if (path.empty()) return "";
  std::error_code ignored;
  const bool there = std::filesystem::exists(path, ignored);
  if (!std::ofstream(path, std::ios::app)) return "cannot write " + path;
  if (!there) std::filesystem::remove(path, ignored);
  return "";
}

std::string run(const Options& options) {
  Input in;
  std::string problem = load_input(options, &in);
  if (problem.empty()) problem = check_writable(options.json);
  if (problem.empty()) problem = check_writable(options.report);
  if (!problem.empty()) return problem;
  const uint32_t processors = std::max(1u, std::thread::hardware_concurrency());
  const uint32_t threads = std::min(options.threads > 0 ? options.threads : processors, processors);
  Pool pool(threads);
  RunResult result;
  result.model = in.model.name;
  result.text = in.text_name;
  result.tokens = options.tokens;
  result.prompt = options.prompt;
  problem = measure(options, in, pool, &result.settings);
  for (SettingResult& s : result.settings) {
    if (problem.empty() && (s.name == "fp16" || s.name == "K8V4")) {
      problem = measure_speed(options, in, pool, s.name, &s.tokens_per_second);
    }
  }
  if (!problem.empty()) return problem;
  std::fputs(table_text(result).c_str(), stdout);
  if (!options.json.empty()) {
    problem = write_file(options.json, json_text(result));
    if (problem.empty()) std::printf("\njson: %s\n", options.json.c_str());
  }
  if (problem.empty() && !options.report.empty()) {
    problem = write_file(options.report, report_html(result));
    if (problem.empty()) std::printf("\nreport: %s\n", options.report.c_str());
  }
  return problem;
}

}  // namespace
}  // namespace smol

int main(int argc, char** argv) {
  smol::Options options;
  std::string problem = smol::parse_options(argc, argv, &options);
  if (options.help) {
    std::fputs(smol::help_text(), stdout);
    return 0;
  }
  try {
    if (problem.empty()) problem = smol::run(options);
  } catch (const std::exception& e) {  // of the standard library: no memory, a broken file system
    problem = e.what();
  }
  if (problem.empty()) return 0;
  std::fprintf(stderr, "%s\n", problem.c_str());
  return 1;
}
