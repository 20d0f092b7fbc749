// What a step with drafts, accept and a short pool refuse, and that nothing changes; padding.
#include <limits>

#include "support/drafts.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kPrompt = 60;

struct Scene {
  Scene() : rng(9701), stream(fork_shape(200), rng), rig(spec()) {
    for (std::int32_t& slot : slots) {
      slot = rig.open();
      rig.prompt(slot, stream, kPrompt);
    }
  }

  static RigSpec spec() {
    RigSpec s = fork_spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, 3);
    s.group.max_draft = 4;
    s.max_tokens = 100;
    return s;
  }

  std::vector<std::vector<std::uint8_t>> frames() const {
    std::vector<std::vector<std::uint8_t>> all;
    for (const std::int32_t slot : slots) all.push_back(exported(rig, slot));
    return all;
  }

  Rng rng;
  Stream stream;
  Rig rig;
  std::int32_t slots[3];
};

void require_refused(const Result& result, quire_status status, const char* field) {
  INFO(result.text());
  REQUIRE(result.status() == status);
  REQUIRE(std::string(result.field()) == field);
}

TEST_CASE("rows and masks out of range are refused", "[lifecycle][drafts]") {
  Scene s;
  const std::vector<std::vector<std::uint8_t>> before = s.frames();
  quire_step_begin_args args = QUIRE_STEP_BEGIN_ARGS_INIT;
  args.slots = s.slots;
  args.batch = 1;
  const auto refuse = [&](quire_status status, const char* field) {
    require_refused(s.rig.cache.step_begin(args), status, field);
    REQUIRE((s.frames() == before));
    REQUIRE(s.rig.cache.stats().promised_pages == 0);
  };
  args.rows = 6;  // max_draft is 4
  refuse(QUIRE_INVALID_ARGUMENT, "rows");
  args.rows = 17;
  refuse(QUIRE_INVALID_ARGUMENT, "rows");
  args.rows = 3;
  std::uint32_t count = 0;
  args.row_counts = &count;
  refuse(QUIRE_INVALID_ARGUMENT, "row_counts");
  count = 4;
  refuse(QUIRE_INVALID_ARGUMENT, "row_counts");
  count = 3;
  const std::uint32_t wrong[][3] = {
      {0, 3, 7}, {1, 1, 7}, {1, 2, 7}, {1, 3, 6}, {1, 3, 15}, {1, 3, 3}, {3, 3, 7}};
  for (const auto& mask : wrong) {
    args.draft_mask = mask;
    refuse(QUIRE_INVALID_ARGUMENT, "draft_mask");
  }
  args.draft_mask = nullptr;
  std::uint64_t moves = 0;
  args.plan_out_count = &moves;
  refuse(QUIRE_INVALID_ARGUMENT, "plan");
  args.plan_out_count = nullptr;
  args.on_shortage = 2;
  refuse(QUIRE_INVALID_ARGUMENT, "on_shortage");
  args.on_shortage = QUIRE_SHORTAGE_PREFIX;
  refuse(QUIRE_INVALID_ARGUMENT, "admitted");
}

TEST_CASE("drafts beyond max_tokens are refused", "[lifecycle][drafts]") {
  Scene s;
  for (std::uint32_t t = kPrompt; t < 98; ++t) s.rig.step(s.slots[0], s.stream, t);
  const std::vector<std::vector<std::uint8_t>> before = s.frames();
  const Result refused = begin_drafts(s.rig, s.slots[0], chain(98, 3));
  require_refused(refused, QUIRE_CAPACITY, "max_tokens");
  REQUIRE(refused.needed() == 101);
  REQUIRE((s.frames() == before));
  REQUIRE(begin_drafts(s.rig, s.slots[0], chain(98, 2)).ok());
}

TEST_CASE("accept takes paths of drafts that wait, and nothing else", "[lifecycle][drafts]") {
  Scene s;
  step_drafts(s.rig, s.slots[0], s.stream, tree(kPrompt, {0, 0, 1, 2}));
  const std::vector<std::uint8_t> records = s.rig.records(s.slots[0]);
  const auto refuse = [&](const std::vector<std::uint32_t>& rows, const char* field) {
    require_refused(accept_rows(s.rig, s.slots[0], rows), QUIRE_INVALID_ARGUMENT, field);
    REQUIRE((s.rig.records(s.slots[0]) == records));
    REQUIRE(s.rig.cache.info(s.slots[0]).state == QUIRE_SEQ_DRAFT);
  };
  refuse({0}, "rows");
  refuse({5}, "rows");
  refuse({3}, "rows");     // its parent is 1
  refuse({1, 2}, "rows");  // 2 hangs below row 0
  refuse({1, 4}, "rows");
  refuse({1, 3, 4}, "rows");
  refuse({1, 1}, "rows");
  refuse({1, 3, 3, 3, 3}, "counts");
  require_refused(s.rig.cache.accept(s.slots[1], 0), QUIRE_BAD_STATE, "slots");
  quire_accept_args args = QUIRE_ACCEPT_ARGS_INIT;
  const std::int32_t twice[] = {s.slots[0], s.slots[0]};
  const std::uint32_t counts[] = {1, 1};
  args.slots = twice;
  args.batch = 2;
  require_refused(s.rig.cache.accept(args), QUIRE_INVALID_ARGUMENT, "counts");
  args.counts = counts;
  require_refused(s.rig.cache.accept(args), QUIRE_INVALID_ARGUMENT, "slots");
  args.batch = 4;
  require_refused(s.rig.cache.accept(args), QUIRE_INVALID_ARGUMENT, "batch");
  REQUIRE((s.rig.records(s.slots[0]) == records));
  REQUIRE(s.rig.begin(s.slots[1]).ok());
  require_refused(accept_rows(s.rig, s.slots[0], {2, 4}), QUIRE_BAD_STATE, "step");
  REQUIRE(s.rig.cache.step_cancel().ok());
  REQUIRE(accept_rows(s.rig, s.slots[0], {2, 4}).ok());
  REQUIRE(s.rig.cache.info(s.slots[0]).tokens == kPrompt + 3);
}

