// Calls of quire.h that are right: every argument filled in, buffers of their own. Tests spoil one
// field and look at what the call says. Also short ways to bring a sequence into a state.
#pragma once

#include <cstring>
#include <vector>

#include "support/gen.hpp"
#include "support/prompt_call.hpp"
#include "support/raw_cache.hpp"

namespace quire::test {

class RawCalls {
 public:
  static constexpr std::uint32_t kRows = 64;  // of the buffers: tokens of a prompt, query rows
  static constexpr unsigned char kUntouched = 0xcd;

  RawCalls(const RawCache& raw_cache, std::uint64_t seed) : rng(seed), cache(raw_cache.get()) {
    const quire_group_desc& g = raw_cache.spec.group;
    const std::size_t kv = std::size_t{kRows} * g.kv_heads;
    k = rng.normals(kv * g.layout.head_dim_k);
    v = rng.normals(kv * g.layout.head_dim_v);
    q = rng.normals(std::size_t{kRows} * g.q_heads * g.layout.head_dim_k);
    out.resize(std::size_t{kRows} * g.q_heads * g.layout.head_dim_v);
    lse.resize(std::size_t{kRows} * g.q_heads);
    policy = raw_cache.spec.policy;
    tiers.assign(std::size_t{g.layers} * g.kv_heads * kRows, 255);
    plan_out.resize(std::size_t{g.kv_heads} * kRows);
    positions.resize(kRows);
    scores.resize(kRows);
    gathered.resize(std::size_t{kRows} * g.layout.head_dim_k);
    moves.resize(kRows);
    reset_outputs();
  }

  quire_rows rows(std::vector<float>& data) const { return {data.data(), QUIRE_F32, 0, 0, 0, 0}; }

  quire_seq_open_args open() {
    quire_seq_open_args args = QUIRE_SEQ_OPEN_ARGS_INIT;
    args.policy = &policy;
    args.error = &error;
    return args;
  }

  quire_prefill_layer_args prompt(std::int32_t slot, std::uint32_t layer, std::uint32_t q_rows) {
    quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
    args.slot = slot;
    args.layer = layer;
    args.k = rows(k);
    args.v = rows(v);
    args.q = rows(q);
    args.q_rows = q_rows;
    args.plan_out = plan_out.data();
    args.error = &error;
    return args;
  }

  quire_step_begin_args begin(const std::vector<std::int32_t>& slots) {
    batch_ = slots;
    quire_step_begin_args args = QUIRE_STEP_BEGIN_ARGS_INIT;
    args.slots = batch_.data();
    args.batch = static_cast<std::uint32_t>(batch_.size());
    args.error = &error;
    return args;
  }

  quire_append_args append(std::uint32_t layer) {
    quire_append_args args = QUIRE_APPEND_ARGS_INIT;
    args.layer = layer;
    args.k = rows(k);
    args.v = rows(v);
    args.error = &error;
    return args;
  }

  quire_attention_args attention(std::uint32_t layer) {
    quire_attention_args args = QUIRE_ATTENTION_ARGS_INIT;
    args.layer = layer;
    args.q = rows(q);
    args.out = rows(out);
    args.lse = lse.data();
    args.error = &error;
    return args;
  }

  quire_extend_args extend(std::int32_t slot, std::uint32_t layer, std::uint32_t row_count) {
    quire_extend_args args = QUIRE_EXTEND_ARGS_INIT;
    args.slot = slot;
    args.layer = layer;
    args.rows = row_count;
    args.q = rows(q);
    args.out = rows(out);
    args.lse = lse.data();
    args.error = &error;
    return args;
  }

  quire_plan_apply_args plan(std::int32_t slot, std::uint32_t layers, std::uint32_t tokens) {
    quire_plan_apply_args args = QUIRE_PLAN_APPLY_ARGS_INIT;
    args.slot = slot;
    args.layer_count = layers;
    args.tokens = tokens;
    args.tiers = tiers.data();
    args.error = &error;
    return args;
  }

  quire_gather_args gather(std::int32_t slot) {
    quire_gather_args args = QUIRE_GATHER_ARGS_INIT;
    args.slot = slot;
    args.capacity = kRows;
    args.k = rows(gathered);
    args.positions = positions.data();
    args.count = &count;
    args.error = &error;
    return args;
  }

  quire_query_args query(std::int32_t slot) {
    quire_query_args args = QUIRE_QUERY_ARGS_INIT;
    args.slot = slot;
    args.capacity = kRows;
    args.positions = positions.data();
    args.scores = scores.data();
    args.count = &count;
    args.error = &error;
    return args;
  }

  quire_seq_freeze_args freeze(std::int32_t slot, std::uint32_t tokens) {
    token_ids.resize(tokens, 5);
    quire_seq_freeze_args args = QUIRE_SEQ_FREEZE_ARGS_INIT;
    args.slot = slot;
    args.token_ids = token_ids.data();
    args.token_count = tokens;
    args.error = &error;
    return args;
  }

  // Everything that a call may write outside the cache, but the error.
  std::vector<unsigned char> outputs() const {
    std::vector<unsigned char> all;
    add(all, out.data(), out.size());
    add(all, lse.data(), lse.size());
    add(all, plan_out.data(), plan_out.size());
    add(all, positions.data(), positions.size());
    add(all, scores.data(), scores.size());
    add(all, gathered.data(), gathered.size());
    add(all, moves.data(), moves.size());
    add(all, &count, 1);
    add(all, &opened, 1);
    add(all, &number[0], 2);
    return all;
  }

