// Drafts: rows that attention sees and nothing else. Oracles: a twin that never drafted, or took
// the accepted tokens step by step; attention in double over what the rows may see.
#include "support/drafts.hpp"
#include "support/attention_snapshot.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kPrompt = 150;
constexpr std::uint32_t kTokens = 400;

const std::uint32_t kRecipes[] = {QUIRE_RECIPE_KEEP_ALL,
                                  QUIRE_RECIPE_DIFFKV_PAPER,
                                  QUIRE_RECIPE_DIFFKV_UPSTREAM,
                                  QUIRE_RECIPE_STREAMING_LLM,
                                  QUIRE_RECIPE_H2O,
                                  QUIRE_RECIPE_SNAPKV,
                                  QUIRE_RECIPE_QUIRE_UNIFORM,
                                  QUIRE_RECIPE_QUIRE_BUDGET};

RigSpec draft_spec(std::uint32_t recipe) {
  RigSpec spec = fork_spec(recipe, 2);
  spec.group.max_draft = 7;
  return spec;
}

struct Run {
  Run(std::uint32_t recipe, std::uint64_t seed, std::uint32_t window = 16)
      : rng(seed), stream(fork_shape(kTokens), rng), rig(with_window(recipe, window)) {
    slot = rig.open();
    rig.prompt(slot, stream, kPrompt);
  }

  static RigSpec with_window(std::uint32_t recipe, std::uint32_t window) {
    RigSpec spec = draft_spec(recipe);
    spec.set_ring(1, window);
    return spec;
  }

  void require_sound() const {
    REQUIRE(check_pool(rig.state()) == "");
    REQUIRE(check_dense(rig.state()) == "");
  }

  Rng rng;
  Stream stream;
  Rig rig;
  std::int32_t slot = -1;
};

// The step of a twin without drafts. A byte controller runs in time for all rows of a step, so that
// its twin has as many, with other guesses.
std::vector<float> twin_step(Run& twin, std::uint32_t t, std::uint32_t rows) {
  if (twin.rig.spec.policy.byte_target <= 0.0) return twin.rig.step(twin.slot, twin.stream, t);
  DraftRows d = chain(t, rows);
  for (std::uint32_t r = 1; r < rows; ++r) d.tokens[r] = r;
  const std::vector<float> all = step_drafts(twin.rig, twin.slot, twin.stream, d);
  REQUIRE(twin.rig.cache.accept(twin.slot, 0).ok());
  const std::size_t width = std::size_t{twin.stream.q_heads()} * twin.stream.shape.dim;
  std::vector<float> out;
  for (std::size_t layer = 0; layer < 2; ++layer) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(layer * rows * width);
    out.insert(out.end(), first, first + static_cast<std::ptrdiff_t>(width));
  }
  return out;
}

TEST_CASE("drafts that are not accepted leave no trace", "[lifecycle][drafts]") {
  for (const std::uint32_t recipe : kRecipes) {
    for (const std::uint32_t window : {16u, 0u}) {
      INFO("recipe " << recipe << " window " << window);
      Run run(recipe, 9601, window);
      Run twin(recipe, 9601, window);
      for (std::uint32_t t = kPrompt; t < kPrompt + 50; ++t) {
        const std::uint32_t rows = 2 + t % 7;
        DraftRows d = chain(t, rows);
        for (std::uint32_t r = 1; r < rows; ++r) d.tokens[r] = 300 + (t + r) % 90;  // bad guesses
        const std::vector<float> out = step_drafts(run.rig, run.slot, run.stream, d);
        const std::vector<float> want = twin_step(twin, t, rows);
        const std::size_t width = want.size() / 2;
        for (std::size_t i = 0; i < want.size(); ++i)
          REQUIRE(out[i / width * width * rows + i % width] == want[i]);
        REQUIRE((run.rig.records(run.slot) == twin.rig.records(twin.slot)));
        REQUIRE(run.rig.cache.accept(run.slot, 0).ok());
        run.require_sound();
        REQUIRE((run.rig.records(run.slot) == twin.rig.records(twin.slot)));
        REQUIRE((exported(run.rig, run.slot) == exported(twin.rig, twin.slot)));
      }
    }
  }
}

