// The cache object: memory regions, sequences, and the small operations that all calls share. What
// a call does lives in a file of its own: sequence, prefill, step, attend, replan, inspect.
#pragma once

#include <atomic>
#include <cstdint>

#include "quire/core/status.hpp"
#include "quire/pages/compaction.hpp"
#include "quire/pages/head_state.hpp"
#include "quire/pages/head_view.hpp"
#include "quire/policy/admission.hpp"
#include "quire/policy/policy.hpp"
#include "quire/policy/tiers.hpp"
#include "quire/quire.h"
#include "src/arena.hpp"
#include "src/backend.hpp"

namespace quire {

inline constexpr std::uint32_t kRegionAlign = 128;

// Layers of equal shape and formats, resolved from quire_group_desc.
struct Group {
  std::uint32_t layers = 0;
  std::uint32_t q_heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t group = 1;  // query heads per KV head
  std::uint32_t dim_k = 0;
  std::uint32_t dim_v = 0;
  std::uint32_t sinks = 0;  // most that a policy may ask for
  std::uint32_t window = 0;
  std::uint32_t max_draft = 0;
  std::uint32_t seed = 0;
  std::uint32_t sliding_window = 0;  // 0: none
  PageLayout layout;
  RingLayout ring;
  std::int64_t page_stride = 0;

  std::uint64_t heads() const { return std::uint64_t{layers} * kv_heads; }
};

// Maxima declared at create.
struct Maxima {
  std::uint32_t sequences = 0;
  std::uint32_t batch = 0;
  std::uint32_t tokens = 0;
  std::uint32_t threads = 1;
  std::uint32_t splits = 1;
  std::uint64_t pages = 0;
  std::uint32_t directory_length = 0;  // chunks in a row
  std::uint64_t chunks = 0;
  bool saturate = false;
  bool sharing = false;  // pages may be held by several sequences

