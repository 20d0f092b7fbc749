// What a backend does for every token of every call, as one private table of functions; each entry
// has a contract test that runs on every backend (tests/contract). What is rare or reads little
// (cadence runs, foreign plans, gather, codecs over caller memory) still runs the scalar
// definitions on the host; a backend with memory of its own needs entries for it.
#pragma once

#include <cstdint>

#include "quire/attention/rule.hpp"
#include "quire/core/plan.hpp"
#include "quire/core/score_view.hpp"
#include "quire/core/status.hpp"
#include "quire/core/view.hpp"
#include "quire/pages/head_state.hpp"
#include "quire/pages/head_view.hpp"
#include "quire/policy/tiers.hpp"
#include "src/arena.hpp"

namespace quire {

// The caller's threads; run == nullptr means this thread alone.
struct Parallel {
  void (*run)(void* user,
              std::uint32_t tasks,
              void (*task)(void*, std::uint32_t),
              void* context) = nullptr;
  void* user = nullptr;
  std::uint32_t width = 1;

  template <class FunctionT>
  void for_each(std::uint32_t tasks, FunctionT&& function) const {
    if (run == nullptr || tasks <= 1) {
      for (std::uint32_t i = 0; i < tasks; ++i) function(i);
      return;
    }
    run(
        user, tasks, [](void* f, std::uint32_t i) { (*static_cast<FunctionT*>(f))(i); }, &function);
  }
};

// One (sequence, KV head) of an attention call.
struct AttentionUnit {
  HeadView view;
  std::uint32_t sequence = 0;  // row of q and out
  std::uint32_t kv_head = 0;
  std::int32_t position = 0;  // of query row 0
  std::uint32_t rows = 0;     // that count; those behind them get output 0. 0: all of the call
  Statistic statistic = Statistic::kNone;
  float score_weight = 1.0f;   // queries that this one stands for
  bool track_lowest = false;   // leave the least significant tokens in `state`
  HeadState* state = nullptr;  // nullptr: no scores
  TierRule rule;               // of the next step, for the least significant tokens
};

struct AttentionCall {
  AttentionUnit* units = nullptr;
  std::uint32_t unit_count = 0;
  std::uint32_t rows = 1;
  std::uint32_t q_heads = 1;
  std::uint32_t group = 1;  // query heads per KV head
  RowsView q;               // [sequences, rows, q_heads, head_dim_k]
  MutableRowsView out;
  float* lse = nullptr;  // [sequences, rows, q_heads] or nullptr
  bool lse_base_2 = false;
  AttentionRule rule;
  std::uint32_t score_rows = 0;  // first rows that add to scores
  std::uint32_t splits = 0;      // 0: automatic
  Workspace workspace;
  Parallel parallel;
};

// The shape an attention workspace depends on.
struct AttentionShape {
  std::uint32_t head_dim_k = 0;
  std::uint32_t head_dim_v = 0;
  std::uint32_t k_groups = 1;  // most metadata groups of any K format involved
  std::uint32_t group = 1;
  std::uint32_t rows = 1;
  std::uint32_t score_rows = 0;
  std::uint32_t splits = 1;        // largest fixed count
  std::uint32_t width = 1;         // tasks at once
  std::uint64_t max_tokens = 0;    // per (sequence, KV head)
  std::uint64_t max_segments = 0;  // per (sequence, KV head)
  std::uint64_t max_units = 0;     // (sequence, KV head) pairs
};

// The tail pass over one layer of a prompt: the last q_rows positions against all keys, those that
// are stored of the positions before (as they are stored) and those of k (as they come).
struct TailCall {
  RowsView k;                      // [1, tokens, kv_heads, head_dim_k]
  std::uint32_t first = 0;         // position of k's first row
  const HeadView* held = nullptr;  // [kv_heads] what is stored below it; nullptr: nothing
  RowsView q;                      // [1, q_rows, q_heads, head_dim_k], the last rows
  const float* lse = nullptr;      // [q_rows, q_heads] or nullptr
  std::uint32_t tokens = 0;
  std::uint32_t q_rows = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t group = 1;
  std::uint32_t head_dim = 0;
  AttentionRule rule;
  Statistic statistic = Statistic::kNone;
  PoolKind pool = PoolKind::kNone;
  std::uint32_t pool_width = 0;
  float* scores = nullptr;  // [kv_heads, first + tokens]; 0 for positions that are not held
  float* pooled = nullptr;  // the same, or nullptr without pooling
  Workspace workspace;
  Parallel parallel;

