// Attention over the grid of head dims, query heads per KV head, lengths and splits, while formats,
// rings, transforms and mixtures of tiers rotate. Oracle: softmax attention in double over the
// vectors as the scalar definition decodes them, so that only fp32 rounding is left.
#include <map>
#include <set>
#include <string>

#include "quire/attention/reference.hpp"
#include "support/attention_call.hpp"
#include "support/attention_formats.hpp"
#include "support/catch.hpp"

namespace quire {
namespace {

constexpr std::uint32_t kDims[] = {16, 64, 80, 96, 128, 192, 256};
constexpr std::uint32_t kGroups[] = {1, 2, 3, 4, 5, 7, 8, 16};
constexpr std::int32_t kLengths[] = {0, 1, 15, 16, 17, 63, 64, 65, 255, 1000, 4097};
constexpr std::uint32_t kSplits[] = {1, 2, 7};
constexpr Statistic kStatistics[] = {
    Statistic::kMaxSum, Statistic::kMeanSquare, Statistic::kMeanSum, Statistic::kMaxFirst};

constexpr std::uint32_t kTurns = 2;  // walks over the grid, with other formats in each cell

// Sanitizers take ten times as long; they get every other cell.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint32_t kEvery = 2;
#else
constexpr std::uint32_t kEvery = 1;
#endif

struct Cell {
  std::uint32_t index = 0;  // within the whole grid
  std::uint32_t group = 1;
  test::HeadSpec spec;
};

std::vector<Cell> cells_of(std::uint32_t dim_index) {
  std::vector<Cell> cells;
  std::uint32_t index = dim_index * 977;
  const std::uint32_t dim = kDims[dim_index];
  for (std::uint32_t turn = 0; turn < kTurns; ++turn) {
    for (const std::uint32_t group : kGroups) {
      for (const std::int32_t length : kLengths) {
        Cell cell;
        cell.index = index++;
        cell.group = group;
        const std::uint32_t other = kDims[(dim_index + cell.index) % 7];
        const bool differ = cell.index % 4 == 1;
        cell.spec = test::walk_spec(cell.index, dim, differ ? other : dim, length);
        cells.push_back(cell);
      }
    }
  }
  return cells;
}

test::HeadCall call_of(const Cell& cell, test::TestHead& head, test::Rng& rng) {
  test::HeadCall call;
  call.heads = {&head};
  call.group = cell.group;
  call.rows = cell.index % 5 == 2 ? 2 : 1;
  call.score_rows = cell.index % 13 == 4 ? 0 : 1;
  call.statistic = call.score_rows == 0 ? Statistic::kNone : kStatistics[cell.index % 4];
  call.lse_base_2 = cell.index % 3 == 1;
  call.random_queries(rng, 0.5f + 2.0f * static_cast<float>(rng.uniform()));
  return call;
}

void compare_reference(const test::HeadCall& call,
                       const std::vector<test::OracleResult>& oracle,
                       test::Deviation& worst) {
  test::HeadResult result;
  AttentionRule rule = call.rule;
  rule.scale = call.scale();
  const test::HeadSpec& spec = call.spec();
  for (std::uint32_t c = 0; c < call.rows * call.group; ++c) {
    Query query;
    query.q = call.q.data() + std::size_t{c} * spec.dim_k;
    query.q_head = c % call.group;
    query.position = spec.length - 1 + static_cast<std::int32_t>(c / call.group);
    std::vector<float> out(spec.dim_v);
    const float lse = attend_reference(call.heads[0]->view(), rule, query, out.data());
    result.out.insert(result.out.end(), out.begin(), out.end());
    result.lse.push_back(lse * (call.lse_base_2 ? 1.44269504f : 1.0f));
  }
  test::compare_outputs(call, result, 0, oracle, worst);
}

void run_cell(const Cell& cell, test::Rng& rng) {
  test::TestHead head(cell.spec, rng);
  test::HeadCall call = call_of(cell, head, rng);
  const std::vector<test::OracleResult> oracle = test::oracles_of(call, 0);
  for (const std::uint32_t splits : kSplits) {
    call.splits = splits;
    head.set_scores(0.0f);
    test::Deviation worst;
    test::compare_outputs(call, test::attend(cpu_backend(), call), 0, oracle, worst);
    if (call.score_rows > 0) test::compare_scores(call, 0, oracle, worst);
    INFO("cell " << cell.index << " G " << cell.group << " Dk " << cell.spec.dim_k << " Dv "
                 << cell.spec.dim_v << " length " << cell.spec.length << " splits " << splits);
    INFO("share of tolerance: out " << worst.out << " lse " << worst.lse << " score "
                                    << worst.score);
    REQUIRE(worst.worst() < 1.0);
  }
  if (cell.spec.length > 255) return;
  test::Deviation worst;
  compare_reference(call, oracle, worst);
  INFO("scalar definition, cell " << cell.index);
  REQUIRE(worst.worst() < 1.0);
}

void run_dim(std::uint32_t dim_index) {
  test::Rng rng(100 + dim_index);
  INFO(rng.describe());
  for (const Cell& cell : cells_of(dim_index)) {
    if (cell.index % kEvery == 0) run_cell(cell, rng);
  }
}

TEST_CASE("attention equals the oracle over the grid at head dim 16", "[attention][grid]") {
  run_dim(0);
}
TEST_CASE("attention equals the oracle over the grid at head dim 64", "[attention][grid]") {
  run_dim(1);
}
TEST_CASE("attention equals the oracle over the grid at head dim 80", "[attention][grid]") {
  run_dim(2);
}
TEST_CASE("attention equals the oracle over the grid at head dim 96", "[attention][grid]") {
  run_dim(3);
}
TEST_CASE("attention equals the oracle over the grid at head dim 128", "[attention][grid]") {
  run_dim(4);
}
TEST_CASE("attention equals the oracle over the grid at head dim 192", "[attention][grid]") {
  run_dim(5);
}
TEST_CASE("attention equals the oracle over the grid at head dim 256", "[attention][grid]") {
  run_dim(6);
}

std::string name_of(const VectorFormat& f) {
  return std::to_string(static_cast<int>(f.grid)) + "/" + std::to_string(f.bits) + "/" +
         std::to_string(f.group);
}

// Counts what cells with at least one token of the kind contain.
struct Coverage {
  std::map<std::string, int> k;
  std::map<std::string, int> v;
  std::map<std::string, int> rings;
  std::map<std::uint32_t, int> transforms;
  int all_three = 0;
  int different_dims = 0;