  std::uint64_t rows(const Group& group) const { return std::uint64_t{sequences} * group.heads(); }
};

enum class SeqState : std::uint32_t {
  kClosed = 0,
  kOpen = 1,
  kPrefill = 2,
  kStep = 3,
  kDraft = 4,
  kBroken = 5,
  kFrozen = 6
};

// What a sequence has to do with prefix handles. Kept in the first layer group.
struct PrefixState {
  std::uint64_t identity[2] = {};  // of a handle
  std::uint64_t serial = 0;        // of a handle, never given twice; 0: no handle
  std::uint64_t used_at = 0;       // of a handle, on the cache's clock
  std::uint32_t readers = 0;       // of a handle: open sequences that came from it
  std::int32_t origin = -1;        // of a reader: the handle's slot, as long as the serial is
  std::uint64_t origin_serial = 0;
};

// One sequence.
struct Slot {
  SeqState state = SeqState::kClosed;
  std::int32_t tokens = 0;         // committed
  std::int32_t prompt_tokens = 0;  // of the open or last round of a prompt
  std::uint32_t next_layer = 0;    // of the open prompt
  std::int32_t unfinished = -1;    // first token of a prompt whose last round is to come
  bool more = false;               // the open round is not its prompt's last
  Policy policy;
  RingShape shape;
  PromptEnds ends;
  float factor = 1.0f;             // on the thresholds, found by the controller
  std::int32_t controlled_at = 0;  // length at the controller's last run
  bool given_k_offset = false;
  bool given_v_offset = false;
  std::uint32_t drafts = 0;    // rows behind the last token that wait for accept
  DraftTree tree;              // of those rows
  std::uint32_t unscored = 0;  // tokens since the last scored query that were not scored themselves
  std::uint64_t credit = 0;    // pages promised to the open prompt or to drafts
  bool replanned = false;  // holds what its own policy and thresholds have not planned: a caller's
                           // plan, a cut, the tokens of a parent with other thresholds
  PrefixState prefix;
  std::uint64_t live_pages = 0;
  std::uint64_t chunks = 0;
  std::uint64_t tier_tokens[kMaxTiers] = {};
};

// Before its first run the byte controller lets everything stay high.
inline float initial_factor(const Policy& policy) { return policy.has_controller() ? 0.0f : 1.0f; }

// Due at the first step, should there be no prompt.
inline std::int32_t initial_control(const Policy& policy) {
  return -static_cast<std::int32_t>(policy.has_controller() ? policy.cadence : 0);
}

// Numbers that any thread may read.
struct Counters {
  std::atomic<std::uint64_t> sequences{0};
  std::atomic<std::uint64_t> handles{0};
  std::atomic<std::uint64_t> live_pages{0};
  std::atomic<std::uint64_t> shared_pages{0};
  std::atomic<std::uint64_t> promised{0};
  std::atomic<std::uint64_t> chunks{0};
  std::atomic<std::uint64_t> tier_tokens[kMaxTiers]{};
  std::atomic<std::uint64_t> dropped{0};
  std::atomic<std::uint64_t> demoted{0};
  std::atomic<std::uint64_t> saturated{0};
  std::atomic<std::uint64_t> shortages{0};
  std::atomic<std::uint64_t> steps{0};
};

// One sequence of an open step.
struct StepSlot {
  std::int32_t slot = -1;  // -1: padding
  std::int32_t pad = 0;
  float factor = 1.0f;
  std::uint32_t cadence = 0;  // the controller ran, every token is classified again
  std::uint32_t rows = 1;     // the new token and drafts
  bool branches = false;      // the drafts are a tree
  DraftTree tree;
};

// The open step. Plans live until step_end because append carries them out layer by layer.
struct Step {
  bool open = false;
  std::uint32_t batch = 0;
  std::uint32_t rows = 1;  // of the caller's arrays, per sequence
  std::uint32_t layers_done = 0;
  StepSlot* slots = nullptr;         // [max_batch]
  HeadPlan* plans = nullptr;         // [max_batch, layers, kv_heads]
  std::uint8_t* appended = nullptr;  // [layers]
  std::uint8_t* scored = nullptr;    // [layers]
  const PlanMove* replay = nullptr;
  std::uint64_t replay_count = 0;
};

inline constexpr std::uint32_t kMaxLayerGroups = 8;

// One layer group of a cache: its pool, tables and rings, and its part of every sequence.
struct CacheState {
  Group group;
  Maxima max;
  std::uint32_t* layer_ids = nullptr;  // [layers] as calls name them
  const Backend* backend = nullptr;
  FreeList free_pages;
  std::uint32_t* page_holders = nullptr;  // [pages] rows that hold a page; nullptr without sharing
  PageTable table;
  HeadState* head_states = nullptr;  // [sequences, layers, kv_heads]
  std::uint8_t* rings = nullptr;     // [sequences, layers, kv_heads] blocks
  PageSpace space;
  Slot* slots = nullptr;  // [sequences]
  Step step;
  std::uint64_t credit = 0;  // pages promised to open prompts
  Workspace workspace;
  Counters counters;
  std::uint64_t fault_countdown = 0;  // tests: the n-th reservation check fails; 0: off

  std::uint64_t row(std::int32_t slot, std::uint32_t layer, std::uint32_t head) const {
    return (std::uint64_t(slot) * group.layers + layer) * group.kv_heads + head;
  }
  HeadState& head_state(std::int32_t slot, std::uint32_t layer, std::uint32_t head) const {
    return head_states[row(slot, layer, head)];
  }
  std::uint8_t* ring_block(std::int32_t slot, std::uint32_t layer, std::uint32_t head) const {
    return rings + row(slot, layer, head) * group.ring.bytes;
  }
  HeadPlan& plan(std::uint32_t index, std::uint32_t layer, std::uint32_t head) const {
    return step.plans[(std::uint64_t{index} * group.layers + layer) * group.kv_heads + head];
  }

  // What is stored of one head when the sequence has `length` tokens.
  HeadView view(std::int32_t slot,
                std::uint32_t layer,
                std::uint32_t head,
                std::int32_t length) const;

  // The rule that turns scores of one head into tiers when `length` tokens have been queries.
  TierRule rule(std::int32_t slot,
                std::uint32_t layer,
                std::uint32_t head,
                std::int32_t length,
                float factor) const;