  void reset_outputs() {
    fill(out.data(), out.size());
    fill(lse.data(), lse.size());
    fill(plan_out.data(), plan_out.size());
    fill(positions.data(), positions.size());
    fill(scores.data(), scores.size());
    fill(gathered.data(), gathered.size());
    fill(moves.data(), moves.size());
    fill(&count, 1);
    fill(&opened, 1);
    fill(&number[0], 2);
    reset_error();
  }

  void reset_error() { error = QUIRE_ERROR_INIT; }

  // A sequence with a prompt of so many tokens; 0: none.
  std::int32_t open_with(std::uint32_t tokens) {
    const quire_seq_open_args args = open();
    need(quire_seq_open(cache, &args, &opened));
    if (tokens > 0) fill_prompt(opened, tokens);
    return opened;
  }

  void fill_prompt(std::int32_t slot, std::uint32_t tokens) {
    need(test::begin_prompt(cache, slot, tokens, &error));
    for (std::uint32_t layer = 0; layer < cache->group.layers; ++layer) {
      const quire_prefill_layer_args args = prompt(slot, layer, tokens);
      need(quire_prefill_layer(cache, &args));
    }
    need(quire_prefill_end(cache, slot, &error));
  }

  void step(const std::vector<std::int32_t>& slots) { step_of(slots, 1); }

  // A step of one sequence that leaves a draft behind.
  void step_with_draft(std::int32_t slot) { step_of({slot}, 2); }

  void step_of(const std::vector<std::int32_t>& slots, std::uint32_t row_count) {
    quire_step_begin_args args = begin(slots);
    args.rows = row_count;
    need(quire_step_begin(cache, &args));
    finish_step(0);
  }

  // From the append of `first_layer` to the end of an open step.
  void finish_step(std::uint32_t first_layer) {
    for (std::uint32_t layer = first_layer; layer < cache->group.layers; ++layer) {
      const quire_append_args args = append(layer);
      need(quire_append(cache, &args));
      const quire_attention_args query_args = attention(layer);
      need(quire_attention(cache, &query_args));
    }
    need(quire_step_end(cache, &error));
  }

  void need(quire_status status) const {
    INFO(error.text);
    REQUIRE(status == QUIRE_OK);
  }

  Rng rng;
  quire_cache* cache;
  std::vector<std::int32_t> token_ids;
  quire_policy policy = QUIRE_POLICY_INIT;
  quire_error error = QUIRE_ERROR_INIT;
  std::vector<float> k;  // [kRows, kv_heads, head_dim_k]
  std::vector<float> v;
  std::vector<float> q;
  std::vector<float> out;
  std::vector<float> lse;
  std::vector<std::uint8_t> tiers;  // [layers, kv_heads, kRows], all 255
  std::vector<std::uint8_t> plan_out;
  std::vector<std::int32_t> positions;
  std::vector<float> scores;
  std::vector<float> gathered;
  std::vector<quire_plan_move> moves;
  std::uint32_t count = 0;
  std::int32_t opened = 0;
  std::uint64_t number[2] = {};

 private:
  template <class T>
  static void add(std::vector<unsigned char>& all, const T* data, std::size_t n) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(data);
    all.insert(all.end(), bytes, bytes + n * sizeof(T));
  }
  template <class T>
  static void fill(T* data, std::size_t n) {
    std::memset(data, kUntouched, n * sizeof(T));
  }

  std::vector<std::int32_t> batch_;
};

// What a refused call has to say.
struct Refusal {
  quire_status status;
  const char* field;
  const char* words = "";    // of the allowed range, somewhere in the text
  std::int64_t needed = -1;  // -1: not looked at
  std::int64_t given = -1;
};

inline void require_error(const quire_error& error, const Refusal& want) {
  CHECK(error.status == want.status);
  CHECK(std::string(error.field) == want.field);
  INFO("text: " << error.text);
  CHECK(std::string(error.text).find(want.words) != std::string::npos);
  CHECK(std::string(error.text).size() > std::string(error.field).size() + 2);
  if (want.needed >= 0) CHECK(error.needed == static_cast<std::uint64_t>(want.needed));
  if (want.given >= 0) CHECK(error.given == static_cast<std::uint64_t>(want.given));
}

// Runs a call that must be refused: status and error as documented, nothing changed anywhere.
template <class CallT>
void require_refused(const RawCache& cache, RawCalls& calls, const Refusal& want, CallT&& call) {
  calls.reset_error();
  const RawImage before = cache.image();
  const std::vector<unsigned char> outputs = calls.outputs();
  const quire_status status = call();
  CHECK(cache.guards_intact());
  CHECK(status == want.status);
  if (status == QUIRE_OK) return;
  CHECK(before.difference(cache.image()) == "");
  CHECK(outputs == calls.outputs());
  require_error(calls.error, want);
}

// One way to spoil an argument struct.
template <class ArgsT>
struct Bad {
  const char* what;
  void (*spoil)(ArgsT&);
  Refusal want;
};

}  // namespace quire::test
