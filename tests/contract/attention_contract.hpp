// Contract of Backend::attention and attention_workspace. Oracle: softmax attention in double over
// the vectors as the scalar definition decodes them. The workspace has exactly the size that the
// closed form asks for, with guard bytes behind it.
#pragma once

#include <memory>
#include <vector>

#include "quire/policy/tiers.hpp"
#include "support/attention_call.hpp"
#include "support/attention_formats.hpp"
#include "support/attention_threads.hpp"
#include "support/catch.hpp"

namespace quire::contract {

// Heads of a ragged batch: one layout, lengths from 0 up.
class Batch {
 public:
  Batch(std::uint32_t index, std::uint32_t kv_heads, std::uint32_t group, test::Rng& rng) {
    constexpr std::uint32_t kDims[] = {64, 16, 128, 80, 256, 96, 192, 112};
    const std::uint32_t dim_k = kDims[index % 8];
    const std::uint32_t dim_v = kDims[index / 3 % 8];
    const std::int32_t lengths[] = {static_cast<std::int32_t>(100 + 37 * index), 0, 1, 65};
    const std::uint32_t sequences = 1 + index % 4;
    for (std::uint32_t u = 0; u < sequences * kv_heads; ++u) {
      test::HeadSpec spec = test::walk_spec(index, dim_k, dim_v, lengths[u / kv_heads]);
      heads_.push_back(std::make_unique<test::TestHead>(spec, rng));
      call.heads.push_back(heads_.back().get());
    }
    call.kv_heads = kv_heads;
    call.group = group;
  }

  test::HeadCall call;

