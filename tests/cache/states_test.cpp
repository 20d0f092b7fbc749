// Oracle: the table below, written from the call order in quire.h. Every call in every state of a
// sequence returns what the table says; a refused call changes no byte of the caller's memory; the
// cache goes on working.
#include "support/raw_calls.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kTokens = 20;

// A cache with one bystander sequence and one subject, whose state the table's columns name.
struct Scene {
  RawCache cache;
  RawCalls calls;
  std::int32_t bystander = -1;
  std::int32_t subject = -1;

  Scene() : cache(RawSpec()), calls(cache, 11) {
    bystander = calls.open_with(kTokens);
    subject = calls.open_with(0);
  }

  quire_cache* get() const { return cache.get(); }

  void store_layers(std::uint32_t count) {
    calls.need(test::begin_prompt(get(), subject, kTokens, &calls.error));
    for (std::uint32_t layer = 0; layer < count; ++layer) {
      const quire_prefill_layer_args args = calls.prompt(subject, layer, kTokens);
      calls.need(quire_prefill_layer(get(), &args));
    }
  }

  void store_round() {
    calls.need(test::begin_prompt(get(), subject, kTokens, &calls.error, QUIRE_PREFILL_MORE));
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
      const quire_prefill_layer_args args = calls.prompt(subject, layer, kTokens);
      calls.need(quire_prefill_layer(get(), &args));
    }
    calls.need(quire_prefill_end(get(), subject, &calls.error));
  }

  void store_later() {
    calls.fill_prompt(subject, kTokens);
    store_layers(1);
  }

  void begin_step(std::uint32_t appended) {
    calls.fill_prompt(subject, kTokens);
    const quire_step_begin_args args = calls.begin({subject});
    calls.need(quire_step_begin(get(), &args));
    for (std::uint32_t layer = 0; layer < appended; ++layer) {
      const quire_append_args append = calls.append(layer);
      calls.need(quire_append(get(), &append));
    }
  }

  void scored_step() {
    begin_step(2);
    const quire_attention_args args = calls.attention(0);
    calls.need(quire_attention(get(), &args));
  }

  void wait_for_accept() {
    calls.fill_prompt(subject, kTokens);
    calls.step_with_draft(subject);
  }

  void frozen() {
    calls.fill_prompt(subject, kTokens);
    quire_seq_freeze_args args = calls.freeze(subject, kTokens);
    calls.need(quire_seq_freeze(get(), &args));
  }

  void broken_step() {
    begin_step(1);
    calls.need(quire_step_cancel(get(), &calls.error));
  }
};

struct State {
  const char* name;
  void (*enter)(Scene&);
};

constexpr int kStates = 14;
const State kState[kStates] = {
    {"closed", [](Scene& s) { s.calls.need(quire_seq_close(s.get(), s.subject, &s.calls.error)); }},
    {"open and empty", [](Scene&) {}},
    {"open", [](Scene& s) { s.calls.fill_prompt(s.subject, kTokens); }},
    {"in prefill, no layer stored", [](Scene& s) { s.store_layers(0); }},
    {"in prefill, all layers stored", [](Scene& s) { s.store_layers(2); }},
    {"in step, before append", [](Scene& s) { s.begin_step(0); }},
    {"in step, after append of layer 0", [](Scene& s) { s.begin_step(1); }},
    {"in step, after append of all layers", [](Scene& s) { s.begin_step(2); }},
    {"in step, after scored attention of layer 0", [](Scene& s) { s.scored_step(); }},
    {"broken", [](Scene& s) { s.broken_step(); }},
    {"drafts wait", [](Scene& s) { s.wait_for_accept(); }},
    {"frozen", [](Scene& s) { s.frozen(); }},
    {"between two rounds of a prompt", [](Scene& s) { s.store_round(); }},
    {"in a later prompt, layer 0 stored", [](Scene& s) { s.store_later(); }},
};

quire_status run_prefill_layer(Scene& s, std::uint32_t layer) {
  const quire_prefill_layer_args args = s.calls.prompt(s.subject, layer, kTokens);
  return quire_prefill_layer(s.get(), &args);
}

quire_status run_append(Scene& s, std::uint32_t layer) {
  const quire_append_args args = s.calls.append(layer);
  return quire_append(s.get(), &args);
}

quire_status run_attention(Scene& s, std::uint32_t layer, std::uint32_t score_rows) {
  quire_attention_args args = s.calls.attention(layer);
  args.score_rows = score_rows;
  return quire_attention(s.get(), &args);
}

quire_status run_step_begin(Scene& s, const std::vector<std::int32_t>& slots) {
  const quire_step_begin_args args = s.calls.begin(slots);
  return quire_step_begin(s.get(), &args);
}