// Without scores a token's way does not depend on who looked at it.
TEST_CASE("accepted drafts are the tokens that steps would have stored", "[lifecycle][drafts]") {
  for (const std::uint32_t recipe :
       {QUIRE_RECIPE_KEEP_ALL, QUIRE_RECIPE_QUIRE_UNIFORM, QUIRE_RECIPE_STREAMING_LLM}) {
    INFO("recipe " << recipe);
    Run run(recipe, 9602);
    Run twin(recipe, 9602);
    std::uint32_t t = kPrompt;
    for (std::uint32_t round = 0; round < 40; ++round) {
      const std::uint32_t rows = 1 + round % 8;
      const std::uint32_t accepted = rows == 1 ? 0 : round % rows;
      step_drafts(run.rig, run.slot, run.stream, chain(t, rows));
      if (rows > 1) {
        REQUIRE(run.rig.cache.info(run.slot).state == QUIRE_SEQ_DRAFT);
        REQUIRE(run.rig.cache.accept(run.slot, accepted).ok());
      }
      REQUIRE(run.rig.cache.info(run.slot).state == QUIRE_SEQ_OPEN);
      for (std::uint32_t i = 0; i <= accepted; ++i) twin.rig.step(twin.slot, twin.stream, t++);
      REQUIRE(run.rig.cache.info(run.slot).tokens == t);
      for (std::uint32_t h = 0; h < 4; ++h) {
        const Snapshot mine = snapshot(run.rig.view(run.slot, h / 2, h % 2));
        const Snapshot theirs = snapshot(twin.rig.view(twin.slot, h / 2, h % 2));
        REQUIRE((mine == theirs));
      }
      run.require_sound();
      REQUIRE(run.rig.state().credit == 0);
    }
  }
}

TEST_CASE("a path through a tree is the chain of its rows", "[lifecycle][drafts]") {
  for (const std::uint32_t recipe : kRecipes) {
    INFO("recipe " << recipe);
    Run run(recipe, 9603);
    Run twin(recipe, 9603);
    std::uint32_t t = kPrompt;
    for (std::uint32_t round = 0; round < 15; ++round) {
      //        0 - 1 - 3 - 6
      //         \- 2 - 4
      //             \- 5 - 7
      const DraftRows d = tree(t, {0, 0, 1, 2, 2, 3, 5});
      const std::vector<std::uint32_t> paths[] = {{}, {2}, {1, 3, 6}, {2, 5, 7}, {2, 4}};
      const std::vector<std::uint32_t>& path = paths[round % 5];
      step_drafts(run.rig, run.slot, run.stream, d);
      DraftRows line = chain(t, 1);
      for (const std::uint32_t row : path) line.tokens.push_back(d.tokens[row]);
      while (line.tokens.size() < d.tokens.size()) line.tokens.push_back(399);  // bad guesses
      step_drafts(twin.rig, twin.slot, twin.stream, line);
      REQUIRE(accept_rows(run.rig, run.slot, path).ok());
      REQUIRE(twin.rig.cache.accept(twin.slot, static_cast<std::uint32_t>(path.size())).ok());
      REQUIRE((run.rig.records(run.slot) == twin.rig.records(twin.slot)));
      REQUIRE((exported(run.rig, run.slot) == exported(twin.rig, twin.slot)));
      run.require_sound();
      t += 8;  // tokens of the stream; the sequence has fewer
    }
  }
}

// What row r may see of a head: tokens up to row 0, and rows on its way from row 0.
struct RowOracle {
  const Stream& stream;
  const DraftRows& rows;
  DecodedHead head;  // after the step: row 0 is in it
  std::int32_t length;

  bool visible(std::uint32_t r, std::uint32_t key_row) const {
    return rows.sees.empty() ? key_row <= r : ((rows.sees[r] >> key_row) & 1u) != 0;
  }
  std::int32_t depth(std::uint32_t r) const {
    std::int32_t count = -1;
    for (std::uint32_t j = 0; j <= r; ++j) count += visible(r, j) ? 1 : 0;
    return count;
  }

