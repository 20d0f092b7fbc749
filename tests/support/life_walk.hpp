// A cache and, beside it, every sequence as a slow model: what a walk needs for each kind of call.
// Every operation ends with the model brought forward and one head of each touched sequence
// compared byte by byte.
#pragma once

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "support/drafts.hpp"
#include "support/life_model.hpp"

namespace quire::test {

inline constexpr std::uint32_t kLifeHeads = 2;
inline constexpr std::uint32_t kLifeGroup = 2;
inline constexpr std::uint32_t kLifeDim = 16;

// A sequence of the model.
struct LifeSequence {
  std::int32_t tokens = 0;
  std::uint32_t unscored = 0;
  std::int32_t first_prompt = 0;  // tokens of the prompt that it consists of; 0: of more than that
  bool frozen = false;
  std::vector<LifeHead> heads;
  // Rows of the last step that wait for accept, row 0 left out: [row][head].
  std::vector<std::vector<LifeRow>> drafts;
  std::vector<std::uint32_t> sees;  // of all rows of that step
};

// One sequence's rows of a step.
struct LifeRows {
  std::vector<std::vector<LifeRow>> kv;  // [row][head]
  std::vector<std::uint32_t> sees;
  std::vector<float> q;  // [row, q_heads, dim]
};

// The sequences of one step as the caller hands them in.
struct LifeBatch {
  std::vector<std::int32_t> slots;
  std::vector<std::uint32_t> counts;
  std::vector<std::uint32_t> masks;  // [batch, rows]
  std::vector<LifeRows> rows;
  std::vector<std::uint8_t> admitted;
  std::uint32_t width = 1;

  static constexpr std::size_t kRowSize = std::size_t{kLifeHeads} * kLifeDim;
  static constexpr std::size_t kQuerySize = kRowSize * kLifeGroup;

  std::vector<float> keys() const {
    return array(kRowSize, [](const LifeRows& one, std::uint32_t r, float* to) {
      for (const LifeRow& h : one.kv[r]) to = std::copy(h.k.begin(), h.k.end(), to);
    });
  }
  std::vector<float> values() const {
    return array(kRowSize, [](const LifeRows& one, std::uint32_t r, float* to) {
      for (const LifeRow& h : one.kv[r]) to = std::copy(h.v.begin(), h.v.end(), to);
    });
  }
  std::vector<float> queries() const {
    return array(kQuerySize, [](const LifeRows& one, std::uint32_t r, float* to) {
      const auto first = one.q.begin() + static_cast<std::ptrdiff_t>(r * kQuerySize);
      std::copy_n(first, kQuerySize, to);
    });
  }

 private:
  // [batch, rows, size]; padding is NaN.
  template <class AddT>
  std::vector<float> array(std::size_t size, AddT&& add) const {
    std::vector<float> all(slots.size() * width * size, std::numeric_limits<float>::quiet_NaN());
    for (std::size_t i = 0; i < slots.size(); ++i)
      for (std::uint32_t r = 0; slots[i] >= 0 && r < counts[i]; ++r)
        add(rows[i], r, all.data() + (i * width + r) * size);
    return all;
  }
};

// What of a step is looked at: one head, one row.
struct LifeLook {
  std::int32_t slot;
  std::uint32_t head;
  std::uint32_t row;
};

class LifeCache {
 public:
  static constexpr std::uint32_t kHeads = kLifeHeads;
  static constexpr std::uint32_t kGroup = kLifeGroup;
  static constexpr std::uint32_t kDim = kLifeDim;
  static constexpr std::uint32_t kTokens = 110;
  static constexpr std::uint32_t kSequences = 5;

  LifeCache(std::uint32_t recipe, std::uint64_t pages, Rng& random)
      : rng(random), rig(spec(recipe, pages)) {}

  static RigSpec spec(std::uint32_t recipe, std::uint64_t pages) {
    StreamShape shape;
    shape.layers = 1;
    shape.kv_heads = kHeads;
    shape.group = kGroup;
    shape.dim = kDim;
    RigSpec s(recipe, shape);
    s.set_ring(1, 8);
    s.sequences = kSequences;
    s.max_tokens = kTokens;
    s.pages = pages;
    s.cache_flags = QUIRE_CACHE_SHARING;
    s.group.max_draft = 3;
    s.group.layout.expected_tokens = 16;
    if (s.policy.tail_queries > 16) s.policy.tail_queries = 16;
    if (s.policy.budget_tokens != 0) s.policy.budget_tokens = 40;
    if (s.policy.min_queries > 12) s.policy.min_queries = 12;
    if (s.policy.byte_target > 0.0) s.policy.byte_target = 0.8;
    return s;
  }

