// Contract of Backend::merge and find_bad_value. Oracle of the merge: weights exp(lse - total) and
// weighted sums in double. Tolerance: fp32 roundings of `parts` sums of logarithms and of outputs.
#pragma once

#include <vector>

#include "src/backend.hpp"
#include "support/attention_merge.hpp"
#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/gen.hpp"

namespace quire::contract {

inline void merge_equals_oracle(const Backend& backend) {
  test::Rng rng(31);
  INFO(rng.describe());
  for (const std::uint32_t count : {1u, 2u, 3u, 17u, 64u}) {
    for (const bool with_sink : {false, true}) {
      test::MergeProblem problem(count, 3, 5, 48, rng);
      problem.with_sink = with_sink;
      problem.base_2 = count % 2 == 1;
      problem.empty_some(rng);
      const test::MergeProblem::Result got =
          problem.run([&](const MergeCall& call) { backend.merge(call); });
      INFO("parts " << count << " sink " << with_sink);
      REQUIRE(problem.deviation(got) < 1.0);
    }
  }
}

inline void merge_of_nothing(const Backend& backend) {
  test::Rng rng(32);
  INFO(rng.describe());
  test::MergeProblem problem(4, 2, 3, 16, rng);
  problem.with_sink = true;
  problem.empty_all();
  const test::MergeProblem::Result got =
      problem.run([&](const MergeCall& call) { backend.merge(call); });
  for (const float x : got.out) REQUIRE(x == 0.0f);
  for (const float x : got.lse) REQUIRE(x == -__builtin_inff());
}

inline void bad_values_are_found(const Backend& backend) {
  test::Rng rng(33);
  INFO(rng.describe());
  constexpr std::uint32_t kSequences = 2, kTokens = 3, kHeads = 4, kDim = 16;
  const std::int64_t head = 19, token = 5 * 19, sequence = 4 * 5 * 19;  // gaps everywhere
  const float bad[] = {
      bits_float(0x7fc00000u), __builtin_inff(), -__builtin_inff(), 65505.0f, -65505.0f};
  std::vector<float> data(static_cast<std::size_t>(kSequences * sequence), bits_float(0x7fc00000u));
  const RowsView rows = {data.data(), DType::kF32, sequence, token, head};
  const auto at = [&](std::uint32_t i) {
    const std::uint32_t d = i % kDim, h = i / kDim % kHeads;
    const std::uint32_t t = i / kDim / kHeads % kTokens, s = i / kDim / kHeads / kTokens;
    return static_cast<std::size_t>(rows.offset(s, t, h) + d);
  };
  constexpr std::uint32_t kCount = kSequences * kTokens * kHeads * kDim;
  for (std::uint32_t i = 0; i < kCount; ++i) data[at(i)] = i % 2 == 0 ? 65504.0f : -65504.0f;
  const auto find = [&] {
    return backend.find_bad_value(rows, kSequences, kTokens, kHeads, kDim, 65504.0f);
  };
  REQUIRE(find() == -1);
  for (std::uint32_t i = 0; i < kCount; ++i) {
    const float was = data[at(i)];
    data[at(i)] = bad[i % 5];
    REQUIRE(find() == i);
    data[at(i)] = was;
  }
  data[at(7)] = data[at(300)] = bad[0];
  REQUIRE(find() == 7);  // the first one
  REQUIRE(backend.find_bad_value(rows, 0, kTokens, kHeads, kDim, 65504.0f) == -1);
}

inline void bad_halves_are_found(const Backend& backend) {
  const std::uint16_t values[] = {
      0x7bff, 0xfbff, 0x7c00, 0x7e01, 0xfc00};  // +-65504, inf, nan, -inf
  for (std::size_t i = 0; i < 5; ++i) {
    std::vector<std::uint16_t> halves(16, 0x3c00);
    halves[9] = values[i];
    const RowsView rows = {halves.data(), DType::kF16, 16, 16, 16};
    REQUIRE(backend.find_bad_value(rows, 1, 1, 1, 16, kHalfMax) == (i < 2 ? -1 : 9));
  }
  std::vector<std::uint16_t> bfloats(16, 0x3f80);
  const RowsView rows = {bfloats.data(), DType::kBf16, 16, 16, 16};
  REQUIRE(backend.find_bad_value(rows, 1, 1, 1, 16, kHalfMax) == -1);
  bfloats[15] = 0x4780;  // 65536
  REQUIRE(backend.find_bad_value(rows, 1, 1, 1, 16, kHalfMax) == 15);
}

}  // namespace quire::contract
