// Contract of Backend::tail_scores and tail_workspace. Oracle: the whole matrix of probabilities of
// the last queries in double, then the statistic by its definition.
#pragma once

#include <algorithm>
#include <vector>

#include "support/attention_tail.hpp"
#include "support/attention_threads.hpp"
#include "support/catch.hpp"

namespace quire::contract {

inline void tail_equals_oracle(const Backend& backend) {
  test::Rng rng(41);
  INFO(rng.describe());
  std::uint32_t index = 0;
  for (const std::uint32_t tokens : {1u, 2u, 63u, 64u, 65u, 128u, 192u, 300u}) {
    for (const std::uint32_t rows : {1u, 16u, 63u, 64u, 65u, tokens}) {
      test::TailProblem problem(
          tokens, std::min(rows, tokens), 1 + index % 2, 1 + index % 3, 64, rng);
      problem.statistic = static_cast<Statistic>(1 + index % 4);
      problem.give_lse = index % 5 < 2;
      problem.pool = static_cast<PoolKind>(index % 3);
      problem.pool_width = 5;
      ++index;
      INFO("tokens " << tokens << " rows " << rows << " statistic "
                     << static_cast<int>(problem.statistic));
      REQUIRE(problem.deviation(problem.run(backend)) < 1.0);
    }
  }
}

// Fewer tokens than query rows: the first rows lie before the prompt and see nothing.
inline void tail_rows_before_the_prompt(const Backend& backend) {
  test::Rng rng(43);
  INFO(rng.describe());
  for (std::uint32_t i = 1; i <= 4; ++i) {
    test::TailProblem problem(20, 64, 2, 2, 48, rng);
    const std::vector<float> sinks = rng.normals(problem.q_heads());
    problem.statistic = static_cast<Statistic>(i);
    problem.give_lse = i % 2 == 0;
    if (i > 2) problem.rule.sink_logits = sinks.data();
    REQUIRE(problem.deviation(problem.run(backend)) < 1.0);
  }
}

// Keys of the past as they are stored, by true position; more rows than new tokens.
inline void tail_reads_a_past(const Backend& backend) {
  test::Rng rng(44);
  INFO(rng.describe());
  for (std::uint32_t index = 0; index < 48; ++index) {
    const std::uint32_t tokens = 1 + 37 * index % 150;
    const std::uint32_t past = 1 + 53 * index % 220;
    const std::uint32_t rows = 1 + 29 * index % (tokens + past);
    test::TailProblem problem(tokens, rows, 1 + index % 2, 1 + index % 3, 64, rng);
    problem.add_past(past, index, rng);
    problem.statistic = static_cast<Statistic>(1 + index % 4);
    problem.give_lse = index % 5 < 2;
    problem.pool = static_cast<PoolKind>(index % 3);
    problem.pool_width = 5;
    if (index % 4 == 1) problem.rule.sliding_window = 1 + static_cast<std::int32_t>(index);
    const std::vector<float> slopes = rng.normals(problem.q_heads(), 0.02f, 0.04f);
    if (index % 7 == 2) problem.rule.alibi_slopes = slopes.data();
    INFO("index " << index << " tokens " << tokens << " past " << past << " rows " << rows);
    REQUIRE(problem.deviation(problem.run(backend)) < 1.0);
  }
}

inline void tail_is_the_same_on_any_workers(const Backend& backend) {
  test::Rng rng(42);
  INFO(rng.describe());
  test::TailProblem problem(150, 70, 5, 3, 80, rng);
  problem.statistic = Statistic::kMeanSquare;
  const test::TailProblem::Result alone = problem.run(backend);
  for (const std::uint32_t width : {1u, 2u, 3u, 8u}) {
    for (const test::Order order : {test::Order::kBackward, test::Order::kThreads}) {
      test::Workers workers(width, order);
      problem.parallel = workers.parallel();
      REQUIRE(problem.run(backend).scores == alone.scores);
    }
  }
}

}  // namespace quire::contract
