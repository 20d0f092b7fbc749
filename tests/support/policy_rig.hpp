// A cache driven through the facade by a Stream, and what its heads hold as plain arrays. Pages and
// rings are zeroed after create, so that the memory of two caches can be compared byte for byte.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "quire/pages/head_tokens.hpp"
#include "quire/quire.hpp"
#include "src/cache.hpp"
#include "support/catch.hpp"
#include "support/policy_stream.hpp"

namespace quire::test {

struct RigSpec {
  quire_policy policy = QUIRE_POLICY_INIT;
  quire_group_desc group = QUIRE_GROUP_DESC_INIT;
  std::uint32_t sequences = 1;
  std::uint32_t max_tokens = 1024;
  std::uint64_t pages = 4000;
  std::uint32_t cache_flags = 0;
  std::uint32_t threads = 0;
  std::vector<quire_threshold> thresholds;

  // A recipe in small pages on a stream's shape.
  RigSpec(std::uint32_t recipe, const StreamShape& shape) {
    REQUIRE(quire_recipe_get(recipe, &policy, &group, nullptr) == QUIRE_OK);
    group.layers = shape.layers;
    group.kv_heads = shape.kv_heads;
    group.q_heads = shape.kv_heads * shape.group;
    group.layout.head_dim_k = group.layout.head_dim_v = shape.dim;
    group.layout.expected_tokens = 64;
  }
  void set_ring(std::uint32_t sinks, std::uint32_t window) {
    policy.sink_tokens = group.sink_tokens = sinks == 0 ? QUIRE_NONE : sinks;
    policy.recent_window = group.recent_window = window == 0 ? QUIRE_NONE : window;
  }
  std::uint32_t sinks() const { return policy.sink_tokens == QUIRE_NONE ? 0 : policy.sink_tokens; }
  std::uint32_t window() const {
    return policy.recent_window == QUIRE_NONE ? 0 : policy.recent_window;
  }
};

struct KeptToken {
  std::int32_t position;
  std::uint32_t tier;  // 0 high, 1 low, 255 ring
  float score;

  friend bool operator==(const KeptToken& a, const KeptToken& b) {
    return a.position == b.position && a.tier == b.tier && a.score == b.score;
  }
};

inline std::ostream& operator<<(std::ostream& out, const KeptToken& t) {
  return out << t.position << ":" << t.tier << ":" << t.score;
}

// Decoded vectors of one head, in the order of quire_gather.
struct DecodedHead {
  std::vector<std::int32_t> positions;
  std::vector<float> keys;
  std::vector<float> values;
};

using MoveList = std::vector<quire_plan_move>;

class Rig {
 public:
  explicit Rig(const RigSpec& rig_spec) : spec(rig_spec) {
    quire_cache_desc desc = QUIRE_CACHE_DESC_INIT;
    desc.max_sequences = spec.sequences;
    desc.max_tokens = spec.max_tokens;
    desc.max_splits = 4;
    desc.pages = spec.pages;
    desc.flags = spec.cache_flags;
    desc.threads = spec.threads;
    desc.groups = &spec.group;
    const Result made = Cache::create(desc, &cache);
    INFO(made.text());
    REQUIRE(made.ok());
    CacheState& s = state();
    std::memset(s.space.base, 0, pool_bytes());
    std::memset(s.rings, 0, ring_bytes());
  }

  std::int32_t open() {
    quire_seq_open_args args = QUIRE_SEQ_OPEN_ARGS_INIT;
    args.policy = &spec.policy;
    args.thresholds = spec.thresholds.data();
    args.threshold_count = spec.thresholds.size();
    std::int32_t slot = -1;
    const Result opened = cache.open(args, &slot);
    INFO(opened.text());
    REQUIRE(opened.ok());
    return slot;
  }

  // plan: [layers, kv_heads, tokens] or nullptr; plan_out likewise.
  Result try_prompt(std::int32_t slot,
                    const Stream& stream,
                    std::uint32_t tokens,
                    const std::uint8_t* plan = nullptr,
                    std::vector<std::uint8_t>* plan_out = nullptr) {
    const Result begun = cache.prefill_begin(slot, tokens);
    if (!begun.ok()) return begun;
    const std::size_t per_layer = std::size_t{spec.group.kv_heads} * tokens;
    if (plan_out != nullptr) plan_out->assign(per_layer * spec.group.layers, 77);
    for (std::uint32_t layer = 0; layer < spec.group.layers; ++layer) {
      quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
      args.slot = slot;
      args.layer = layer;
      args.k = rows_of(stream.k(layer, 0));
      args.v = rows_of(stream.v(layer, 0));
      args.q_rows = std::min(spec.policy.tail_queries, tokens);
      if (args.q_rows > 0) args.q = rows_of(stream.q(layer, tokens - args.q_rows));
      if (plan != nullptr) args.plan = plan + layer * per_layer;
      if (plan_out != nullptr) args.plan_out = plan_out->data() + layer * per_layer;
      const Result stored = cache.prefill_layer(args);
      if (!stored.ok()) return stored;
    }
    return cache.prefill_end(slot);
  }

