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
    write(backend,
          {views.data(), tiers.data(), with_scores ? scores.data() : nullptr, 0, tokens_, nullptr},
          parallel);
  }

  // The first `first` tokens, then the others: what leaves the ring in between goes where the plan
  // says, everything else stays.
  void run_in_two(const Backend& backend,
                  std::uint32_t first,
                  bool with_scores,
                  const Parallel& parallel) {
    first_ = first;
    const auto length = static_cast<std::int32_t>(first);
    std::vector<HeadView> before, after;
    std::vector<Tier> early;
    std::vector<float> sums;
    std::vector<std::uint32_t> stored;
    for (std::size_t h = 0; h < heads.size(); ++h) {
      after.push_back(heads[h]->view());
      HeadView view = heads[h]->view();
      view.length = length;
      view.tokens[0] = view.tokens[1] = 0;
      for (std::uint32_t t = 0; t < first; ++t) {
        const Tier last = tiers[h * tokens_ + t];
        const bool held = view.shape.holds(static_cast<std::int32_t>(t), length);
        early.push_back(held ? Tier::kKeep : last);
        sums.push_back(scores[h * tokens_ + t]);
        if (!held && last != Tier::kDropped) ++view.tokens[static_cast<std::uint32_t>(last)];
      }
      stored.insert(stored.end(), view.tokens, view.tokens + kMaxTiers);
      before.push_back(view);
    }
    write(backend,
          {before.data(), early.data(), with_scores ? sums.data() : nullptr, 0, first, nullptr},
          parallel);
    write(backend,
          {after.data(),
           tiers.data(),
           with_scores ? scores.data() : nullptr,
           first,
           tokens_ - first,
           stored.data()},
          parallel);
  }

  struct Round {
    const HeadView* views;
    const Tier* plan;
    const float* scores;
    std::uint32_t first;
    std::uint32_t tokens;
    const std::uint32_t* stored;
  };

  void write(const Backend& backend, const Round& round, const Parallel& parallel) {
    std::vector<std::uint64_t> saturated(parallel.width, 99);
    const auto count = static_cast<std::int64_t>(heads.size());
    WritePromptCall call;
    call.k = {k.data() + round.first * count * dim_k, DType::kF32, 0, count * dim_k, dim_k};
    call.v = {v.data() + round.first * count * dim_v, DType::kF32, 0, count * dim_v, dim_v};
    call.tokens = round.tokens;
    call.first = round.first;
    const auto ring = round.views[0].shape.window_begin(static_cast<std::int32_t>(round.first));
    call.leaving = std::min(static_cast<std::uint32_t>(ring), round.first);
    call.stored = round.stored;
    call.kv_heads = static_cast<std::uint32_t>(heads.size());
    call.views = round.views;
    call.tiers = round.plan;
    call.scores = round.scores;
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
      const bool moved =
          token.tier != kRingTier &&
          view.shape.holds(static_cast<std::int32_t>(t), static_cast<std::int32_t>(first_));
      if (moved) {
        const Format& from = view.ring->tokens.format;
        token.k = test::demoted(
            from.k, format.k, dim_k, test::encoded(from.k, view.k, dim_k, k.data() + row * dim_k));
        token.v = test::demoted(
            from.v, format.v, dim_v, test::encoded(from.v, view.v, dim_v, v.data() + row * dim_v));
      }
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
  std::uint32_t first_ = 0;  // tokens of the first of two rounds
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

inline void write_prompt_in_two_rounds(const Backend& backend) {
  test::Rng rng(23);
  INFO(rng.describe());
  for (std::uint32_t index = 0; index < 38; ++index) {
    const bool with_scores = index % 3 != 1;
    const std::uint32_t tokens = 2 + 31 * index % 300;
    Prompt prompt(index, tokens, 1 + index % 4, rng);
    test::Workers workers(1 + index % 3, test::Order::kThreads);
    const std::uint32_t first = 1 + rng.below(tokens - 1);
    prompt.run_in_two(
        backend, first, with_scores, index % 2 == 0 ? Parallel{} : workers.parallel());
    for (std::uint32_t h = 0; h < prompt.heads.size(); ++h) {
      INFO("prompt " << index << " head " << h << " tokens " << first << " of " << tokens);
      const bool equal = test::snapshot(prompt.heads[h]->view()) == prompt.expected(h, with_scores);
      REQUIRE(equal);
    }
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
