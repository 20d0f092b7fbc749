// Contract of Backend::write_prompt. Oracle: every record by the scalar definition of
// its format, bit by bit, compared by position, so that the order inside a tier is free.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "src/backend.hpp"
#include "support/attention_formats.hpp"
#include "support/attention_snapshot.hpp"
#include "support/attention_threads.hpp"
#include "support/catch.hpp"

namespace quire::contract {

// A prompt of one layer: ring, high, low and dropped tokens by a random plan.
class Prompt {
 public:
  Prompt(std::uint32_t index, std::uint32_t tokens, std::uint32_t kv_heads, test::Rng& rng)
      : tokens_(tokens) {
    test::HeadSpec spec =
        test::walk_spec(index, index % 3 == 0 ? 64 : 96, 80, static_cast<std::int32_t>(tokens));
    spec.has_ring = true;
    spec.sinks = 1 + index % 3;
    const RingShape shape = test::ring_shape(spec);
    for (std::uint32_t head = 0; head < kv_heads; ++head) {
      spec.tokens[0] = spec.tokens[1] = 0;
      for (std::uint32_t t = 0; t < tokens; ++t) {
        const bool in_ring = shape.holds(static_cast<std::int32_t>(t), spec.length);
        const Tier choices[] = {Tier::kHigh, Tier::kLow, Tier::kDropped};
        tiers.push_back(in_ring ? Tier::kKeep : choices[rng.below(3)]);
        if (tiers.back() == Tier::kHigh) ++spec.tokens[0];
        if (tiers.back() == Tier::kLow) ++spec.tokens[1];
        scores.push_back(static_cast<float>(rng.uniform()));
      }
      heads.push_back(std::make_unique<test::TestHead>(spec, rng, test::Fill::kNothing));
    }
    dim_k = spec.dim_k;
    dim_v = spec.dim_v;
    k = interleave(dim_k, [](const test::TestHead& head) { return head.true_keys(); });
    v = interleave(dim_v, [](const test::TestHead& head) { return head.true_values(); });
  }

  void run(const Backend& backend, bool with_scores, const Parallel& parallel) {
    std::vector<HeadView> views;
    for (const auto& head : heads) views.push_back(head->view());
    std::vector<std::uint64_t> saturated(parallel.width, 99);
    const auto count = static_cast<std::int64_t>(heads.size());
    WritePromptCall call;
    call.k = {k.data(), DType::kF32, 0, count * dim_k, dim_k};
    call.v = {v.data(), DType::kF32, 0, count * dim_v, dim_v};
    call.tokens = tokens_;
    call.kv_heads = static_cast<std::uint32_t>(heads.size());
    call.views = views.data();
    call.tiers = tiers.data();
    call.scores = with_scores ? scores.data() : nullptr;
    std::fill(saturated.begin(), saturated.end(), 0);
    call.saturated = saturated.data();
    call.parallel = parallel;
    backend.write_prompt(call);
    total_saturated = 0;
    for (const std::uint64_t n : saturated) total_saturated += n;
  }

  // What head `h` must hold.
  test::Snapshot expected(std::uint32_t h, bool with_scores) const {
    const HeadView view = heads[h]->view();
    test::Snapshot all;
    for (std::uint32_t t = 0; t < tokens_; ++t) {
      const std::size_t at = std::size_t{h} * tokens_ + t;
      if (tiers[at] == Tier::kDropped) continue;
      test::StoredToken token;
      token.tier = tiers[at] == Tier::kKeep ? kRingTier : static_cast<std::uint32_t>(tiers[at]);
      const Format& format =
          token.tier == kRingTier ? view.ring->tokens.format : view.tiers[token.tier].format;
      const std::size_t row = std::size_t{t} * heads.size() + h;
      token.k = test::encoded(format.k, view.k, dim_k, k.data() + row * dim_k);
      token.v = test::encoded(format.v, view.v, dim_v, v.data() + row * dim_v);
      token.score = with_scores ? scores[at] : 0.0f;
      all[static_cast<std::int32_t>(t)] = token;
    }
    return all;
  }

  std::vector<std::unique_ptr<test::TestHead>> heads;
  std::vector<Tier> tiers;    // [heads, tokens]
  std::vector<float> scores;  // [heads, tokens]
  std::vector<float> k;       // [tokens, heads, dim_k]
  std::vector<float> v;
  std::uint32_t dim_k = 0;
  std::uint32_t dim_v = 0;
  std::uint64_t total_saturated = 0;

 private:
  template <class RowsT>
  std::vector<float> interleave(std::uint32_t dim, RowsT&& rows) const {
    std::vector<float> all(std::size_t{tokens_} * heads.size() * dim);
    for (std::size_t h = 0; h < heads.size(); ++h) {
      const std::vector<float> own = rows(*heads[h]);
      for (std::size_t t = 0; t < tokens_; ++t)
        std::copy_n(own.data() + t * dim, dim, all.data() + (t * heads.size() + h) * dim);
    }
    return all;
  }

  std::uint32_t tokens_;
};

inline void write_prompt_equals_definition(const Backend& backend) {
  test::Rng rng(21);
  INFO(rng.describe());
  for (std::uint32_t index = 0; index < 38; ++index) {
    const bool with_scores = index % 3 != 1;
    Prompt prompt(index, 1 + 23 * index % 300, 1 + index % 4, rng);
    test::Workers workers(1 + index % 3, test::Order::kThreads);
    prompt.run(backend, with_scores, index % 2 == 0 ? Parallel{} : workers.parallel());
    for (std::uint32_t h = 0; h < prompt.heads.size(); ++h) {
      INFO("prompt " << index << " head " << h);
      const bool equal = test::snapshot(prompt.heads[h]->view()) == prompt.expected(h, with_scores);
      REQUIRE(equal);
    }
    REQUIRE(prompt.total_saturated == 0);
  }
}

inline void write_prompt_counts_saturation(const Backend& backend) {
  test::Rng rng(22);
  INFO(rng.describe());
  Prompt prompt(16, 90, 3, rng);  // an affine high tier without transforms
  REQUIRE(prompt.heads[0]->spec.tier[0].k.grid == Grid::kAffine);
  REQUIRE(prompt.heads[0]->spec.tier[0].k.transform == kTransformNone);
  for (std::size_t h = 0; h < 3; ++h) {
    std::size_t t = 0;
    while (prompt.tiers[h * 90 + t] != Tier::kHigh) ++t;
    float* k = prompt.k.data() + (t * 3 + h) * prompt.dim_k;
    k[3] = 7.0e4f;
    k[5] = -1.0e6f;
  }
  test::Workers workers(2, test::Order::kThreads);
  prompt.run(backend, true, workers.parallel());
  REQUIRE(prompt.total_saturated == 6);
  for (std::uint32_t h = 0; h < 3; ++h) {
    const bool equal = test::snapshot(prompt.heads[h]->view()) == prompt.expected(h, true);
    REQUIRE(equal);
  }
}

}  // namespace quire::contract