  CacheState& state() const { return rig.state(); }
  const Slot& slot_of(std::int32_t slot) const { return state().slots[slot]; }
  HeadView view(std::int32_t slot, std::uint32_t head) const { return rig.view(slot, 0, head); }

  // Rows of K, V and q; one token in eight is loud, so that policies have something to see.
  LifeRows random_rows(std::uint32_t count) {
    LifeRows rows;
    for (std::uint32_t r = 0; r < count; ++r) {
      rows.kv.emplace_back();
      const float loud = rng.below(8) == 0 ? 3.0f : 1.0f;
      for (std::uint32_t h = 0; h < kHeads; ++h)
        rows.kv.back().push_back({rng.normals(kDim, loud), rng.normals(kDim)});
      if (r < kMaxDecodeRows) rows.sees.push_back((2u << r) - 1);  // prompts have more rows
    }
    rows.q = rng.normals(std::size_t{count} * kHeads * kGroup * kDim, 1.5f);
    return rows;
  }

  LifeMoment moment(std::int32_t slot,
                    std::uint32_t head,
                    const HeadView& head_view,
                    std::int32_t length,
                    float factor) const {
    const Policy& policy = slot_of(slot).policy;
    LifeMoment now = {head_view,
                      state().rule(slot, 0, head, length, factor),
                      StepRule::kAppend,
                      0,
                      frozen_positions(head_view)};
    const bool evicts = policy.kind == PolicyKind::kEvict && !policy.grows;
    if (policy.has_controller()) {
      now.step_rule = factor >= kDropAll ? StepRule::kClassify : StepRule::kAppend;
    } else if (policy.kind == PolicyKind::kThreshold || evicts) {
      now.step_rule = policy.step_rule;
    }
    if (policy.kind == PolicyKind::kEvict) {
      now.budget = evict_tokens(
          policy, state().admission(policy), static_cast<std::uint64_t>(length) + 1, head);
    }
    return now;
  }

  // Scores as the cache has them now; everything else of the model stays what it is.
  void take_scores(std::int32_t slot, LifeSequence& s) const {
    if (slot_of(slot).policy.statistic == Statistic::kNone) return;
    for (std::uint32_t h = 0; h < kHeads; ++h) {
      const HeadView v = view(slot, h);
      for (std::uint32_t i = 0; i < v.segment_count(); ++i) {
        const Segment segment = v.segment(i);
        const float* scores = score_array(*segment.layout, segment.base) + segment.first;
        for (std::uint32_t t = 0; t < segment.count; ++t) {
          const auto found = s.heads[h].tokens.find(segment.position(t));
          if (found != s.heads[h].tokens.end()) found->second.score = scores[t];
        }
      }
    }
  }

  // "" when one head of the cache is what the model says, byte by byte.
  std::string compare(std::int32_t slot, const LifeSequence& s, std::uint32_t head) const {
    if (static_cast<std::int32_t>(rig.cache.info(slot).tokens) != s.tokens) return "length";
    const Snapshot found = snapshot(view(slot, head));
    const Snapshot& want = s.heads[head].tokens;
    if (found.size() != want.size()) return "number of tokens";
    auto at = want.begin();
    for (const auto& [position, token] : found) {
      if (position != at->first) return "position " + std::to_string(position);
      if (token.tier != at->second.tier) return "tier of " + std::to_string(position);
      if (token.k != at->second.k) return "key of " + std::to_string(position);
      if (token.v != at->second.v) return "value of " + std::to_string(position);
      if (token.score != at->second.score) return "score of " + std::to_string(position);
      ++at;
    }
    return "";
  }

  // What a row of a step sees of a head: tokens of the model and rows on its way.
  std::vector<LifeKey> keys_for(const LifeLook& look,
                                const LifeSequence& s,
                                const LifeRows& rows) const {
    const HeadView v = view(look.slot, look.head);
    std::vector<LifeKey> keys = keys_of(s.heads[look.head], v);
    LifeHead drafts;
    for (std::uint32_t r = 1; r <= look.row; ++r)
      if (((rows.sees[look.row] >> r) & 1u) != 0)
        drafts.store(v, static_cast<std::int32_t>(r), kRingTier, rows.kv[r][look.head]);
    const std::vector<LifeKey> more = keys_of(drafts, v);
    keys.insert(keys.end(), more.begin(), more.end());
    return keys;
  }