  std::uint32_t length() const { return first + tokens; }
};

struct TailShape {
  std::uint32_t head_dim = 0;
  std::uint32_t group = 1;
  std::uint32_t width = 1;
  std::uint64_t tokens = 0;  // of the sequence
  std::uint64_t q_rows = 0;
};

// Where the tokens of a prompt go in one head, and those that leave the ring for them; kKeep is the
// ring.
struct WritePromptCall {
  RowsView k;  // [1, tokens, kv_heads, head_dim_k]
  RowsView v;
  std::uint32_t tokens = 0;
  std::uint32_t first = 0;    // position of row 0
  std::uint32_t leaving = 0;  // positions [leaving, first) are in the ring
  std::uint32_t kv_heads = 0;
  const HeadView* views = nullptr;        // [kv_heads] with final token counts and assigned pages
  const std::uint32_t* stored = nullptr;  // [kv_heads, kMaxTiers] tokens before; nullptr: none
  const Tier* tiers = nullptr;            // [kv_heads, first + tokens]
  const float* scores = nullptr;          // [kv_heads, first + tokens] or nullptr
  std::uint64_t* saturated = nullptr;     // [width]
  Parallel parallel;
};

// One head of an append: carry out `plan`, then put the new token into the ring, and drafts behind.
struct AppendUnit {
  HeadView view;  // before the step
  HeadState* state = nullptr;
  HeadPlan plan;
  TierRule rule;               // of a cadence step
  std::uint32_t sequence = 0;  // row of k and v
  std::uint32_t kv_head = 0;
  std::uint32_t drafts = 0;  // rows behind the new token
  bool stored = false;       // the new token is an accepted draft and lies in the ring already
  const PlanMove* replay = nullptr;  // moves of this head instead of the rule; nullptr: none
  std::uint32_t replay_count = 0;
  std::uint32_t demoted = 0;  // out: what was done
  std::uint32_t dropped = 0;
};

struct AppendCall {
  AppendUnit* units = nullptr;
  std::uint32_t unit_count = 0;
  RowsView k;
  RowsView v;
  std::uint64_t* saturated = nullptr;  // [width]
  Parallel parallel;
};

struct MergePart {
  RowsView out;                // [1, rows, q_heads, head_dim_v]
  const float* lse = nullptr;  // [rows, q_heads]
  bool lse_base_2 = false;
};

struct MergeCall {
  const MergePart* parts = nullptr;
  std::uint32_t part_count = 0;
  std::uint32_t rows = 0;
  std::uint32_t q_heads = 0;
  std::uint32_t head_dim_v = 0;
  const float* sink_logits = nullptr;
  MutableRowsView out;
  float* lse = nullptr;
  bool lse_base_2 = false;
};

// Everything the library needs of a machine. At most 16 entries.
struct Backend {
  const char* name;
  const char* (*target)();  // instruction set in use
  std::uint64_t (*attention_workspace)(const AttentionShape&);
  void (*attention)(const AttentionCall&);
  std::uint64_t (*tail_workspace)(const TailShape&);
  void (*tail_scores)(const TailCall&);
  void (*write_prompt)(const WritePromptCall&);
  void (*append)(const AppendCall&);
  void (*merge)(const MergeCall&);
  std::int64_t (*find_bad_value)(const RowsView& rows,
                                 std::uint32_t sequences,
                                 std::uint32_t tokens,
                                 std::uint32_t heads,
                                 std::uint32_t dim,
                                 float limit);
};

const Backend& cpu_backend();

}  // namespace quire