  void prompt(std::int32_t slot,
              const Stream& stream,
              std::uint32_t tokens,
              const std::uint8_t* plan = nullptr,
              std::vector<std::uint8_t>* plan_out = nullptr) {
    const Result done = try_prompt(slot, stream, tokens, plan, plan_out);
    INFO(done.text());
    REQUIRE(done.ok());
  }

  // Begins a step of one sequence; log: receives its moves, plan: replays them.
  Result begin(std::int32_t slot, MoveList* log = nullptr, const MoveList* plan = nullptr) {
    quire_step_begin_args args = QUIRE_STEP_BEGIN_ARGS_INIT;
    args.slots = &slot;
    args.batch = 1;
    static const quire_plan_move kNone = {};
    if (plan != nullptr) {
      args.plan = plan->empty() ? &kNone : plan->data();
      args.plan_count = plan->size();
    }
    std::uint64_t made = 0;
    if (log != nullptr) {
      log->assign(8192, quire_plan_move{});
      args.plan_out = log->data();
      args.plan_capacity = log->size();
      args.plan_out_count = &made;
    }
    const Result begun = cache.step_begin(args);
    if (log != nullptr) {
      REQUIRE(made <= log->size());
      log->resize(made);
    }
    return begun;
  }

  // Appends a token to one layer of an open step; rows of the batch come one after another.
  void append(std::uint32_t layer, const float* k, const float* v) {
    quire_append_args args = QUIRE_APPEND_ARGS_INIT;
    args.layer = layer;
    args.k = rows_of(k);
    args.v = rows_of(v);
    const Result done = cache.append(args);
    INFO(done.text());
    REQUIRE(done.ok());
  }

  // Output [batch, q_heads, dim].
  std::vector<float> attend(std::uint32_t layer,
                            const float* q,
                            std::uint32_t batch = 1,
                            std::uint32_t splits = 1) {
    std::vector<float> out(std::size_t{batch} * spec.group.q_heads * spec.group.layout.head_dim_v);
    quire_attention_args args = QUIRE_ATTENTION_ARGS_INIT;
    args.layer = layer;
    args.q = rows_of(q);
    args.out = rows_of(out.data());
    args.splits = splits;
    const Result done = cache.attention(args);
    INFO(done.text());
    REQUIRE(done.ok());
    return out;
  }

  // One whole step of one sequence; returns the outputs of all layers.
  std::vector<float> step(std::int32_t slot,
                          const Stream& stream,
                          std::uint32_t token,
                          MoveList* log = nullptr,
                          const MoveList* plan = nullptr) {
    const Result begun = begin(slot, log, plan);
    INFO(begun.text());
    REQUIRE(begun.ok());
    std::vector<float> all;
    for (std::uint32_t layer = 0; layer < spec.group.layers; ++layer) {
      append(layer, stream.k(layer, token), stream.v(layer, token));
      const std::vector<float> out = attend(layer, stream.q(layer, token));
      all.insert(all.end(), out.begin(), out.end());
    }
    REQUIRE(cache.step_end().ok());
    return all;
  }

  // What a head retains, by position.
  std::vector<KeptToken> kept(std::int32_t slot, std::uint32_t layer, std::uint32_t head) const {
    std::uint32_t count = 0;
    std::vector<std::int32_t> positions(spec.max_tokens + 1);
    std::vector<std::uint8_t> tiers(positions.size());
    std::vector<float> scores(positions.size());
    quire_query_args args = QUIRE_QUERY_ARGS_INIT;
    args.slot = slot;
    args.layer = layer;
    args.head = head;
    args.capacity = static_cast<std::uint32_t>(positions.size());
    args.positions = positions.data();
    args.tiers = tiers.data();
    args.scores = scores.data();
    args.count = &count;
    REQUIRE(cache.query(args).ok());
    std::vector<KeptToken> all;
    for (std::uint32_t i = 0; i < count; ++i) all.push_back({positions[i], tiers[i], scores[i]});
    std::sort(all.begin(), all.end(), [](const KeptToken& a, const KeptToken& b) {
      return a.position < b.position;
    });
    return all;
  }