  void add(const test::HeadSpec& spec) {
    for (std::uint32_t t = 0; t < 2; ++t) {
      if (spec.tokens[t] == 0) continue;
      ++k[name_of(spec.tier[t].k)];
      ++v[name_of(spec.tier[t].v)];
    }
    const bool ring = spec.has_ring && spec.length > 0;
    if (ring) ++rings[name_of(spec.ring.k) + " " + name_of(spec.ring.v)];
    ++transforms[spec.tier[0].k.transform * 4 + spec.tier[0].v.transform];
    all_three += ring && spec.tokens[0] > 0 && spec.tokens[1] > 0 ? 1 : 0;
    different_dims += spec.dim_k != spec.dim_v ? 1 : 0;
  }
};

TEST_CASE("the grid holds every format, ring, transform and mixture", "[attention][grid]") {
  Coverage seen;
  for (std::uint32_t d = 0; d < 7; ++d) {
    for (const Cell& cell : cells_of(d)) seen.add(cell.spec);
  }
  for (const VectorFormat& format : test::all_vector_formats()) {
    INFO(name_of(format));
    CHECK(seen.k[name_of(format)] >= 5);
    CHECK(seen.v[name_of(format)] >= 5);
  }
  CHECK(seen.rings["1/16/0 1/16/0"] >= 40);
  CHECK(seen.rings["2/16/0 2/16/0"] >= 40);
  CHECK(seen.rings["3/8/0 3/8/0"] >= 40);
  CHECK(seen.rings.size() >= 20);  // rings in the high tier's format
  CHECK(seen.transforms.size() == 16);
  for (const auto& pair : seen.transforms) CHECK(pair.second >= 20);
  CHECK(seen.all_three >= 100);
  CHECK(seen.different_dims >= 60);
}

}  // namespace
}  // namespace quire