quire_status run_open(Scene& s) {
  const quire_seq_open_args args = s.calls.open();
  return quire_seq_open(s.get(), &args, &s.calls.opened);
}

quire_status run_fork(Scene& s) {
  quire_seq_fork_args args = QUIRE_SEQ_FORK_ARGS_INIT;
  args.slot = s.subject;
  args.error = &s.calls.error;
  return quire_seq_fork(s.get(), &args, &s.calls.opened);
}

quire_status run_export_bytes(Scene& s) {
  return quire_seq_export_bytes(s.get(), s.subject, &s.calls.number[0], &s.calls.error);
}

quire_status run_export(Scene& s) {
  static unsigned char frame[1 << 20];
  return quire_seq_export(s.get(), s.subject, frame, sizeof(frame), &s.calls.error);
}

quire_status run_accept(Scene& s) {
  const std::uint32_t one = 1;
  quire_accept_args args = QUIRE_ACCEPT_ARGS_INIT;
  args.slots = &s.subject;
  args.batch = 1;
  args.counts = &one;
  args.error = &s.calls.error;
  return quire_accept(s.get(), &args);
}

quire_status run_freeze(Scene& s) {
  const quire_seq_freeze_args args = s.calls.freeze(s.subject, kTokens);
  return quire_seq_freeze(s.get(), &args);
}

quire_status run_find(Scene& s) {
  const quire_seq_open_args open = s.calls.open();
  quire_prefix_find_args args = QUIRE_PREFIX_FIND_ARGS_INIT;
  args.open = &open;
  args.slot = &s.calls.opened;
  args.error = &s.calls.error;
  return quire_prefix_find(s.get(), &args);
}

quire_status run_evict(Scene& s) {
  return quire_prefix_evict(s.get(), 0, &s.calls.number[0], nullptr, &s.calls.error);
}

quire_status run_truncate(Scene& s) {
  quire_seq_truncate_args args = QUIRE_SEQ_TRUNCATE_ARGS_INIT;
  args.slot = s.subject;
  args.error = &s.calls.error;
  return quire_seq_truncate(s.get(), &args);
}

quire_status run_remove_span(Scene& s) {
  quire_seq_remove_span_args args = QUIRE_SEQ_REMOVE_SPAN_ARGS_INIT;
  args.slot = s.subject;
  args.first = args.end = 1;
  args.error = &s.calls.error;
  return quire_seq_remove_span(s.get(), &args);
}

quire_status run_extend(Scene& s) {
  const quire_extend_args args = s.calls.extend(s.subject, 0, 3);
  return quire_extend(s.get(), &args);
}

// A plan that leaves everything, for as many tokens as the sequence has (0 where it has none).
quire_status run_plan(Scene& s) {
  quire_seq_info info = QUIRE_SEQ_INFO_INIT;
  const bool known = quire_seq_info_get(s.get(), s.subject, &info, nullptr) == QUIRE_OK;
  const quire_plan_apply_args args = s.calls.plan(s.subject, 2, known ? info.tokens : 0);
  return quire_plan_apply(s.get(), &args);
}

quire_status run_gather(Scene& s) {
  const quire_gather_args args = s.calls.gather(s.subject);
  return quire_gather(s.get(), &args);
}

quire_status run_query(Scene& s) {
  const quire_query_args args = s.calls.query(s.subject);
  return quire_query(s.get(), &args);
}

quire_status run_headroom(Scene& s) {
  return quire_headroom_pages(
      s.get(), &s.subject, 1, 1, &s.calls.number[0], &s.calls.number[1], &s.calls.error);
}

quire_status run_pages_for(Scene& s) {
  return quire_pages_for(s.get(), &s.calls.policy, 10, &s.calls.number[0], nullptr, &s.calls.error);
}

quire_status run_explain(Scene& s) {
  const quire_attention_args args = s.calls.attention(0);
  quire_explain_report report = QUIRE_EXPLAIN_REPORT_INIT;
  return quire_explain(s.get(), &args, &report);
}

quire_status run_info(Scene& s) {
  quire_seq_info info = QUIRE_SEQ_INFO_INIT;
  return quire_seq_info_get(s.get(), s.subject, &info, &s.calls.error);
}

quire_status run_stats(Scene& s) {
  quire_stats stats = QUIRE_STATS_INIT;
  return quire_stats_get(s.get(), &stats, &s.calls.error);
}

// One letter per state: O ok, B bad state.
struct Row {
  const char* name;
  const char* expected;
  bool has_error;
  quire_status (*run)(Scene&);
};

