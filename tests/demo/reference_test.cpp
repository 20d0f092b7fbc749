// Oracle: logits of an independent numpy implementation (tests/golden/smollm2_reference.txt). Here
// every token goes through quire's fp16 cache. Needs the model file: QUIRE_SMOL_MODEL gives its
// path.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "shared_keys.hpp"
#include "smol/golden.hpp"
#include "support/catch.hpp"

namespace smol::test {
namespace {

constexpr double kLogitTolerance = 0.01;      // asked of every reference logit
constexpr double kOrderMatters = 0.02;        // neighbours closer than that may change places
constexpr double kFp16CacheTolerance = 1e-4;  // to the engine's own attention over fp16 K and V
constexpr int kSkipped = 77;

Model load() {
  const char* path = std::getenv("QUIRE_SMOL_MODEL");
  if (path == nullptr || *path == '\0') {
    std::fputs("skipped: QUIRE_SMOL_MODEL does not name the model file\n", stderr);
    std::exit(kSkipped);
  }
  GgufFile file;
  Model model;
  std::string problem = file.load(path);
  if (problem.empty()) problem = load_model(file, &model);
  INFO(problem);
  REQUIRE(problem.empty());
  return model;
}

void compare_row(const std::vector<GoldenLogit>& top, const float* row, double& worst) {
  for (std::size_t i = 0; i < top.size(); ++i) {
    worst = std::max(worst, std::fabs(static_cast<double>(row[top[i].id]) - top[i].logit));
    if (i + 1 < top.size() && top[i].logit - top[i + 1].logit > kOrderMatters) {
      CHECK(row[top[i].id] > row[top[i + 1].id]);
    }
  }
}

}  // namespace

TEST_CASE("decoded logits through the fp16 cache agree with the reference and with plain attention",
          "[demo][reference]") {
  const Model model = load();
  Pool pool(2);
  const auto prompts = read_golden(std::string(QUIRE_GOLDEN_DIR) + "/smollm2_reference.txt");
  REQUIRE(prompts.size() == 4);
  double to_reference = 0.0;
  double to_plain = 0.0;
  for (const GoldenPrompt& prompt : prompts) {
    SharedKeys both(model, pool, static_cast<uint32_t>(prompt.tokens.size()));
    for (std::size_t position = 0; position < prompt.tokens.size(); ++position) {
      to_plain = std::max(to_plain, both.step(prompt.tokens[position]));
      compare_row(prompt.top[position], both.logits(), to_reference);
    }
  }
  std::printf("largest difference: %.5f to the reference, %.6f to plain attention\n",
              to_reference,
              to_plain);
  CHECK(to_reference <= kLogitTolerance);
  CHECK(to_plain <= kFp16CacheTolerance);
}

}  // namespace smol::test