  AdmissionShape admission(const Policy& policy) const;

  // Pages of a row. enter_page puts a page of its own at the end of a tier, share_pages the first
  // ones of another row; shrink cuts a tier down to `keep` pages and returns how many became free.
  void enter_page(std::int32_t slot, std::uint64_t row, std::uint32_t tier, PageId page);
  void share_pages(std::int32_t slot,
                   std::uint64_t from,
                   std::uint64_t to,
                   std::uint32_t tier,
                   std::uint32_t count);
  std::uint32_t shrink(std::int32_t slot,
                       std::uint64_t row,
                       std::uint32_t tier,
                       std::uint32_t keep);

  // A copy of a page that other rows hold takes its place in this row.
  void own_page(std::uint64_t row, std::uint32_t tier, std::uint32_t index);

  // Forgets of a sequence's shared pages those that nobody else holds any more.
  void refresh_shared(std::int32_t slot);

  // Both tiers of a head to what its tokens need; returns the pages that went back.
  std::uint32_t release_empty(std::int32_t slot, std::uint64_t row);

  // All pages of all heads.
  void release_all(std::int32_t slot);

  // Pages needed against pages free beside promises. Counts a shortage when it refuses.
  Status reserve(std::uint64_t needed);

  void set_credit(Slot& slot, std::uint64_t pages);
  void add_tier_tokens(Slot& slot, const std::uint32_t* before, const std::uint32_t* after);

 private:
  void append_pages(std::int32_t slot,
                    std::uint64_t row,
                    std::uint32_t tier,
                    const PageId* pages,
                    std::uint32_t count);
  bool let_go(PageId page);
};

// The slot, if it is open in one of the allowed states (bits 1 << state).
Status find_slot(const CacheState& cache,
                 std::int32_t slot,
                 std::uint32_t allowed_states,
                 const char* name);

constexpr std::uint32_t state_bit(SeqState state) {
  return 1u << static_cast<std::uint32_t>(state);
}

// Bytes of workspace that the largest call needs.
std::uint64_t workspace_bytes(const Group& group, const Maxima& max, const Backend& backend);

// Of it, what attention needs.
std::uint64_t attend_workspace(const Group& group, const Maxima& max, const Backend& backend);

AttentionShape attention_shape(const Group& group, const Maxima& max);

}  // namespace quire

// Where a layer is.
struct quire_layer_place {
  std::uint32_t group;
  std::uint32_t layer;
};

// A cache is its first layer group, and the others: sequences have the same slot and state in all.
struct quire_cache : quire::CacheState {
  std::uint32_t group_count = 1;
  quire::CacheState* others = nullptr;  // [group_count - 1]
  std::uint32_t layer_count = 0;
  quire_layer_place* layers = nullptr;  // [layer_count] by the number that calls use
  std::uint64_t prefix_clock = 0;       // counts uses of prefix handles

  quire::CacheState& at(std::uint32_t group_index) {
    if (group_index == 0) return *this;
    return others[group_index - 1];
  }
  const quire::CacheState& at(std::uint32_t group_index) const {
    if (group_index == 0) return *this;
    return others[group_index - 1];
  }
};

namespace quire {

// A layer by the number that a call names.
template <class CacheT, class StateT>
Status find_layer(CacheT& cache, std::uint32_t number, StateT*& state, std::uint32_t& layer) {
  if (number >= cache.layer_count)
    return invalid("layer", "below layers (of all groups)", cache.layer_count, number);
  const quire_layer_place place = cache.layers[number];
  state = &cache.at(place.group);
  layer = place.layer;
  return ok_status();
}

// Every layer group in turn, until one fails: check all before the first is changed.
template <class CacheT, class FunctionT>
Status try_groups(CacheT& cache, FunctionT&& function) {
  for (std::uint32_t i = 0; i < cache.group_count; ++i) QUIRE_TRY(function(cache.at(i)));
  return ok_status();
}

template <class CacheT, class FunctionT>
void for_groups(CacheT& cache, FunctionT&& function) {
  for (std::uint32_t i = 0; i < cache.group_count; ++i) function(cache.at(i));
}

}  // namespace quire
