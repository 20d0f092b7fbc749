#include "bench/replay/options.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace quire::bench {
namespace {

constexpr const char* kHelp =
    R"(quire_replay: requests arrive, wait, run in a continuous batch, are swapped out and in, and complete.

  --sequences N      requests                                    (240)
  --arrivals X       of them per step, a Poisson stream          (0.12)
  --prompt N         median of prompt lengths, log-normal        (800)
  --answer N         median of answer lengths, log-normal        (200)
  --sigma X          of both                                     (1)
  --batch N          most sequences in a step                    (48)
  --pages N          in the pool                                 (3200)
  --page-bytes N     0: the layout's own choice                  (7168)
  --layers N  --heads N  --dim N   of the model                  (2, 2, 128)
  --policy NAME      diffkv_upstream, diffkv_paper, keep_all, quire_budget, quire_uniform, h2o
  --max-tokens N     longest sequence                            (8192)
  --seed N           of lengths, arrivals and vectors            (1)
  --every N          steps between two lines                     (250)
  --json FILE        totals, for machines
)";

struct Flag {
  const char* name;
  void (*set)(ReplayOptions&, const char*);
};

std::uint32_t number(const char* text) {
  return static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10));
}

const Flag kFlags[] = {
    {"--sequences", [](ReplayOptions& o, const char* v) { o.sequences = number(v); }},
    {"--arrivals", [](ReplayOptions& o, const char* v) { o.arrivals = std::atof(v); }},
    {"--prompt", [](ReplayOptions& o, const char* v) { o.prompt_median = std::atof(v); }},
    {"--answer", [](ReplayOptions& o, const char* v) { o.answer_median = std::atof(v); }},
    {"--sigma", [](ReplayOptions& o, const char* v) { o.sigma = std::atof(v); }},
    {"--batch", [](ReplayOptions& o, const char* v) { o.batch = number(v); }},
    {"--pages", [](ReplayOptions& o, const char* v) { o.pages = number(v); }},
    {"--page-bytes", [](ReplayOptions& o, const char* v) { o.page_bytes = number(v); }},
    {"--layers", [](ReplayOptions& o, const char* v) { o.layers = number(v); }},
    {"--heads", [](ReplayOptions& o, const char* v) { o.kv_heads = number(v); }},
    {"--dim", [](ReplayOptions& o, const char* v) { o.dim = number(v); }},
    {"--policy", [](ReplayOptions& o, const char* v) { o.policy = v; }},
    {"--max-tokens", [](ReplayOptions& o, const char* v) { o.max_tokens = number(v); }},
    {"--seed", [](ReplayOptions& o, const char* v) { o.seed = number(v); }},
    {"--every", [](ReplayOptions& o, const char* v) { o.every = number(v); }},
    {"--json", [](ReplayOptions& o, const char* v) { o.json = v; }},
};

}  // namespace

bool read_options(int argc, char** argv, ReplayOptions* out) {
  for (int i = 1; i < argc; ++i) {
    const Flag* found = nullptr;
    for (const Flag& flag : kFlags)
      if (std::strcmp(flag.name, argv[i]) == 0) found = &flag;
    if (found == nullptr || i + 1 == argc) {
      const bool help = std::strcmp(argv[i], "--help") == 0;
      std::fputs(kHelp, help ? stdout : stderr);
      if (!help) std::fprintf(stderr, "\nnot understood: %s\n", argv[i]);
      return false;
    }
    found->set(*out, argv[++i]);
  }
  if (out->sequences > 0 && out->batch > 0 && out->every > 0 && out->arrivals > 0.0) return true;
  std::fputs("--sequences, --batch, --every and --arrivals must be above 0\n", stderr);
  return false;
}

}  // namespace quire::bench
