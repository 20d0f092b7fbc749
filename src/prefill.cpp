// A layer of a prompt: scores, plan, pages, records. Its begin and end are in prefill_begin.cpp.
#include <algorithm>
#include <cmath>

#include "quire/pages/head_tokens.hpp"
#include "quire/policy/select.hpp"
#include "src/args.hpp"
#include "src/prefill_control.hpp"
#include "src/prefill_plan.hpp"

namespace quire {
namespace {

struct LayerCall {
  std::int32_t slot = 0;
  std::uint32_t layer = 0;
  std::uint32_t tokens = 0;
  RowsView k;
  RowsView v;
  RowsView q;
  std::uint32_t q_rows = 0;
  const float* lse = nullptr;
  AttentionRule rule;
  const std::uint8_t* plan = nullptr;
  std::uint8_t* plan_out = nullptr;
  Parallel parallel;
};

// Scratch of one layer, carved from the workspace.
struct LayerScratch {
  float* scores = nullptr;
  float* pooled = nullptr;
  Tier* tiers = nullptr;
  Ranked* ranked = nullptr;
  HeadView* views = nullptr;
  std::uint64_t* saturated = nullptr;
};

LayerScratch take_layer_scratch(const Group& group,
                                std::uint64_t tokens,
                                std::uint32_t threads,
                                Arena& arena) {
  LayerScratch scratch;
  scratch.scores = arena.take<float>(group.kv_heads * tokens);
  scratch.pooled = arena.take<float>(group.kv_heads * tokens);
  scratch.tiers = arena.take<Tier>(group.kv_heads * tokens);
  scratch.ranked = arena.take<Ranked>(tokens);
  scratch.views = arena.take<HeadView>(group.kv_heads);
  scratch.saturated = arena.take<std::uint64_t>(threads);
  return scratch;
}

// Rows of queries that score the prompt, 0 for policies without scores.
std::uint32_t scoring_rows(const Policy& policy, std::uint32_t tokens) {
  return policy.statistic == Statistic::kNone ? 0 : std::min(policy.tail_queries, tokens);
}

Status check_values(const CacheState& cache, const LayerCall& call) {
  const Group& g = cache.group;
  const float limit = cache.max.saturate ? kMaxSaturating : kHalfMax;
  const char* rule = "finite numbers within +-65504 (or +-3e38 with QUIRE_CACHE_SATURATE)";
  std::int64_t bad =
      cache.backend->find_bad_value(call.k, 1, call.tokens, g.kv_heads, g.dim_k, limit);
  if (bad >= 0) return fail(StatusCode::kBadValue, "k", rule, 0, static_cast<std::uint64_t>(bad));
  bad = cache.backend->find_bad_value(call.v, 1, call.tokens, g.kv_heads, g.dim_v, limit);
  if (bad >= 0) return fail(StatusCode::kBadValue, "v", rule, 0, static_cast<std::uint64_t>(bad));
  if (call.q_rows == 0) return ok_status();
  for (std::uint64_t i = 0; call.lse != nullptr && i < std::uint64_t{call.q_rows} * g.q_heads;
       ++i) {
    const bool empty = call.lse[i] == -__builtin_inff();  // a row that sees no key
    if (!empty && !(std::fabs(call.lse[i]) <= kMaxQuery)) {
      return fail(StatusCode::kBadValue, "lse", "-inf, or finite numbers within +-1e30", 0, i);
    }
  }
  bad = cache.backend->find_bad_value(call.q, 1, call.q_rows, g.q_heads, g.dim_k, kMaxQuery);
  if (bad >= 0) {
    return fail(StatusCode::kBadValue,
                "q",
                "finite numbers within +-1e30",
                0,
                static_cast<std::uint64_t>(bad));
  }
  return ok_status();
}

// fp16 mean of the prompt's rows of every head, unless the offset was given at open.
void write_mean(const RowsView& rows,
                std::uint32_t tokens,
                std::uint32_t head,
                std::uint32_t dim,
                std::uint16_t* out) {
  double sum[kMaxHeadDim] = {};
  CodecEvents counted_elsewhere;
  for (std::uint32_t t = 0; t < tokens; ++t) {
    const std::int64_t at = rows.offset(0, t, head);
    for (std::uint32_t d = 0; d < dim; ++d)
      sum[d] += static_cast<double>(
          saturate_to_half_range(load_as_float(rows.data, rows.dtype, at + d), counted_elsewhere));
  }
  for (std::uint32_t d = 0; d < dim; ++d)
    out[d] = float_to_half(static_cast<float>(sum[d] / tokens));
}

void write_offsets(CacheState& cache, const LayerCall& call) {
  const Group& g = cache.group;
  const Slot& s = cache.slots[call.slot];
  for (std::uint32_t head = 0; head < g.kv_heads; ++head) {
    std::uint8_t* block = cache.ring_block(call.slot, call.layer, head);
    std::uint16_t* k = k_offset_of(g.ring, block);
    std::uint16_t* v = v_offset_of(g.ring, block);
    if (k != nullptr && !s.given_k_offset) write_mean(call.k, call.tokens, head, g.dim_k, k);
    if (v != nullptr && !s.given_v_offset) write_mean(call.v, call.tokens, head, g.dim_v, v);
  }
}

PromptScores score_layer(CacheState& cache,
                         const LayerCall& call,
                         const LayerScratch& scratch,
                         Workspace rest) {
  const Policy& policy = cache.slots[call.slot].policy;
  const std::uint32_t rows = scoring_rows(policy, call.tokens);
  if (rows == 0) return {};
  TailCall tail;
  tail.k = call.k;
  tail.q = call.q;
  // The engine may hand in more rows than the policy scores with: the last ones count.
  const std::uint32_t skip = call.q_rows - rows;
  const auto* bytes = static_cast<const std::uint8_t*>(call.q.data);
  tail.q.data =
      bytes + call.q.offset(0, skip, 0) * static_cast<std::int64_t>(dtype_bytes(call.q.dtype));
  tail.lse = call.lse == nullptr ? nullptr : call.lse + std::uint64_t{skip} * cache.group.q_heads;
  tail.tokens = call.tokens;
  tail.q_rows = rows;
  tail.kv_heads = cache.group.kv_heads;
  tail.group = cache.group.group;
  tail.head_dim = cache.group.dim_k;
  tail.rule = call.rule;
  tail.statistic = policy.statistic;
  tail.pool = policy.pool;
  tail.pool_width = policy.pool_width;
  tail.scores = scratch.scores;
  tail.pooled = policy.pool == PoolKind::kNone ? nullptr : scratch.pooled;
  tail.workspace = rest;
  tail.parallel = call.parallel;
  cache.backend->tail_scores(tail);
  return {scratch.scores, tail.pooled == nullptr ? scratch.scores : scratch.pooled};
}

// Pages for the planned tokens of one head, from the prompt's credit.
void take_head_pages(CacheState& cache,
                     const LayerCall& call,
                     std::uint32_t head,
                     const Tier* tiers) {
  const Group& g = cache.group;
  Slot& s = cache.slots[call.slot];
  HeadState& state = cache.head_state(call.slot, call.layer, head);
  const std::uint32_t none[kMaxTiers] = {};
  for (std::uint32_t t = 0; t < call.tokens; ++t) {
    if (static_cast<std::uint32_t>(tiers[t]) < g.layout.tier_count)
      ++state.tokens[static_cast<std::uint32_t>(tiers[t])];
  }
  cache.add_tier_tokens(s, none, state.tokens);
  for (std::uint32_t tier = 0; tier < g.layout.tier_count; ++tier) {
    const std::uint32_t pages = ceil_div(state.tokens[tier], g.layout.tier[tier].tokens);
    for (std::uint32_t i = 0; i < pages; ++i) {
      cache.set_credit(s, s.credit - 1);
      cache.enter_page(
          call.slot, cache.row(call.slot, call.layer, head), tier, PageId{cache.free_pages.take()});
    }
  }
}

void store_layer(CacheState& cache,
                 const LayerCall& call,
                 const LayerScratch& scratch,
                 const PromptScores& scores) {
  const Group& g = cache.group;
  for (std::uint32_t head = 0; head < g.kv_heads; ++head) {
    take_head_pages(cache, call, head, scratch.tiers + std::uint64_t{head} * call.tokens);
    scratch.views[head] =
        cache.view(call.slot, call.layer, head, static_cast<std::int32_t>(call.tokens));
  }
  WritePromptCall write;
  write.k = call.k;
  write.v = call.v;
  write.tokens = call.tokens;
  write.kv_heads = g.kv_heads;
  write.views = scratch.views;
  write.tiers = scratch.tiers;
  write.scores = scores.scores;
  write.saturated = scratch.saturated;
  write.parallel = call.parallel;
  std::fill(scratch.saturated, scratch.saturated + cache.max.threads, 0);
  cache.backend->write_prompt(write);
  for (std::uint32_t i = 0; i < cache.max.threads; ++i) {
    cache.counters.saturated.fetch_add(scratch.saturated[i], std::memory_order_relaxed);
  }
  std::uint64_t dropped = 0;
  for (std::uint64_t i = 0; i < std::uint64_t{g.kv_heads} * call.tokens; ++i) {
    dropped += scratch.tiers[i] == Tier::kDropped ? 1 : 0;
  }
  cache.counters.dropped.fetch_add(dropped, std::memory_order_relaxed);
}

Status prefill_layer(CacheState& cache, const LayerCall& call) {
  const Group& g = cache.group;
  Slot& s = cache.slots[call.slot];
  Arena arena(cache.workspace);
  const LayerScratch scratch = take_layer_scratch(g, call.tokens, cache.max.threads, arena);
  if (call.plan != nullptr)
    QUIRE_TRY(take_plan(cache, call.slot, call.tokens, call.plan, scratch.tiers));
  QUIRE_TRY(check_values(cache, call));
  // Nothing can fail from here on.
  const std::uint64_t credit_before = s.credit;
  const PromptScores scores = score_layer(cache, call, scratch, arena.rest());
  write_offsets(cache, call);
  s.ends = PromptEnds{};
  if (call.plan == nullptr) {
    plan_prompt(cache, call.slot, call.layer, call.tokens, scores, scratch.ranked, scratch.tiers);
  }
  s.ends.add(static_cast<std::int32_t>(call.tokens));
  store_layer(cache, call, scratch, scores);
  if (call.plan_out != nullptr) {
    for (std::uint64_t i = 0; i < std::uint64_t{g.kv_heads} * call.tokens; ++i) {
      call.plan_out[i] = static_cast<std::uint8_t>(scratch.tiers[i]);
    }
  }
  ++s.next_layer;
  if (s.policy.has_controller()) {
    control_prompt(cache, call.slot, call.layer, call.tokens);
  } else {  // give back what this layer did not need of its share
    const std::uint64_t share = credit_before / (g.layers - call.layer);
    cache.set_credit(s, credit_before - share);
  }
  return ok_status();
}

// `layer` is that of the group.
Status read_layer_args(const CacheState& cache,
                       std::uint32_t layer,
                       const quire_prefill_layer_args& a,
                       LayerCall& call) {
  const Group& g = cache.group;
  QUIRE_TRY(find_slot(cache, a.slot, state_bit(SeqState::kPrefill), "slot"));
  const Slot& s = cache.slots[a.slot];
  call.slot = a.slot;
  call.layer = layer;
  call.tokens = static_cast<std::uint32_t>(s.prompt_tokens);
  if (layer != s.next_layer) {
    const std::uint32_t next = s.next_layer < g.layers ? cache.layer_ids[s.next_layer] : g.layers;
    return fail(StatusCode::kBadState, "layer", "layers of a prompt in order", next, a.layer);
  }
  QUIRE_TRY(read_rows(a.k, "k", {call.tokens, g.kv_heads, g.dim_k}, call.k));
  QUIRE_TRY(read_rows(a.v, "v", {call.tokens, g.kv_heads, g.dim_v}, call.v));
  const std::uint32_t rows = scoring_rows(s.policy, call.tokens);
  if (rows > 0) {
    if (a.q_rows < rows || a.q_rows > call.tokens) {
      return invalid("q_rows", "from min(tail_queries, tokens) to tokens", rows, a.q_rows);
    }
    call.q_rows = a.q_rows;
    QUIRE_TRY(read_rows(a.q, "q", {a.q_rows, g.q_heads, g.dim_k}, call.q));
  }
  call.lse = a.lse;
  QUIRE_TRY(read_rule(a.rule, g.dim_k, g.q_heads, call.rule));
  if (call.rule.sliding_window == 0)
    call.rule.sliding_window = static_cast<std::int32_t>(g.sliding_window);
  call.plan = a.plan;
  call.plan_out = a.plan_out;
  return read_parallel(a.parallel, cache.max.threads, call.parallel);
}

}  // namespace

std::uint64_t prefill_workspace(const Group& group, const Maxima& max, const Backend& backend) {
  Arena arena(Workspace{});
  take_layer_scratch(group, max.tokens, max.threads, arena);
  TailShape tail;
  tail.head_dim = group.dim_k;
  tail.group = group.group;
  tail.width = std::min(max.threads, group.kv_heads);
  tail.tokens = max.tokens;
  tail.q_rows = max.tokens;
  return arena.used() + backend.tail_workspace(tail);
}

}  // namespace quire

using quire::Status;

extern "C" quire_status quire_prefill_layer(quire_cache* cache,
                                            const quire_prefill_layer_args* args) {
  return quire::guarded(quire::error_of(args), [&]() -> Status {
    if (cache == nullptr) return quire::invalid("cache", "not NULL");
    quire_prefill_layer_args a;
    QUIRE_TRY(quire::read_args(args, "args", 0, a));
    quire::CacheState* state = nullptr;
    std::uint32_t layer = 0;
    quire::LayerCall call;
    QUIRE_TRY(
        quire::find_slot(*cache, a.slot, quire::state_bit(quire::SeqState::kPrefill), "slot"));
    QUIRE_TRY(quire::find_layer(*cache, a.layer, state, layer));
    QUIRE_TRY(quire::read_layer_args(*state, layer, a, call));
    return quire::prefill_layer(*state, call);
  });
}
