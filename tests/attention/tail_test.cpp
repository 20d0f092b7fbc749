// The tail pass: statistics, windows of queries, lengths around tile borders, rules, smoothing.
// Oracle: the dense matrix of probabilities in double. Lengths of 128 and 192 gave racing rows, and
// shuffled scores, in the code that DiffKV was published with.
#include "support/attention_tail.hpp"

namespace quire {
namespace {

using test::TailProblem;

constexpr Statistic kStatistics[] = {
    Statistic::kMaxSum, Statistic::kMaxFirst, Statistic::kMeanSum, Statistic::kMeanSquare};

TEST_CASE("every statistic, tail and length of the tail pass is right", "[attention][tail]") {
  test::Rng rng(1);
  INFO(rng.describe());
  for (const std::uint32_t tokens : {1u, 2u, 63u, 64u, 65u, 128u, 192u, 300u}) {
    for (const std::uint32_t rows : {1u, 16u, 63u, 64u, 65u, tokens}) {
      if (rows > tokens) continue;
      TailProblem problem(tokens, rows, 1, 3, 32, rng);
      for (const Statistic statistic : kStatistics) {
        for (const bool give_lse : {false, true}) {
          problem.statistic = statistic;
          problem.give_lse = give_lse;
          INFO("tokens " << tokens << " rows " << rows << " statistic "
                         << static_cast<int>(statistic) << " lse given " << give_lse);
          REQUIRE(problem.deviation(problem.run(cpu_backend())) < 1.0);
        }
      }
    }
  }
}

TEST_CASE("the tail pass obeys window, soft cap, ALiBi and sinks", "[attention][tail]") {
  test::Rng rng(2);
  INFO(rng.describe());
  for (std::uint32_t which = 0; which < 64; ++which) {
    TailProblem problem(130 + which, 40 + which, 2, 2, 64, rng);
    const std::vector<float> slopes = rng.normals(4, 0.02f, 0.04f);
    const std::vector<float> sinks = rng.normals(4, 2.0f);
    if ((which & 1) != 0) problem.rule.sliding_window = 1 + static_cast<std::int32_t>(which);
    if ((which & 2) != 0) problem.rule.soft_cap = 3.0f;
    if ((which & 4) != 0) problem.rule.alibi_slopes = slopes.data();
    if ((which & 8) != 0) problem.rule.sink_logits = sinks.data();
    problem.give_lse = (which & 16) != 0;
    problem.statistic = kStatistics[which / 16 % 4];
    if ((which & 32) != 0) problem.statistic = kStatistics[which % 4];
    INFO("rules " << which);
    REQUIRE(problem.deviation(problem.run(cpu_backend())) < 1.0);
  }
}

TEST_CASE("smoothing happens per query head where the group is reduced last", "[attention][tail]") {
  test::Rng rng(3);
  INFO(rng.describe());
  for (const Statistic statistic : kStatistics) {
    for (const PoolKind pool : {PoolKind::kAverage, PoolKind::kMaximum}) {
      for (const std::uint32_t width : {1u, 3u, 7u, 63u}) {
        for (const std::uint32_t tokens : {1u, 40u, 100u}) {
          TailProblem problem(tokens, std::min(tokens, 20u), 2, 3, 16, rng);
          problem.statistic = statistic;
          problem.pool = pool;
          problem.pool_width = width;
          INFO("statistic " << static_cast<int>(statistic) << " pool " << static_cast<int>(pool)
                            << " width " << width << " tokens " << tokens);
          REQUIRE(problem.deviation(problem.run(cpu_backend())) < 1.0);
        }
      }
    }
  }
}

TEST_CASE("head dims and group sizes of the tail pass", "[attention][tail]") {
  test::Rng rng(4);
  INFO(rng.describe());
  for (const std::uint32_t dim : {16u, 48u, 80u, 112u, 128u, 256u}) {
    for (const std::uint32_t group : {1u, 2u, 5u, 8u, 64u}) {
      TailProblem problem(70, 33, 2, group, dim, rng);
      problem.statistic = kStatistics[group % 4];
      INFO("dim " << dim << " group " << group);
      REQUIRE(problem.deviation(problem.run(cpu_backend())) < 1.0);
    }
  }
}

// The sink at position 0 keeps its own score.
TEST_CASE("scores stay with their position", "[attention][tail]") {
  test::Rng rng(5);
  INFO(rng.describe());
  for (const std::uint32_t tokens : {128u, 192u}) {
    TailProblem problem(tokens, 64, 1, 1, 32, rng);
    for (std::uint32_t r = 0; r < 64; ++r) problem.q[r * 32] = 8.0f;  // all look for channel 0, ...
    for (std::uint32_t t = 0; t < tokens; ++t) problem.k[t * 32] = t == 0 ? 12.0f : 0.0f;
    const TailProblem::Result got = problem.run(cpu_backend());  // ... which only token 0 has
    REQUIRE(problem.deviation(got) < 1.0);
    for (std::uint32_t t = 1; t < tokens; ++t) REQUIRE(got.scores[0] > got.scores[t]);
  }
}

}  // namespace
}  // namespace quire