  // A round of a prompt, the last tokens of `s`, as its plan says; then as a byte target cut
  // further.
  void take_round(std::int32_t slot,
                  LifeSequence& s,
                  const std::vector<std::vector<LifeRow>>& kv,
                  const std::vector<std::uint8_t>& plan,
                  bool last) const {
    const std::int32_t first = s.tokens - static_cast<std::int32_t>(kv.size());
    for (std::uint32_t h = 0; h < kHeads; ++h) {
      const HeadView v = view(slot, h);
      const FrozenSet frozen = frozen_positions(v);
      for (std::int32_t p = 0; p < s.tokens; ++p) {
        const std::uint8_t tier =
            plan[h * static_cast<std::size_t>(s.tokens) + static_cast<std::size_t>(p)];
        if (p >= first) {
          REQUIRE((tier == 255) == v.shape.holds(p, s.tokens));
          const LifeRow& row = kv[static_cast<std::size_t>(p - first)][h];
          if (tier != 254) s.heads[h].store(v, p, tier == 255 ? kRingTier : tier, row);
          continue;
        }
        const auto found = s.heads[h].tokens.find(p);
        if (found == s.heads[h].tokens.end() || frozen.count(p) != 0 || tier == 255) continue;
        const bool lower = found->second.tier == kRingTier || tier > found->second.tier;
        if (lower) s.heads[h].move(v, p, static_cast<Tier>(tier));
      }
    }
    take_scores(slot, s);
    const Slot& stored = slot_of(slot);
    if (!last || !stored.policy.has_controller() || stored.factor <= 0.0f) return;
    for (std::uint32_t h = 0; h < kHeads; ++h) {
      const HeadView v = view(slot, h);
      s.heads[h].classify_all(moment(slot, h, v, s.tokens, stored.factor));
    }
  }

  // Outputs of one row and the query heads of one KV head; out: [rows, q_heads, dim].
  std::string check_output(const LifeLook& look,
                           const LifeSequence& s,
                           const LifeRows& rows,
                           const float* out) const {
    const std::vector<LifeKey> keys = keys_for(look, s, rows);
    const std::uint32_t first = (look.row * kHeads + look.head) * kGroup;
    for (std::uint32_t g = 0; g < kGroup; ++g) {
      const LifeAttention want(keys, rows.q.data() + (first + g) * kDim, kDim);
      for (std::uint32_t d = 0; d < kDim; ++d) {
        const double got = static_cast<double>(out[(first + g) * kDim + d]);
        if (!(std::fabs(got - want.out[d]) <= output_tolerance(want.scale)))
          return "output of slot " + std::to_string(look.slot) + ", row " +
                 std::to_string(look.row) + "; ";
      }
    }
    return "";
  }

  // Scores of one head: those of before and what row 0 adds.
  std::string check_scores(const LifeLook& look,
                           const LifeSequence& s,
                           const LifeRows& rows) const {
    const Statistic statistic = slot_of(look.slot).policy.statistic;
    if (statistic == Statistic::kNone) return "";
    const HeadView v = state().view(look.slot, 0, look.head, s.tokens);
    const FrozenSet frozen = frozen_positions(v);
    const std::vector<LifeKey> keys = keys_for({look.slot, look.head, 0}, s, rows);
    std::vector<LifeAttention> p;
    for (std::uint32_t g = 0; g < kGroup; ++g)
      p.emplace_back(keys, rows.q.data() + (look.head * kGroup + g) * kDim, kDim);
    const Snapshot found = snapshot(v);
    const double weight = 1.0 + s.unscored;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const double column[kGroup] = {p[0].p[i], p[1].p[i]};
      const bool stays = frozen.count(keys[i].position) != 0;
      const double more =
          stays ? 0.0
                : weight * statistic_of(static_cast<std::uint32_t>(statistic), column, kGroup);
      const auto old = static_cast<double>(s.heads[look.head].tokens.at(keys[i].position).score);
      const auto now = static_cast<double>(found.at(keys[i].position).score);
      const double bound = 2.0 * score_tolerance(p[0].scale) * more +
                           4.0 * kFloatEps * (old + more) + weight * std::exp(-32.0);
      if (!(std::fabs(now - old - more) <= bound))
        return "score of slot " + std::to_string(look.slot) + ", position " +
               std::to_string(keys[i].position) + "; ";
    }
    return "";
  }

  Rng& rng;
  Rig rig;
};

}  // namespace quire::test
