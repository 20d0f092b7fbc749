// Prompts in rounds. Oracles: the slow model of support/prompt_model.hpp, the same prompt in one
// round, and a cache in which nothing else happened in between.
#include "support/prompt_turns.hpp"

namespace quire {
namespace {

using test::DecodedHead;
using test::fork_shape;
using test::fork_spec;
using test::KeptToken;
using test::RigSpec;
using test::Rng;
using test::Stream;
using test::Turns;

constexpr std::uint32_t kRecipes[] = {QUIRE_RECIPE_KEEP_ALL,
                                      QUIRE_RECIPE_DIFFKV_UPSTREAM,
                                      QUIRE_RECIPE_DIFFKV_PAPER,
                                      QUIRE_RECIPE_SNAPKV,
                                      QUIRE_RECIPE_H2O,
                                      QUIRE_RECIPE_STREAMING_LLM,
                                      QUIRE_RECIPE_QUIRE_BUDGET,
                                      QUIRE_RECIPE_QUIRE_UNIFORM,
                                      QUIRE_RECIPE_FOREIGN};

// Numbers that fp16 holds.
Stream half_stream(std::uint32_t tokens, Rng& rng) {
  Stream stream(fork_shape(tokens), rng);
  const auto round = [](float* x, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) x[i] = half_to_float(float_to_half(x[i]));
  };
  const std::size_t row = std::size_t{stream.shape.kv_heads} * stream.shape.dim;
  for (std::uint32_t layer = 0; layer < stream.shape.layers; ++layer) {
    for (std::uint32_t t = 0; t < tokens; ++t) {
      round(stream.k_at(layer, t), row);
      round(stream.v_at(layer, t), row);
    }
  }
  return stream;
}

TEST_CASE("the last round plans for the tokens of all rounds", "[lifecycle][chunks]") {
  Rng rng(321);
  INFO(rng.describe());
  const Stream stream(fork_shape(330), rng);
  const std::vector<std::vector<std::uint32_t>> cuts = {
      {50, 50}, {1, 1, 1, 60}, {90, 3}, {16, 17, 18}, {5, 60, 1}, {40, 2, 40}};
  for (const std::uint32_t recipe : kRecipes) {
    for (const std::vector<std::uint32_t>& first : cuts) {
      INFO("recipe " << recipe << " rounds " << first[0] << ", " << first[1] << ", ...");
      Turns turns(fork_spec(recipe, 1), stream);
      turns.prompt(first);
      turns.decode(12);
      turns.prompt(cuts[(first[0] + recipe) % cuts.size()]);
      turns.decode(5);
      turns.prompt({20});
    }
  }
}

TEST_CASE("without scores a prompt in rounds is the prompt in one, bit for bit",
          "[lifecycle][chunks]") {
  Rng rng(322);
  INFO(rng.describe());
  const Stream stream = half_stream(230, rng);
  for (const std::uint32_t recipe : {QUIRE_RECIPE_KEEP_ALL, QUIRE_RECIPE_STREAMING_LLM}) {
    Turns whole(fork_spec(recipe, 1), stream), rounds(fork_spec(recipe, 1), stream);
    for (const std::uint32_t more : {0u, 1u}) {
      INFO("recipe " << recipe << " prompt " << more);
      whole.prompt({100});
      rounds.prompt({30, 1, 9, 47, 13});
      const auto whole_kept = whole.rig.kept(0, 0, 0);
      REQUIRE(whole_kept == rounds.rig.kept(0, 0, 0));
      if (recipe == QUIRE_RECIPE_KEEP_ALL)  // dense tiers are filled in order of arrival there
        REQUIRE(whole.rig.records(0) == rounds.rig.records(0));
      for (std::uint32_t i = 0; i < 10; ++i) {
        const auto at = static_cast<std::uint32_t>(whole.length());
        const std::vector<float> a = whole.rig.step(0, stream, at);
        const std::vector<float> b = rounds.rig.step(0, stream, at);
        if (recipe == QUIRE_RECIPE_KEEP_ALL) REQUIRE(a == b);
      }
    }
  }
}

// Largest error of a logit when keys are rounded to fp16, hence of a probability.
double rounding_of_probabilities(const Stream& stream) {
  const test::AttentionScale s = stream.attention_scale();
  const double logit = s.q_norm * s.k_norm * s.scale * test::kHalfEps;
  return std::exp(2.0 * logit) - 1.0;
}

TEST_CASE("scores of a prompt in rounds are those of one round up to the rounding of keys",
          "[lifecycle][chunks]") {
  Rng rng(323);
  INFO(rng.describe());
  const Stream stream(fork_shape(140), rng);
  for (const std::uint32_t recipe :
       {QUIRE_RECIPE_DIFFKV_UPSTREAM, QUIRE_RECIPE_DIFFKV_PAPER, QUIRE_RECIPE_SNAPKV}) {
    RigSpec spec = fork_spec(recipe, 1);
    spec.group.layout.tier[0].k = spec.group.layout.tier[0].v = {QUIRE_GRID_F16, 16, 0, 0};
    Turns whole(spec, stream), rounds(spec, stream);
    whole.prompt({120});
    rounds.prompt({30, 41, 49});
    const Policy& policy = whole.rig.state().slots[0].policy;
    const double bound =
        rounding_of_probabilities(stream) + 2.0 * test::sums_tolerance(stream, policy, 120);
    std::uint32_t same = 0;
    for (std::uint32_t h = 0; h < 4; ++h) {
      std::map<std::int32_t, KeptToken> a, b;
      for (const KeptToken& t : whole.rig.kept(0, h / 2, h % 2)) a[t.position] = t;
      for (const KeptToken& t : rounds.rig.kept(0, h / 2, h % 2)) b[t.position] = t;
      double worst_a = 1e300, worst_b = 1e300;  // of what an eviction kept
      for (const auto& [p, t] : a)
        if (t.tier == 0) worst_a = std::min(worst_a, static_cast<double>(t.score));
      for (const auto& [p, t] : b)
        if (t.tier == 0) worst_b = std::min(worst_b, static_cast<double>(t.score));
      const HeadState& state = whole.rig.state().head_state(0, h / 2, h % 2);
      for (std::int32_t p = 0; p < 120; ++p) {
        const bool in_a = a.count(p) != 0, in_b = b.count(p) != 0;
        INFO("recipe " << recipe << " head " << h << " token " << p);
        if (in_a && in_b) {
          const double x = static_cast<double>(a[p].score), y = static_cast<double>(b[p].score);
          REQUIRE(std::fabs(x - y) <= bound * x + std::exp(-87.0));
          if (a[p].tier == b[p].tier) {
            ++same;
            continue;
          }
        }
        if (!in_a && !in_b) continue;
        if (policy.kind == PolicyKind::kEvict) continue;  // ranks are checked by the slow model
        const double score = static_cast<double>(in_a ? a[p].score : b[p].score);
        const double n = test::listed_queries({{0, 120}}, policy.tail_queries, p, 120);
        const bool own = policy.threshold_base == ThresholdBase::kPosition;
        const Thresholds limit =
            thresholds_at(state.alpha_high, state.alpha_low, 1.0f, own ? p : 120);
        bool near = false;
        for (const float border : {limit.high, limit.low})
          near = near || std::fabs(score / n - static_cast<double>(border)) <= bound * score / n;
        REQUIRE(near);
      }
    }
    REQUIRE(same > 100);
  }
}

TEST_CASE("an offset is the mean of the first round", "[lifecycle][chunks]") {
  Rng rng(324);
  INFO(rng.describe());
  const Stream stream(fork_shape(200), rng);
  for (const std::uint32_t recipe : {QUIRE_RECIPE_QUIRE_UNIFORM, QUIRE_RECIPE_QUIRE_BUDGET}) {
    Turns turns(fork_spec(recipe, 1), stream);
    turns.prompt({40, 60});
    turns.decode(5);
    turns.prompt({30});
    for (std::uint32_t h = 0; h < 4; ++h) {
      const CacheState& cache = turns.rig.state();
      const std::uint16_t* offset =
          k_offset_of(cache.group.ring, cache.ring_block(0, h / 2, h % 2));
      for (std::uint32_t d = 0; d < stream.shape.dim; ++d) {
        double sum = 0.0;
        for (std::uint32_t t = 0; t < 40; ++t)
          sum += static_cast<double>(stream.k(h / 2, t)[(h % 2) * stream.shape.dim + d]);
        REQUIRE(offset[d] == float_to_half(static_cast<float>(sum / 40.0)));
      }
    }
  }
}

std::vector<float> extended(const Turns& turns, std::uint32_t layer, quire_status want = QUIRE_OK) {
  std::vector<float> out(std::size_t{3} * turns.stream.q_heads() * turns.stream.shape.dim, 7.0f);
  quire_extend_args a = QUIRE_EXTEND_ARGS_INIT;
  a.slot = turns.slot;
  a.layer = layer;
  a.rows = 3;
  a.first_position = turns.length();
  a.q = rows_of(turns.stream.q(layer, static_cast<std::uint32_t>(turns.length())));
  a.out = rows_of(out.data());
  REQUIRE(turns.rig.cache.extend(a).status() == want);
  return out;
}

TEST_CASE("the past can be read until a round has stored the layer", "[lifecycle][chunks]") {
  Rng rng(325);
  INFO(rng.describe());
  const Stream stream(fork_shape(200), rng);
  for (const std::uint32_t recipe : kRecipes) {
    INFO("recipe " << recipe);
    Turns turns(fork_spec(recipe, 1), stream);
    turns.prompt({60});
    REQUIRE(turns.try_round(40, 60, QUIRE_PREFILL_MORE).ok());
    const std::vector<float> before[2] = {extended(turns, 0), extended(turns, 1)};
    REQUIRE(turns.rig.cache.prefill_begin(turns.slot, 50).ok());
    REQUIRE(extended(turns, 0) == before[0]);
    REQUIRE(extended(turns, 1) == before[1]);
    REQUIRE(turns.rig.cache.prefill_layer(turns.args(0, 100, 50, 60)).ok());
    const std::vector<float> refused = extended(turns, 0, QUIRE_BAD_STATE);
    REQUIRE(refused == std::vector<float>(refused.size(), 7.0f));
    REQUIRE(extended(turns, 1) == before[1]);
    REQUIRE(turns.rig.cache.prefill_layer(turns.args(1, 100, 50, 60)).ok());
    REQUIRE(turns.rig.cache.prefill_end(turns.slot).ok());
    turns.check_attention();
  }
}

TEST_CASE("other sequences step and prompt between rounds and layers", "[lifecycle][chunks]") {
  Rng rng(326);
  INFO(rng.describe());
  const Stream stream(fork_shape(260), rng);
  for (const std::uint32_t recipe : kRecipes) {
    INFO("recipe " << recipe);
    RigSpec spec = fork_spec(recipe, 2);
    Turns alone(spec, stream), busy(spec, stream);
    const std::int32_t other = busy.rig.open();
    busy.rig.prompt(other, stream, 50);
    for (Turns* t : {&alone, &busy}) {
      std::uint32_t at = 50;
      const auto between = [&] {
        if (t == &busy) (void)busy.rig.step(other, stream, at++);
      };
      t->prompt({40});
      t->decode(5);
      for (const std::uint32_t tokens : {30u, 20u, 25u}) {
        const bool last = tokens == 25;
        const auto first = static_cast<std::uint32_t>(t->length());
        between();
        REQUIRE(t->rig.cache.prefill_begin(t->slot, tokens, last ? 0 : QUIRE_PREFILL_MORE).ok());
        for (std::uint32_t layer = 0; layer < 2; ++layer) {
          between();
          REQUIRE(t->rig.cache.prefill_layer(t->args(layer, first, tokens, 45)).ok());
        }
        between();
        REQUIRE(t->rig.cache.prefill_end(t->slot).ok());
      }
      t->decode(10);
    }
    REQUIRE(alone.rig.records(alone.slot) == busy.rig.records(busy.slot));
  }
}

}  // namespace
}  // namespace quire
