// Oracle: the engine's own plain attention over K and V rounded to fp16. Through a 16-bit quire
// cache the logits must be the same to 1e-4.
#include "lockstep.hpp"

#include <algorithm>
#include <cmath>

#include "shared_keys.hpp"
#include "support/catch.hpp"

namespace smol {
namespace {

constexpr double kFp16CacheTolerance = 1e-4;  // asked of the fp16 cache

std::vector<int32_t> some_tokens(uint32_t count, uint32_t vocabulary) {
  std::vector<int32_t> tokens(count);
  uint64_t state = 9;
  for (int32_t& t : tokens) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    t = static_cast<int32_t>((state >> 33) % vocabulary);
  }
  return tokens;
}

std::vector<CacheRun> caches_for(const Config& c,
                                 const std::vector<std::string>& names,
                                 uint32_t tokens) {
  std::vector<CacheRun> caches;
  for (const std::string& name : names) {
    Setting setting;
    const CacheShape shape = {c.layers, c.q_heads, c.kv_heads, c.head_dim, tokens};
    REQUIRE(parse_setting(name, shape, &setting).empty());
    caches.emplace_back();
    const std::string problem = caches.back().create(setting, tokens);
    INFO(name << ": " << problem);
    REQUIRE(problem.empty());
  }
  return caches;
}

// Logits [positions][vocabulary] of the decoded part, of one of the caches.
std::vector<float> decoded_logits(const Model& model,
                                  const std::vector<int32_t>& ids,
                                  uint32_t prompt,
                                  const std::vector<std::string>& names,
                                  std::size_t which) {
  Pool pool(2);
  Lockstep engine(model, pool);
  const auto tokens = static_cast<uint32_t>(ids.size());
  std::vector<CacheRun> caches = caches_for(model.config, names, tokens);
  REQUIRE(engine.run_prompt(ids, prompt, caches).empty());
  std::vector<float> out;
  const std::size_t vocabulary = model.config.vocabulary;
  const auto observe = [&](uint32_t, const float* logits) {
    out.insert(out.end(), logits + which * vocabulary, logits + (which + 1) * vocabulary);
  };
  REQUIRE(engine.run_steps(ids, prompt, tokens, caches, observe).empty());
  return out;
}

TEST_CASE("logits through the fp16 cache equal plain attention over fp16 keys and values",
          "[demo][lockstep]") {
  const Model model = synthetic_model(3);
  Pool pool(2);
  test::SharedKeys both(model, pool, 200);
  double worst = 0.0;
  for (const int32_t token : some_tokens(200, model.config.vocabulary)) {
    worst = std::max(worst, both.step(token));
  }
  CHECK(worst <= kFp16CacheTolerance);
  CHECK(worst > 0.0);  // two different computations
}

TEST_CASE("caches in lockstep do not disturb each other", "[demo][lockstep]") {
  const Model model = synthetic_model(4);
  const std::vector<int32_t> ids = some_tokens(160, model.config.vocabulary);
  const std::vector<std::string> three = {"K4V2", "fp16", "quire_budget:0.25"};
  const std::vector<std::string> other = {"snapkv@0.25", "fp16", "K8V8"};
  const std::vector<float> first = decoded_logits(model, ids, 100, three, 1);
  CHECK(first == decoded_logits(model, ids, 100, other, 1));
  CHECK(first != decoded_logits(model, ids, 100, three, 0));
}

TEST_CASE("a refused call ends the run with quire's own words", "[demo][lockstep][bad]") {
  Model model = synthetic_model(5);
  const std::vector<int32_t> ids = some_tokens(40, model.config.vocabulary);
  model.layers[1].qkv[0] = HUGE_VALF;  // infinite queries in the second layer
  Pool pool(2);
  Lockstep engine(model, pool);
  std::vector<CacheRun> caches = caches_for(model.config, {"K8V4"}, 40);
  const auto ignore = [](uint32_t, const float*) {};
  const std::string problem = engine.run_steps(ids, 0, 40, caches, ignore);
  INFO(problem);
  CHECK(problem.find("quire_attention: q") != std::string::npos);
}

}  // namespace
}  // namespace smol