// clang-format off
const Row kTable[] = {
    // closed, empty, open, prefill, stored, step, appended 0, appended all, scored, broken, drafts, frozen, round,
    // later
    {"quire_seq_open",               "OOOOOOOOOOOOOO", true, run_open},
    {"quire_seq_fork",               "BOOBBBBBBBBOOB", true, run_fork},
    {"quire_seq_export_bytes",       "BOOBBBBBBBBOOB", true, run_export_bytes},
    {"quire_seq_export",             "BOOBBBBBBBBOOB", true, run_export},
    {"quire_seq_close",              "BOOOOBBBBOOOOO", true, [](Scene& s) { return quire_seq_close(s.get(), s.subject, &s.calls.error); }},
    {"quire_prefill_begin",          "BOOBBBBBBBBBOB", true, [](Scene& s) { return test::begin_prompt(s.get(), s.subject, kTokens, &s.calls.error); }},
    {"quire_prefill_layer 0",        "BBBOBBBBBBBBBB", true, [](Scene& s) { return run_prefill_layer(s, 0); }},
    {"quire_prefill_layer 1",        "BBBBBBBBBBBBBO", true, [](Scene& s) { return run_prefill_layer(s, 1); }},
    {"quire_prefill_end",            "BBBBOBBBBBBBBB", true, [](Scene& s) { return quire_prefill_end(s.get(), s.subject, &s.calls.error); }},
    {"quire_prefill_cancel",         "BBBOOBBBBBBBBO", true, [](Scene& s) { return quire_prefill_cancel(s.get(), s.subject, &s.calls.error); }},
    {"quire_step_begin, subject",    "BOOBBBBBBBBBBB", true, [](Scene& s) { return run_step_begin(s, {s.subject}); }},
    {"quire_step_begin, both",       "BOOBBBBBBBBBBB", true, [](Scene& s) { return run_step_begin(s, {s.bystander, s.subject}); }},
    {"quire_step_begin, bystander",  "OOOOOBBBBOOOOO", true, [](Scene& s) { return run_step_begin(s, {s.bystander}); }},
    {"quire_append 0",               "BBBBBOBBBBBBBB", true, [](Scene& s) { return run_append(s, 0); }},
    {"quire_append 1",               "BBBBBOOBBBBBBB", true, [](Scene& s) { return run_append(s, 1); }},
    {"quire_attention 0, scored",    "BBBBBBOOBBBBBB", true, [](Scene& s) { return run_attention(s, 0, 0); }},
    {"quire_attention 0, unscored",  "BBBBBBOOOBBBBB", true, [](Scene& s) { return run_attention(s, 0, QUIRE_NONE); }},
    {"quire_attention 1, scored",    "BBBBBBBOOBBBBB", true, [](Scene& s) { return run_attention(s, 1, 0); }},
    {"quire_step_end",               "BBBBBBBOOBBBBB", true, [](Scene& s) { return quire_step_end(s.get(), &s.calls.error); }},
    {"quire_step_cancel",            "BBBBBOOOOBBBBB", true, [](Scene& s) { return quire_step_cancel(s.get(), &s.calls.error); }},
    {"quire_accept",                 "BBBBBBBBBBOBBB", true, run_accept},
    {"quire_seq_freeze",             "BBOBBBBBBBBBBB", true, run_freeze},
    {"quire_prefix_find",            "OOOOOOOOOOOOOO", true, run_find},
    {"quire_prefix_evict",           "OOOOOOOOOOOOOO", true, run_evict},
    {"quire_seq_truncate",           "BOOBBBBBBBBBOB", true, run_truncate},
    {"quire_seq_remove_span",        "BOOBBBBBBBBBOB", true, run_remove_span},
    {"quire_extend",                 "BOOOBBBBBBBOOB", true, run_extend},
    {"quire_plan_apply",             "BOOBBBBBBBBBOB", true, run_plan},
    {"quire_gather",                 "BOOOOOOOOBOOOO", true, run_gather},
    {"quire_query",                  "BOOOOOOOOBOOOO", true, run_query},
    {"quire_headroom_pages",         "BOOBBBBBBBBBOB", true, run_headroom},
    {"quire_seq_info_get",           "BOOOOOOOOOOOOO", true, run_info},
    {"quire_pages_for",              "OOOOOOOOOOOOOO", true, run_pages_for},
    {"quire_explain",                "OOOOOOOOOOOOOO", true, run_explain},
    {"quire_stats_get",              "OOOOOOOOOOOOOO", true, run_stats},
};
// clang-format on

quire_status status_of(char letter) { return letter == 'O' ? QUIRE_OK : QUIRE_BAD_STATE; }