  std::vector<double> attend(std::uint32_t layer,
                             std::uint32_t r,
                             std::uint32_t h,
                             const quire_rule& rule) const {
    const std::uint32_t dim = stream.shape.dim;
    const std::uint32_t kv = h / stream.shape.group;
    std::vector<float> keys = head.keys;
    std::vector<float> values = head.values;
    std::vector<std::int32_t> positions = head.positions;
    for (std::uint32_t j = 1; j <= r; ++j) {
      if (!visible(r, j)) continue;
      for (std::uint32_t d = 0; d < dim; ++d) {  // the ring holds fp16
        keys.push_back(half_to_float(float_to_half(stream.k(layer, rows.tokens[j])[kv * dim + d])));
        values.push_back(
            half_to_float(float_to_half(stream.v(layer, rows.tokens[j])[kv * dim + d])));
      }
      positions.push_back(length - 1 + depth(j));
    }
    const float* q = stream.q(layer, rows.tokens[r]) + h * dim;
    const std::int32_t mine = length - 1 + depth(r);
    std::vector<double> logits(positions.size());
    double sum = 0.0;
    std::vector<double> out(dim, 0.0);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      if (rule.sliding_window > 0 && mine - positions[i] >= rule.sliding_window) continue;
      double dot = 0.0;
      for (std::uint32_t d = 0; d < dim; ++d)
        dot += static_cast<double>(q[d]) * static_cast<double>(keys[i * dim + d]);
      dot *= stream.scale();
      if (rule.alibi_slopes != nullptr)
        dot += static_cast<double>(rule.alibi_slopes[h]) * static_cast<double>(positions[i] - mine);
      const double weight = std::exp(dot);
      sum += weight;
      for (std::uint32_t d = 0; d < dim; ++d)
        out[d] += weight * static_cast<double>(values[i * dim + d]);
    }
    for (double& x : out) x /= sum;
    return out;
  }
};

void require_rows(Run& run, const DraftRows& d, const quire_rule& rule) {
  const std::vector<float> out = step_drafts(run.rig, run.slot, run.stream, d, rule);
  const std::uint32_t dim = run.stream.shape.dim;
  const std::uint32_t heads = run.stream.q_heads();
  const std::size_t rows = d.tokens.size();
  AttentionScale scale = run.stream.attention_scale();
  scale.n = kTokens;
  scale.soft_max_logit = rule.alibi_slopes == nullptr ? 0.0 : 0.02 * kTokens;
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    for (std::uint32_t h = 0; h < heads; ++h) {
      const RowOracle oracle = {run.stream,
                                d,
                                run.rig.gather(run.slot, layer, h / run.stream.shape.group),
                                static_cast<std::int32_t>(run.rig.cache.info(run.slot).tokens)};
      for (std::uint32_t r = 0; r < rows; ++r) {
        const std::vector<double> want = oracle.attend(layer, r, h, rule);
        const float* got = out.data() + ((layer * rows + r) * heads + h) * dim;
        for (std::uint32_t i = 0; i < dim; ++i) {
          INFO("layer " << layer << " head " << h << " row " << r << " element " << i);
          if (!(std::fabs(static_cast<double>(got[i]) - want[i]) <= output_tolerance(scale)))
            REQUIRE(static_cast<double>(got[i]) == want[i]);
        }
      }
    }
  }
}

TEST_CASE("a row sees the tokens, the rows on its way, and no other", "[lifecycle][drafts]") {
  const float slopes[] = {0.02f, 0.01f, 0.0f, 0.015f};
  for (const std::uint32_t recipe : {QUIRE_RECIPE_KEEP_ALL, QUIRE_RECIPE_DIFFKV_UPSTREAM}) {
    for (const int masks : {0, 1, 2}) {
      Run run(recipe, 9604);
      quire_rule rule = {};
      if (masks == 1) rule.alibi_slopes = slopes;
      if (masks == 2) rule.sliding_window = 3;
      for (std::uint32_t round = 0; round < 12; ++round) {
        INFO("recipe " << recipe << " masks " << masks << " round " << round);
        const std::uint32_t t = kPrompt + 8 * round;
        std::vector<std::uint32_t> parents;
        for (std::uint32_t r = 1; r < 8; ++r) parents.push_back(run.rng.below(r));
        const bool line = round % 3 == 0;
        require_rows(run, line ? chain(t, 1 + run.rng.below(8)) : tree(t, parents), rule);
        if (run.rig.cache.info(run.slot).state == QUIRE_SEQ_DRAFT)
          REQUIRE(run.rig.cache.accept(run.slot, line ? 1 : 0).ok());
      }
    }
  }
}

