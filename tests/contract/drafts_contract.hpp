// Contract of Backend::attention and append for the rows of a step with drafts. Oracle: attention
// in double over the tokens that a row may see, with true positions; records by the scalar
// definition.
#pragma once

#include <cmath>
#include <vector>

#include "contract/append_contract.hpp"
#include "support/attention_call.hpp"

namespace quire::contract {

// The last three tokens of the ring are drafts behind row 0: 0 - 1 - 3 and 0 - 2.
class DraftCase {
 public:
  DraftCase(std::uint32_t index, test::Rng& rng) : head_(spec_of(index), rng) {
    call.heads = {&head_};
    call.group = 1 + index % 3;
    call.rows = 4;
    call.splits = 1 + index % 3;
    call.first = {length() - 1};
    call.random_queries(rng, 1.5f);
    tree.sees[0] = 1;
    tree.sees[1] = 3;
    tree.sees[2] = 5;
    tree.sees[3] = 11;
  }

  std::int32_t length() const { return head_.spec.length - 3; }  // with row 0

  void run(const Backend& backend, bool branches, std::uint32_t rows) {
    const test::HeadResult got = test::attend(backend, call, [&](AttentionCall& work) {
      HeadView& view = work.units[0].view;
      view.shape.from = view.shape.window_begin(head_.spec.length);
      view.length = length();
      view.drafts = 3;
      view.tree = branches ? &tree : nullptr;
      work.units[0].rows = rows;
    });
    for (std::uint32_t row = 0; row < call.rows; ++row) {
      for (std::uint32_t g = 0; g < call.group; ++g) {
        INFO("row " << row << " head " << g);
        check(got, row, g, row < rows, branches);
      }
    }
  }

  test::HeadCall call;
  DraftTree tree;

 private:
  static test::HeadSpec spec_of(std::uint32_t index) {
    test::HeadSpec spec = test::walk_spec(index, 64, 48, 160);
    spec.has_ring = true;
    spec.sinks = index % 3;
    spec.window = 20;
    spec.draft = 3;
    const std::uint32_t outside = 160 - spec.sinks - spec.window;
    spec.tokens[0] = outside / 2;
    spec.tokens[1] = outside / 4;
    return spec;
  }

  void check(const test::HeadResult& got,
             std::uint32_t row,
             std::uint32_t g,
             bool counts,
             bool branches) const {
    const std::uint32_t dim = head_.spec.dim_v;
    const std::size_t lane = call.lane(0, row, g);
    const float* out = got.out.data() + lane * dim;
    if (!counts) {
      for (std::uint32_t d = 0; d < dim; ++d) REQUIRE(out[d] == 0.0f);
      REQUIRE((std::isinf(got.lse[lane]) && got.lse[lane] < 0.0f));
      return;
    }
    const test::OracleResult want = oracle(row, g, branches);
    const test::AttentionScale scale = test::scale_of(call, 0);
    for (std::uint32_t d = 0; d < dim; ++d)
      REQUIRE(std::fabs(static_cast<double>(out[d]) - want.out[d]) <= output_tolerance(scale));
    REQUIRE(std::fabs(static_cast<double>(got.lse[lane]) - want.lse) <= lse_tolerance(scale));
  }

  test::OracleResult oracle(std::uint32_t row, std::uint32_t g, bool branches) const {
    const DraftTree sees = branches ? tree : linear_drafts();
    std::vector<float> keys, values;
    std::vector<std::int32_t> positions;
    for (std::size_t i = 0; i < head_.positions.size(); ++i) {
      const std::int32_t stored = head_.positions[i];
      const std::int32_t behind = stored - (length() - 1);  // row, where it is one
      if (behind > 0 && !sees.visible(row, static_cast<std::uint32_t>(behind))) continue;
      const auto* k = head_.keys.data() + i * head_.spec.dim_k;
      const auto* v = head_.values.data() + i * head_.spec.dim_v;
      keys.insert(keys.end(), k, k + head_.spec.dim_k);
      values.insert(values.end(), v, v + head_.spec.dim_v);
      positions.push_back(behind > 0 ? length() - 1 + sees.depth(static_cast<std::uint32_t>(behind))
                                     : stored);
    }
    test::OracleProblem problem;
    problem.q = call.q.data() + call.lane(0, row, g) * head_.spec.dim_k;
    problem.k = keys.data();
    problem.v = values.data();
    problem.n = static_cast<std::int64_t>(positions.size());
    problem.dim_k = problem.k_stride = head_.spec.dim_k;
    problem.dim_v = problem.v_stride = head_.spec.dim_v;
    problem.positions = positions.data();
    problem.query_position = length() - 1 + sees.depth(row);
    problem.scale = static_cast<double>(call.scale());
    problem.sliding_window = call.rule.sliding_window;
    if (call.rule.alibi_slopes != nullptr)
      problem.alibi_slope = static_cast<double>(call.rule.alibi_slopes[g]);
    return test::oracle_attention(problem);
  }

  test::TestHead head_;
};

inline void attention_sees_drafts(const Backend& backend) {
  test::Rng rng(31);
  INFO(rng.describe());
  const float slopes[] = {0.05f, 0.01f, 0.02f};
  for (std::uint32_t index = 0; index < 36; ++index) {
    INFO("case " << index);
    DraftCase one(index, rng);
    if (index % 4 == 1) one.call.rule.alibi_slopes = slopes;
    if (index % 4 == 2) one.call.rule.sliding_window = 3;
    one.run(backend, index % 2 == 0, 4);
    one.run(backend, true, 2);
  }
}

// An accepted draft lies in the ring already: append carries out its plan and writes no new record.
inline void append_of_what_is_stored(const Backend& backend) {
  test::Rng rng(32);
  INFO(rng.describe());
  for (std::uint32_t index = 0; index < 12; ++index) {
    test::HeadSpec spec = test::walk_spec(index, 64, 64, 120);
    spec.has_ring = true;
    spec.sinks = 1;
    spec.window = 16;
    spec.draft = 2;
    spec.tokens[0] = 40;
    spec.tokens[1] = 20;
    spec.room[0] = spec.room[1] = 1;
    AppendCase one(spec, rng);
    const RingShape shape = test::ring_shape(spec);
    const HeadView view = one.head.view();
    CodecEvents events;
    float k[kMaxHeadDim], v[kMaxHeadDim];
    std::copy(one.k.begin(), one.k.end(), k);
    std::copy(one.v.begin(), one.v.end(), v);
    transform_stored(view.k, spec.dim_k, k);
    transform_stored(view.v, spec.dim_v, v);
    const TokenPlace place = {&view.ring->tokens, view.ring_block, shape.slot(spec.length)};
    write_record(place, k, v, 0.0f, spec.length, events);
    one.unit.plan.leaving_to =
        index % 3 == 0 ? Tier::kDropped : (index % 3 == 1 ? Tier::kLow : Tier::kHigh);
    one.unit.stored = true;
    one.expect_plan();
    std::fill(one.k.begin(), one.k.end(), std::nanf(""));  // never read
    one.run(backend);
    one.check();
  }
}

}  // namespace quire::contract
