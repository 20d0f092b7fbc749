// One layer of a round: scores, plan, pages, records.
#include <algorithm>
#include <cmath>

#include "quire/policy/select.hpp"
#include "src/args.hpp"
#include "src/prefill_control.hpp"
#include "src/prefill_plan.hpp"
#include "src/retier.hpp"

namespace quire {
namespace {

struct LayerCall {
  PromptRound round;
  std::uint32_t layer = 0;
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
  std::uint32_t* stored = nullptr;  // [kv_heads, kMaxTiers]
  std::uint64_t* saturated = nullptr;
};

LayerScratch take_layer_scratch(const Group& group,
                                std::uint64_t length,
                                std::uint32_t threads,
                                Arena& arena) {
  LayerScratch scratch;
  scratch.scores = arena.take<float>(group.kv_heads * length);
  scratch.pooled = arena.take<float>(group.kv_heads * length);
  scratch.tiers = arena.take<Tier>(group.kv_heads * length);
  scratch.ranked = arena.take<Ranked>(length);
  scratch.views = arena.take<HeadView>(group.kv_heads);
  scratch.stored = arena.take<std::uint32_t>(group.kv_heads * kMaxTiers);
  scratch.saturated = arena.take<std::uint64_t>(threads);
  return scratch;
}

Status check_values(const CacheState& cache, const LayerCall& call) {
  const Group& g = cache.group;
  const float limit = cache.max.saturate ? kMaxSaturating : kHalfMax;
  const char* rule = "finite numbers within +-65504 (or +-3e38 with QUIRE_CACHE_SATURATE)";
  std::int64_t bad =
      cache.backend->find_bad_value(call.k, 1, call.round.tokens, g.kv_heads, g.dim_k, limit);
  if (bad >= 0) return fail(StatusCode::kBadValue, "k", rule, 0, static_cast<std::uint64_t>(bad));
  bad = cache.backend->find_bad_value(call.v, 1, call.round.tokens, g.kv_heads, g.dim_v, limit);
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

// Of the first round on an empty sequence; later ones keep them.
void write_offsets(CacheState& cache, const LayerCall& call) {
  const Group& g = cache.group;
  const Slot& s = cache.slots[call.round.slot];
  const std::uint32_t tokens = call.round.tokens;
  if (call.round.first != 0) return;
  for (std::uint32_t head = 0; head < g.kv_heads; ++head) {
    std::uint8_t* block = cache.ring_block(call.round.slot, call.layer, head);
    std::uint16_t* k = k_offset_of(g.ring, block);
    std::uint16_t* v = v_offset_of(g.ring, block);
    if (k != nullptr && !s.given_k_offset) write_mean(call.k, tokens, head, g.dim_k, k);
    if (v != nullptr && !s.given_v_offset) write_mean(call.v, tokens, head, g.dim_v, v);
  }
}

// What the scored queries gave, on top of the stored scores. All queries of a prompt count for the
// tokens before it (query_count), so there the scored ones stand for all of them.
void add_to_stored(const HeadView& view,
                   const PromptRound& round,
                   std::uint32_t rows,
                   float* scores,
                   float* pooled) {
  const float all = static_cast<float>(round.prompt_tokens()) / static_cast<float>(rows);
  for (std::uint32_t i = 0; i < view.segment_count(); ++i) {
    const Segment s = view.segment(i);
    if (!s.layout->fields.score) continue;
    float* stored = score_array(*s.layout, s.base) + s.first;
    const bool frozen = view.is_frozen(s);
    for (std::uint32_t t = 0; t < s.count; ++t) {
      const std::int32_t p = s.position(t);
      const bool before = static_cast<std::uint32_t>(p) < round.begin;
      const float factor = frozen ? 0.0f : (before ? all : 1.0f);
      if (pooled != nullptr) pooled[p] = stored[t] + factor * pooled[p];
      scores[p] = stored[t] + factor * scores[p];
      stored[t] = scores[p];
    }
  }
}

TailCall tail_call(const CacheState& cache,
                   const LayerCall& call,
                   const LayerScratch& scratch,
                   std::uint32_t rows) {
  const Policy& policy = cache.slots[call.round.slot].policy;
  TailCall tail;
  tail.k = call.k;
  tail.first = call.round.first;
  tail.held = call.round.first == 0 ? nullptr : scratch.views;
  tail.q = call.q;
  // The engine may hand in more rows than the policy scores with: the last ones count.
  const std::uint32_t skip = call.q_rows - rows;
  const auto* bytes = static_cast<const std::uint8_t*>(call.q.data);
  tail.q.data =
      bytes + call.q.offset(0, skip, 0) * static_cast<std::int64_t>(dtype_bytes(call.q.dtype));
  tail.lse = call.lse == nullptr ? nullptr : call.lse + std::uint64_t{skip} * cache.group.q_heads;
  tail.tokens = call.round.tokens;
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
  tail.parallel = call.parallel;
  return tail;
}

PromptScores score_layer(CacheState& cache,
                         const LayerCall& call,
                         const LayerScratch& scratch,
                         Workspace rest) {
  const std::uint32_t rows = scoring_rows(cache.slots[call.round.slot].policy, call.round);
  if (rows == 0) return {};
  for (std::uint32_t head = 0; head < cache.group.kv_heads; ++head) {
    scratch.views[head] =
        cache.view(call.round.slot, call.layer, head, static_cast<std::int32_t>(call.round.first));
  }
  TailCall tail = tail_call(cache, call, scratch, rows);
  tail.workspace = rest;
  cache.backend->tail_scores(tail);
  for (std::uint32_t head = 0; head < cache.group.kv_heads; ++head) {
    const std::uint64_t at = std::uint64_t{head} * call.round.length();
    float* pooled = tail.pooled == nullptr ? nullptr : tail.pooled + at;
    add_to_stored(scratch.views[head], call.round, rows, scratch.scores + at, pooled);
  }
  return {scratch.scores, tail.pooled == nullptr ? scratch.scores : scratch.pooled};
}

// The plan of one head: what was stored moves down, then pages for the tokens that enter, from the
// credit of the round.
void make_room(CacheState& cache,
               const LayerCall& call,
               std::uint32_t head,
               const Tier* tiers,
               std::uint32_t* stored) {
  const Group& g = cache.group;
  const std::int32_t slot = call.round.slot;
  const std::uint64_t row = cache.row(slot, call.layer, head);
  HeadState& state = cache.head_states[row];
  if (call.round.first > 0 && !call.round.more) {
    const auto length = static_cast<std::int32_t>(call.round.first);
    retier_promised(
        cache, slot, row, cache.view(slot, call.layer, head, length), PlannedTiers{tiers});
  }
  std::copy(state.tokens, state.tokens + kMaxTiers, stored);
  std::uint64_t dropped = 0;
  const Entering in = entering(cache, call.round);
  for (std::uint32_t p = in.first; p < in.last; ++p) {
    const auto tier = static_cast<std::uint32_t>(tiers[p]);
    if (tier < g.layout.tier_count) ++state.tokens[tier];
    dropped += tiers[p] == Tier::kDropped ? 1 : 0;
  }
  cache.add_tier_tokens(cache.slots[slot], stored, state.tokens);
  cache.counters.dropped.fetch_add(dropped, std::memory_order_relaxed);
  for (std::uint32_t tier = 0; tier < g.layout.tier_count; ++tier) {
    const std::uint32_t pages = ceil_div(state.tokens[tier], g.layout.tier[tier].tokens);
    while (state.pages[tier] < pages) take_promised_page(cache, slot, row, tier);
  }
  state.lowest_length = -1;
}

void store_layer(CacheState& cache,
                 const LayerCall& call,
                 const LayerScratch& scratch,
                 const PromptScores& scores) {
  const Group& g = cache.group;
  const PromptRound& round = call.round;
  for (std::uint32_t head = 0; head < g.kv_heads; ++head) {
    make_room(cache,
              call,
              head,
              scratch.tiers + std::uint64_t{head} * round.length(),
              scratch.stored + std::uint64_t{head} * kMaxTiers);
    scratch.views[head] =
        cache.view(round.slot, call.layer, head, static_cast<std::int32_t>(round.length()));
  }
  WritePromptCall write;
  write.k = call.k;
  write.v = call.v;
  write.tokens = round.tokens;
  write.first = round.first;
  write.leaving = std::min(entering(cache, round).first, round.first);
  write.kv_heads = g.kv_heads;
  write.views = scratch.views;
  write.stored = scratch.stored;
  write.tiers = scratch.tiers;
  write.scores = scores.scores;
  write.saturated = scratch.saturated;
  write.parallel = call.parallel;
  std::fill(scratch.saturated, scratch.saturated + cache.max.threads, 0);
  cache.backend->write_prompt(write);
  for (std::uint32_t i = 0; i < cache.max.threads; ++i) {
    cache.counters.saturated.fetch_add(scratch.saturated[i], std::memory_order_relaxed);
  }
}

// Before the first layer of a prompt's last round is planned.
void start_plan(Slot& s, const PromptRound& round) {
  s.ends.add(static_cast<std::int32_t>(round.length()), static_cast<std::int32_t>(round.begin));
  s.factor = initial_factor(s.policy);
}

Status prefill_layer(CacheState& cache, const LayerCall& call) {
  const Group& g = cache.group;
  const PromptRound& round = call.round;
  Slot& s = cache.slots[round.slot];
  Arena arena(cache.workspace);
  const LayerScratch scratch = take_layer_scratch(g, round.length(), cache.max.threads, arena);
  if (call.plan != nullptr) QUIRE_TRY(take_plan(cache, round, call.plan, scratch.tiers));
  QUIRE_TRY(check_values(cache, call));
  // Nothing can fail from here on.
  if (call.plan != nullptr) s.replanned = true;
  const std::uint64_t left = s.credit - layer_share(cache, round);
  if (s.next_layer == 0 && !round.more) start_plan(s, round);
  const PromptScores scores = score_layer(cache, call, scratch, arena.rest());
  write_offsets(cache, call);
  if (call.plan == nullptr)
    plan_prompt(cache, round, call.layer, scores, scratch.ranked, scratch.tiers);
  store_layer(cache, call, scratch, scores);
  if (call.plan_out != nullptr) {
    for (std::uint64_t i = 0; i < std::uint64_t{g.kv_heads} * round.length(); ++i)
      call.plan_out[i] = static_cast<std::uint8_t>(scratch.tiers[i]);
  }
  ++s.next_layer;
  if (s.policy.has_controller() && !round.more) {
    control_prompt(cache, round.slot, call.layer, static_cast<std::int32_t>(round.length()));
  } else {  // give back what this layer did not need of its share
    cache.set_credit(s, left);
  }
  return ok_status();
}

// `layer` is that of the group.
Status read_layer_args(const CacheState& cache,
                       std::uint32_t layer,
                       const quire_prefill_layer_args& a,
                       LayerCall& call) {
  const Group& g = cache.group;
  const Slot& s = cache.slots[a.slot];
  call.round = open_round(cache, a.slot);
  call.layer = layer;
  if (layer != s.next_layer) {
    const std::uint32_t next = s.next_layer < g.layers ? cache.layer_ids[s.next_layer] : g.layers;
    return fail(StatusCode::kBadState, "layer", "layers of a prompt in order", next, a.layer);
  }
  QUIRE_TRY(read_rows(a.k, "k", {call.round.tokens, g.kv_heads, g.dim_k}, call.k));
  QUIRE_TRY(read_rows(a.v, "v", {call.round.tokens, g.kv_heads, g.dim_v}, call.v));
  const std::uint32_t rows = scoring_rows(s.policy, call.round);
  if (rows > 0) {
    if (a.q_rows < rows || a.q_rows > call.round.prompt_tokens()) {
      return invalid(
          "q_rows", "from min(tail_queries, tokens) to tokens of the prompt", rows, a.q_rows);
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