TEST_CASE("a scored query stands for those of accepted drafts before it", "[lifecycle][drafts]") {
  Run run(QUIRE_RECIPE_DIFFKV_UPSTREAM, 9605);
  Run twin(QUIRE_RECIPE_DIFFKV_UPSTREAM, 9605);
  for (Run* r : {&run, &twin}) {
    step_drafts(r->rig, r->slot, r->stream, chain(kPrompt, 4));
    REQUIRE(r->rig.cache.accept(r->slot, 3).ok());
    REQUIRE(r->rig.state().slots[r->slot].unscored == 3);
    r->rig.plant_scores(r->slot, [](auto, auto, auto, auto) { return 0.0f; });
  }
  twin.rig.state().slots[twin.slot].unscored = 0;
  for (Run* r : {&run, &twin}) r->rig.step(r->slot, r->stream, kPrompt + 4);
  REQUIRE(run.rig.state().slots[run.slot].unscored == 0);
  double most = 0.0;
  for (std::uint32_t h = 0; h < 4; ++h) {
    const Snapshot mine = snapshot(run.rig.view(run.slot, h / 2, h % 2));
    const Snapshot theirs = snapshot(twin.rig.view(twin.slot, h / 2, h % 2));
    REQUIRE(mine.size() == theirs.size());
    for (const auto& [p, token] : mine) {
      REQUIRE(token.score == 4.0f * theirs.at(p).score);
      most = std::max(most, static_cast<double>(token.score));
    }
  }
  REQUIRE(most > 0.0);
}

// Every policy, drafts of any length, any part accepted: pages of the promise are enough.
TEST_CASE("accepting never needs more than the step reserved", "[lifecycle][drafts]") {
  for (const std::uint32_t recipe : kRecipes) {
    INFO("recipe " << recipe);
    RigSpec spec = draft_spec(recipe);
    spec.group.layout.page_bytes = 0;
    Rng rng(9606);
    const Stream stream(fork_shape(kTokens), rng);
    Rig rig(spec);
    const std::int32_t slot = rig.open();
    rig.prompt(slot, stream, kPrompt);
    std::uint32_t t = kPrompt;
    while (t + 8 < kTokens) {
      const std::uint32_t rows = 2 + rng.below(7);
      std::uint64_t needed = 0, available = 0;
      REQUIRE(quire_headroom_pages(rig.cache.get(), &slot, 1, rows, &needed, &available, nullptr) ==
              QUIRE_OK);
      const std::uint64_t live = rig.cache.stats().live_pages;
      step_drafts(rig, slot, stream, chain(t, rows));
      const std::uint64_t promised = rig.cache.stats().promised_pages;
      const std::uint64_t after_step = rig.cache.stats().live_pages;
      REQUIRE(promised <= needed);
      const std::uint32_t accepted = rng.below(rows);
      REQUIRE(rig.cache.accept(slot, accepted).ok());
      REQUIRE(rig.cache.stats().live_pages <= after_step + promised);
      REQUIRE(rig.cache.stats().live_pages <= live + needed);
      REQUIRE(rig.cache.stats().promised_pages == 0);
      REQUIRE(check_pool(rig.state()) == "");
      REQUIRE(check_dense(rig.state()) == "");
      t += 1 + accepted;
      REQUIRE(rig.cache.info(slot).tokens == t);
    }
    // A byte target holds with drafts as well.
    if (spec.policy.byte_target > 0.0) {
      const quire_seq_info info = rig.cache.info(slot);
      rig.step(slot, stream, t);
      REQUIRE(static_cast<double>(rig.cache.info(slot).total_bytes) <=
              spec.policy.byte_target * static_cast<double>(info.fp16_bytes) * (1.0 + 1.0 / t));
    }
  }
}

}  // namespace
}  // namespace quire::test