// Whatever happened: the subject can be closed, and another sequence lives a whole life.
void require_alive(Scene& s) {
  quire_seq_info info = QUIRE_SEQ_INFO_INIT;
  if (quire_seq_info_get(s.get(), s.bystander, &info, nullptr) == QUIRE_OK &&
      info.state == QUIRE_SEQ_STEP)
    s.calls.need(quire_step_cancel(s.get(), &s.calls.error));
  if (quire_seq_info_get(s.get(), s.subject, &info, nullptr) == QUIRE_OK) {
    if (info.state == QUIRE_SEQ_STEP) s.calls.need(quire_step_cancel(s.get(), &s.calls.error));
    s.calls.need(quire_seq_close(s.get(), s.subject, &s.calls.error));
  }
  const std::int32_t fresh = s.calls.open_with(kTokens);
  s.calls.step({s.bystander, fresh});
  CHECK(s.cache.info(fresh).tokens == kTokens + 1);
  CHECK(s.cache.info(s.bystander).tokens == kTokens + 1);
  s.calls.need(quire_seq_close(s.get(), fresh, &s.calls.error));
  CHECK(s.cache.guards_intact());
}

void check_cell(const Row& row, int state) {
  Scene scene;
  kState[state].enter(scene);
  scene.calls.reset_outputs();
  const RawImage before = scene.cache.image();
  const std::vector<unsigned char> outputs = scene.calls.outputs();
  const quire_status want = status_of(row.expected[state]);
  const quire_status got = row.run(scene);
  CHECK(got == want);
  if (got != QUIRE_OK) {
    CHECK(before.difference(scene.cache.image()) == "");
    CHECK(outputs == scene.calls.outputs());
    if (row.has_error) require_error(scene.calls.error, {got, scene.calls.error.field});
    if (row.has_error) CHECK(scene.calls.error.field[0] != '\0');
  }
  require_alive(scene);
}

}  // namespace

TEST_CASE("every call in every state answers as the table says and a refusal changes nothing",
          "[cache][states]") {
  for (const Row& row : kTable) {
    REQUIRE(std::string(row.expected).size() == kStates);
    for (int state = 0; state < kStates; ++state) {
      INFO(row.name << " when " << kState[state].name);
      check_cell(row, state);
    }
  }
}

TEST_CASE("quire_seq_info_get names the state a sequence is in", "[cache][states]") {
  const std::uint32_t want[kStates] = {QUIRE_SEQ_CLOSED,
                                       QUIRE_SEQ_OPEN,
                                       QUIRE_SEQ_OPEN,
                                       QUIRE_SEQ_PREFILL,
                                       QUIRE_SEQ_PREFILL,
                                       QUIRE_SEQ_STEP,
                                       QUIRE_SEQ_STEP,
                                       QUIRE_SEQ_STEP,
                                       QUIRE_SEQ_STEP,
                                       QUIRE_SEQ_BROKEN,
                                       QUIRE_SEQ_DRAFT,
                                       QUIRE_SEQ_FROZEN,
                                       QUIRE_SEQ_OPEN,
                                       QUIRE_SEQ_PREFILL};
  for (int state = 1; state < kStates; ++state) {
    Scene scene;
    kState[state].enter(scene);
    INFO(kState[state].name);
    CHECK(scene.cache.info(scene.subject).state == want[state]);
  }
}

TEST_CASE("a step that is cancelled before its first append leaves all that a caller can read",
          "[cache][states]") {
  Scene scene;
  scene.calls.fill_prompt(scene.subject, kTokens);
  const auto read_all = [&] {
    std::vector<unsigned char> all;
    for (const std::int32_t slot : {scene.bystander, scene.subject}) {
      scene.calls.reset_outputs();
      const quire_gather_args gather = scene.calls.gather(slot);
      const quire_query_args query = scene.calls.query(slot);
      scene.calls.need(quire_gather(scene.get(), &gather));
      scene.calls.need(quire_query(scene.get(), &query));
      const std::vector<unsigned char> bytes = scene.calls.outputs();
      all.insert(all.end(), bytes.begin(), bytes.end());
      const quire_seq_info info = scene.cache.info(slot);
      const auto* raw = reinterpret_cast<const unsigned char*>(&info);
      all.insert(all.end(), raw, raw + sizeof(info));
    }
    return all;
  };
  const std::vector<unsigned char> before = read_all();
  const quire_stats stats = scene.cache.stats();
  REQUIRE(run_step_begin(scene, {scene.bystander, scene.subject}) == QUIRE_OK);
  scene.calls.need(quire_step_cancel(scene.get(), &scene.calls.error));
  CHECK(before == read_all());
  const quire_stats after = scene.cache.stats();
  CHECK(std::memcmp(&stats, &after, sizeof(stats)) == 0);
}

}  // namespace quire::test