  DecodedHead gather(std::int32_t slot, std::uint32_t layer, std::uint32_t head) const {
    std::uint32_t count = 0;
    const std::uint32_t room = spec.max_tokens + 1;
    const std::uint32_t dim = spec.group.layout.head_dim_k;
    DecodedHead decoded;
    decoded.positions.resize(room);
    decoded.keys.resize(std::size_t{room} * dim);
    decoded.values.resize(std::size_t{room} * dim);
    quire_gather_args args = QUIRE_GATHER_ARGS_INIT;
    args.slot = slot;
    args.layer = layer;
    args.head = head;
    args.capacity = room;
    args.k = rows_of(decoded.keys.data());
    args.v = rows_of(decoded.values.data());
    args.positions = decoded.positions.data();
    args.count = &count;
    REQUIRE(cache.gather(args).ok());
    decoded.positions.resize(count);
    decoded.keys.resize(std::size_t{count} * dim);
    decoded.values.resize(std::size_t{count} * dim);
    return decoded;
  }

  // Internals, for planted scores and byte comparisons.
  CacheState& state() const { return *cache.get(); }
  HeadView view(std::int32_t slot, std::uint32_t layer, std::uint32_t head) const {
    return state().view(slot, layer, head, state().slots[slot].tokens);
  }
  std::size_t pool_bytes() const {
    return (state().max.pages - 1) * static_cast<std::size_t>(state().group.page_stride) +
           state().group.layout.page_bytes;
  }
  std::size_t ring_bytes() const {
    return state().max.rows(state().group) * state().group.ring.bytes;
  }

  // Every stored record of a sequence: codes, metadata, score, position; heads in order, tokens in
  // the order of their segments, wherever their pages lie.
  std::vector<std::uint8_t> records(std::int32_t slot) const {
    std::vector<std::uint8_t> all;
    const auto add = [&](const void* data, std::size_t bytes) {
      const auto* first = static_cast<const std::uint8_t*>(data);
      all.insert(all.end(), first, first + bytes);
    };
    const auto add_vector = [&](const VectorFormat& f, std::uint32_t dim, const VectorSlot& v) {
      for (std::uint32_t p = 0; p < 2; ++p) add(v.row.plane[p], plane_bytes(f, dim, p));
      for (std::uint32_t m = 0; m < meta_count(f, dim); ++m) add(v.meta + m * v.meta_stride, 2);
    };
    for (std::uint32_t h = 0; h < spec.group.layers * spec.group.kv_heads; ++h) {
      const HeadView v = view(slot, h / spec.group.kv_heads, h % spec.group.kv_heads);
      for (std::uint32_t i = 0; i < v.segment_count(); ++i) {
        const Segment s = v.segment(i);
        for (std::uint32_t t = s.first; t < s.first + s.count; ++t) {
          const TokenPlace place = {s.layout, s.base, t};
          const float score = place.score();
          const std::int32_t position = s.position(t - s.first);
          add_vector(s.layout->format.k, s.layout->head_dim_k, place.k());
          add_vector(s.layout->format.v, s.layout->head_dim_v, place.v());
          add(&score, sizeof(score));
          add(&position, sizeof(position));
        }
      }
    }
    return all;
  }

  // score_of(layer, head, position, tier; 2 is the ring) replaces every stored score.
  template <class ScoreT>
  void plant_scores(std::int32_t slot, ScoreT&& score_of) {
    for (std::uint32_t layer = 0; layer < spec.group.layers; ++layer) {
      for (std::uint32_t head = 0; head < spec.group.kv_heads; ++head) {
        const HeadView v = view(slot, layer, head);
        for (std::uint32_t i = 0; i < v.segment_count(); ++i) {
          const Segment s = v.segment(i);
          for (std::uint32_t t = 0; t < s.count; ++t) {
            score_array(*s.layout, s.base)[s.first + t] =
                score_of(layer, head, s.position(t), s.tier);
          }
        }
        state().head_state(slot, layer, head).lowest_length = -1;
      }
    }
  }

  RigSpec spec;
  Cache cache;
};

// First byte that differs between the pages and rings of two caches of one shape, -1 for none.
inline std::int64_t first_difference(const Rig& a, const Rig& b) {
  REQUIRE(a.pool_bytes() == b.pool_bytes());
  REQUIRE(a.ring_bytes() == b.ring_bytes());
  const auto find = [](const std::uint8_t* x, const std::uint8_t* y, std::size_t n) {
    const std::size_t at = static_cast<std::size_t>(std::mismatch(x, x + n, y).first - x);
    return at == n ? std::int64_t{-1} : static_cast<std::int64_t>(at);
  };
  const std::int64_t page = find(a.state().space.base, b.state().space.base, a.pool_bytes());
  return page >= 0 ? page : find(a.state().rings, b.state().rings, a.ring_bytes());
}

}  // namespace quire::test