TEST_CASE("a sequence whose drafts wait can be closed and keeps no promise",
          "[lifecycle][drafts]") {
  Scene s;
  step_drafts(s.rig, s.slots[0], s.stream, chain(kPrompt, 5));
  REQUIRE(begin_drafts(s.rig, s.slots[0], chain(kPrompt, 2)).status() == QUIRE_BAD_STATE);
  REQUIRE(s.rig.cache.close(s.slots[0]).ok());
  REQUIRE(s.rig.cache.stats().promised_pages == 0);
  REQUIRE(check_pool(s.rig.state()) == "");
}

TEST_CASE("a cancelled step with drafts keeps no promise", "[lifecycle][drafts]") {
  Scene s;
  const std::vector<std::vector<std::uint8_t>> before = s.frames();
  REQUIRE(begin_drafts(s.rig, s.slots[0], chain(kPrompt, 5)).ok());
  REQUIRE(s.rig.cache.step_cancel().ok());
  REQUIRE(s.rig.cache.stats().promised_pages == 0);
  REQUIRE((s.frames() == before));
}

// Sequences of one batch draft as much as they like; rows that do not count are never read.
TEST_CASE("rows that do not count are padding", "[lifecycle][drafts]") {
  Scene s;
  Scene twin;
  const std::uint32_t counts[3] = {4, 1, 2};
  const std::int32_t batch[3] = {s.slots[2], s.slots[0], s.slots[1]};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  quire_step_begin_args args = QUIRE_STEP_BEGIN_ARGS_INIT;
  args.slots = batch;
  args.batch = 3;
  args.rows = 4;
  args.row_counts = counts;
  REQUIRE(s.rig.cache.step_begin(args).ok());
  std::vector<std::vector<float>> want;
  for (std::uint32_t i = 0; i < 3; ++i) {
    want.push_back(step_drafts(twin.rig, batch[i], twin.stream, chain(kPrompt + i, counts[i])));
  }
  const std::size_t kv = 2 * 32;
  const std::size_t qs = 4 * 32;
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    std::vector<float> k(3 * 4 * kv, nan), v(k), q(3 * 4 * qs, nan), out(q.size(), 7.0f);
    std::vector<float> lse(3 * 4 * 4, 7.0f);
    for (std::uint32_t i = 0; i < 3; ++i) {
      for (std::uint32_t r = 0; r < counts[i]; ++r) {
        std::copy_n(s.stream.k(layer, kPrompt + i + r), kv, k.begin() + (i * 4 + r) * kv);
        std::copy_n(s.stream.v(layer, kPrompt + i + r), kv, v.begin() + (i * 4 + r) * kv);
        std::copy_n(s.stream.q(layer, kPrompt + i + r), qs, q.begin() + (i * 4 + r) * qs);
      }
    }
    s.rig.append(layer, k.data(), v.data());
    quire_attention_args attention = QUIRE_ATTENTION_ARGS_INIT;
    attention.layer = layer;
    attention.q = rows_of(q.data());
    attention.out = rows_of(out.data());
    attention.lse = lse.data();
    attention.splits = 1;
    REQUIRE(s.rig.cache.attention(attention).ok());
    for (std::uint32_t i = 0; i < 3; ++i) {
      for (std::uint32_t r = 0; r < 4; ++r) {
        const float* got = out.data() + (i * 4 + r) * qs;
        for (std::size_t e = 0; e < qs; ++e) {
          const float expected = r < counts[i] ? want[i][(layer * counts[i] + r) * qs + e] : 0.0f;
          REQUIRE(got[e] == expected);
        }
        const bool empty = std::isinf(lse[(i * 4 + r) * 4]) && lse[(i * 4 + r) * 4] < 0.0f;
        REQUIRE(empty == (r >= counts[i]));
      }
    }
  }
  REQUIRE(s.rig.cache.step_end().ok());
  REQUIRE(s.rig.cache.info(batch[0]).state == QUIRE_SEQ_DRAFT);
  REQUIRE(s.rig.cache.info(batch[1]).state == QUIRE_SEQ_OPEN);
}

TEST_CASE("attention in a step with drafts takes the step's rows and scores one",
          "[lifecycle][drafts]") {
  Scene s;
  const DraftRows d = chain(kPrompt, 3);
  REQUIRE(begin_drafts(s.rig, s.slots[0], d).ok());
  const std::vector<float> k = rows_from(s.stream, d, 0, RowsOf::kKeys);
  const std::vector<float> q = rows_from(s.stream, d, 0, RowsOf::kQueries);
  s.rig.append(0, k.data(), k.data());
  std::vector<float> out(q.size());
  quire_attention_args args = QUIRE_ATTENTION_ARGS_INIT;
  args.q = rows_of(q.data());
  args.out = rows_of(out.data());
  args.rows = 2;
  require_refused(s.rig.cache.attention(args), QUIRE_INVALID_ARGUMENT, "rows");
  args.rows = 3;
  args.score_rows = 2;
  require_refused(s.rig.cache.attention(args), QUIRE_INVALID_ARGUMENT, "score_rows");
  args.score_rows = 0;
  REQUIRE(s.rig.cache.attention(args).ok());
}

}  // namespace
}  // namespace quire::test