 private:
  std::vector<std::unique_ptr<test::TestHead>> heads_;
};

inline Statistic statistic_of(std::uint32_t index) { return static_cast<Statistic>(1 + index % 4); }

inline void attention_equals_oracle(const Backend& backend) {
  test::Rng rng(11);
  INFO(rng.describe());
  for (std::uint32_t index = 0; index < 40; ++index) {
    Batch batch(index, 1 + index % 2, 1 + index % 5, rng);
    test::HeadCall& call = batch.call;
    call.rows = index % 3 == 0 ? 1 : 1 + 5 * index % 16;
    call.score_rows = index % 4 == 3 ? call.rows : 1;
    call.statistic = statistic_of(index / 2);
    call.splits = index % 3 == 2 ? 0 : 1 + index % 5;
    call.lse_base_2 = index % 2 == 1;
    call.random_queries(rng, 1.5f);
    const test::Deviation worst = test::deviation(backend, call);
    INFO("batch " << index << ": out " << worst.out << " lse " << worst.lse << " score "
                  << worst.score);
    REQUIRE(worst.worst() < 1.0);
  }
}

inline void attention_obeys_rules(const Backend& backend) {
  test::Rng rng(12);
  INFO(rng.describe());
  for (std::uint32_t index = 0; index < 32; ++index) {
    Batch batch(index, 1 + index % 2, 1 + index % 4, rng);
    test::HeadCall& call = batch.call;
    const std::vector<float> slopes = rng.normals(call.q_heads(), 0.02f, 0.05f);
    const std::vector<float> sinks = rng.normals(call.q_heads(), 3.0f);
    const std::uint32_t which = index % 16;
    if ((which & 1) != 0) call.rule.sliding_window = static_cast<std::int32_t>(1 + 7 * index % 90);
    if ((which & 2) != 0) call.rule.soft_cap = 5.0f;
    if ((which & 4) != 0) call.rule.alibi_slopes = slopes.data();
    if ((which & 8) != 0) call.rule.sink_logits = sinks.data();
    if (index % 3 == 0) call.rule.scale = 0.2f;
    call.rows = 1 + index % 6;
    call.score_rows = call.rows;
    call.statistic = statistic_of(index);
    call.splits = index % 4;
    for (std::uint32_t s = 0; s < call.sequences(); ++s)  // some rows lie before the last tokens
      call.first.push_back(call.heads[s * call.kv_heads]->spec.length -
                           static_cast<std::int32_t>(20 * (index % 3)));
    call.random_queries(rng, 2.0f);
    const test::Deviation worst = test::deviation(backend, call);
    INFO("rules " << which << " of batch " << index << ": out " << worst.out << " lse " << worst.lse
                  << " score " << worst.score);
    REQUIRE(worst.worst() < 1.0);
  }
}

// A query before every token, or a window that has left them all behind.
inline void attention_of_nothing(const Backend& backend) {
  test::Rng rng(13);
  INFO(rng.describe());
  for (const bool by_window : {false, true}) {
    Batch batch(8, 2, 3, rng);
    test::HeadCall& call = batch.call;
    const std::vector<float> sinks = rng.normals(call.q_heads(), 3.0f);
    call.rule.sink_logits = sinks.data();
    call.rows = 2;
    call.score_rows = 2;
    call.statistic = Statistic::kMeanSum;
    call.first.assign(call.sequences(), by_window ? 100000 : -2);
    if (by_window) call.rule.sliding_window = 7;
    call.random_queries(rng, 1.0f);
    std::vector<std::vector<std::uint8_t>> before;
    for (const test::TestHead* head : call.heads) {
      head->set_scores(0.1f);
      before.push_back(head->bytes());
    }
    const test::HeadResult result = test::attend(backend, call);
    for (const float x : result.out) REQUIRE(x == 0.0f);
    for (const float x : result.lse) REQUIRE(x == -__builtin_inff());
    for (std::size_t u = 0; u < call.heads.size(); ++u)
      REQUIRE(call.heads[u]->bytes() == before[u]);
  }
}

// Scores add to what is there, only where asked, and nothing but scores changes in pages and rings.
inline void attention_adds_to_scores(const Backend& backend) {
  test::Rng rng(14);
  INFO(rng.describe());
  Batch batch(2, 2, 3, rng);
  test::HeadCall& call = batch.call;
  call.rows = 3;
  call.statistic = Statistic::kMaxSum;
  call.random_queries(rng, 1.0f);
  std::vector<std::vector<std::uint8_t>> before;
  for (const test::TestHead* head : call.heads) {
    head->set_scores(0.0f);
    before.push_back(head->bytes());
  }
  test::attend(backend, call);  // score_rows 0
  for (std::size_t u = 0; u < call.heads.size(); ++u) REQUIRE(call.heads[u]->bytes() == before[u]);
  call.score_rows = 1;
  test::attend(backend, call);
  std::vector<std::vector<float>> once;
  for (const test::TestHead* head : call.heads) once.push_back(head->scores());
  test::attend(backend, call);
  for (std::size_t u = 0; u < call.heads.size(); ++u) {
    const std::vector<float> twice = call.heads[u]->scores();
    for (std::size_t t = 0; t < twice.size(); ++t) REQUIRE(twice[t] == once[u][t] + once[u][t]);
    call.heads[u]->set_scores(0.0f);
    REQUIRE(call.heads[u]->bytes() == before[u]);
  }
}

// The least significant token of a tier, by a scan over what is stored.
inline Lowest scan_lowest(const test::TestHead& head, const TierRule& rule, std::uint32_t tier) {
  Lowest lowest;
  head.each_token([&](const Segment& s, std::uint32_t t) {
    if (s.tier != tier) return;
    const float score = score_array(*s.layout, s.base)[s.first + t];
    const std::int32_t position = s.position(t);
    lowest.consider(rule.significance_at(score, position),
                    position,
                    static_cast<std::int32_t>(s.first_index + t));
  });
  return lowest;
}

inline void attention_tracks_lowest(const Backend& backend) {
  test::Rng rng(15);
  INFO(rng.describe());
  for (const std::uint32_t index : {2u, 4u, 5u, 9u, 10u, 16u}) {
    Batch batch(index, 2, 2, rng);
    test::HeadCall& call = batch.call;
    call.score_rows = 1;
    call.statistic = statistic_of(index);
    call.splits = index % 4;
    call.random_queries(rng, 1.0f);
    TierRule rule;
    rule.significance = index % 2 == 0 ? Significance::kMean : Significance::kRootMean;
    rule.tail_queries = 20;
    rule.ends.add(50);
    rule.length = 5000;
    for (const test::TestHead* head : call.heads) head->set_scores(0.25f);
    const test::HeadResult result = test::attend(backend, call, [&](AttentionCall& work) {
      for (std::uint32_t u = 0; u < work.unit_count; ++u) {
        work.units[u].track_lowest = true;
        work.units[u].rule = rule;
      }
    });
    for (std::size_t u = 0; u < call.heads.size(); ++u) {
      for (std::uint32_t tier = 0; tier < 2; ++tier) {
        const Lowest want = scan_lowest(*call.heads[u], rule, tier);
        INFO("batch " << index << " unit " << u << " tier " << tier);
        REQUIRE(result.states[u].lowest_index[tier] == want.index);
        if (!want.exists()) continue;
        REQUIRE(result.states[u].lowest_position[tier] == want.position);
        REQUIRE(result.states[u].lowest_significance[tier] == want.significance);
      }
      REQUIRE(result.states[u].lowest_length == rule.length);
    }
  }
}

inline std::vector<std::vector<float>> all_scores(const test::HeadCall& call) {
  std::vector<std::vector<float>> scores;
  for (const test::TestHead* head : call.heads) scores.push_back(head->scores());
  return scores;
}

// Fixed splits: bits do not depend on how many workers there are and in which order they run.
inline void fixed_splits_are_reproducible(const Backend& backend) {
  test::Rng rng(16);
  INFO(rng.describe());
  for (const std::uint32_t splits : {1u, 2u, 5u, 13u}) {
    Batch batch(10 + splits, 2, 3, rng);
    test::HeadCall& call = batch.call;
    call.splits = splits;
    call.score_rows = 1;
    call.statistic = Statistic::kMeanSquare;
    call.random_queries(rng, 1.0f);
    for (const test::TestHead* head : call.heads) head->set_scores(0.0f);
    const test::HeadResult alone = test::attend(backend, call);
    const std::vector<std::vector<float>> scores = all_scores(call);
    for (const std::uint32_t width : {1u, 2u, 3u, 8u}) {
      for (const test::Order order : {test::Order::kForward,
                                      test::Order::kBackward,
                                      test::Order::kOddFirst,
                                      test::Order::kThreads}) {
        test::Workers workers(width, order);
        call.parallel = workers.parallel();
        for (const test::TestHead* head : call.heads) head->set_scores(0.0f);
        const test::HeadResult again = test::attend(backend, call);
        INFO("splits " << splits << " width " << width << " order " << static_cast<int>(order));
        REQUIRE(again.out == alone.out);
        REQUIRE(again.lse == alone.lse);
        REQUIRE(all_scores(call) == scores);
        REQUIRE(workers.most_tasks() <= width);
      }
    }
  }
}

// Automatic splits on any number of workers: right, with scores.
inline void automatic_splits_are_right(const Backend& backend) {
  test::Rng rng(17);
  INFO(rng.describe());
  for (const std::uint32_t width : {2u, 3u, 5u, 8u, 16u}) {
    for (const std::uint32_t index : {3u, 4u, 5u, 17u}) {
      Batch batch(index, 1 + index % 3, 2, rng);
      test::HeadCall& call = batch.call;
      test::Workers workers(width, test::Order::kThreads);
      call.parallel = workers.parallel();
      call.score_rows = 1;
      call.statistic = statistic_of(width);
      call.random_queries(rng, 1.0f);
      const test::Deviation worst = test::deviation(backend, call);
      INFO("width " << width << " batch " << index);
      REQUIRE(worst.worst() < 1.0);
    }
  }
}

// The largest call: 16 rows of 64 query heads at head dim 256; and one without any token.
inline void attention_at_its_limits(const Backend& backend) {
  test::Rng rng(18);
  INFO(rng.describe());
  for (const std::int32_t length : {140, 0}) {
    test::HeadSpec spec = test::walk_spec(2, 256, 256, length);
    test::TestHead head(spec, rng);
    test::HeadCall call;
    call.heads = {&head};
    call.group = kMaxQueryGroup;
    call.rows = kMaxDecodeRows;
    call.score_rows = kMaxDecodeRows;
    call.statistic = Statistic::kMaxSum;
    call.random_queries(rng, 1.0f);
    for (const std::uint32_t splits : {0u, 3u}) {
      test::Workers workers(2, test::Order::kOddFirst);
      call.parallel = workers.parallel();
      call.splits = splits;
      INFO("length " << length << " splits " << splits);
      REQUIRE(test::deviation(backend, call).worst() < 1.0);
    }
  }
}

}  // namespace quire::contract
