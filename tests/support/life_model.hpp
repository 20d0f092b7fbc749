// One head of a sequence as a plain list of tokens by position: tier, score, and the bytes of K and
// V as the scalar definitions make them. What a call does to a head is done here the slow way.
#pragma once

#include <set>
#include <vector>

#include "support/attention_snapshot.hpp"
#include "support/lifecycle.hpp"
#include "support/policy_naive.hpp"

namespace quire::test {

// K and V of one token in one head, as the engine made them.
struct LifeRow {
  std::vector<float> k;
  std::vector<float> v;
};

// Positions of a head in pages that others hold as well.
using FrozenSet = std::set<std::int32_t>;

inline FrozenSet frozen_positions(const HeadView& view) {
  FrozenSet all;
  for (std::uint32_t t = 0; t < view.tier_count; ++t) {
    for (std::uint32_t i = 0; i < view.frozen[t]; ++i) {
      const bool stored = view.tiers[t].fields.position;
      all.insert(stored ? place_of(view, t, i).position()
                        : static_cast<std::int32_t>(view.shape.sinks + i));
    }
  }
  return all;
}

// What a rule needs of the cache at one moment: numbers, no decisions.
struct LifeMoment {
  const HeadView& view;  // layouts, transforms, ring shape
  TierRule rule;
  StepRule step_rule = StepRule::kAppend;
  std::uint64_t budget = 0;  // tokens outside the ring, evicting policies
  FrozenSet frozen;
};

class LifeHead {
 public:
  Snapshot tokens;

  // A token changes its tier, or goes.
  void move(const HeadView& view, std::int32_t position, Tier to) {
    if (to == Tier::kDropped) {
      tokens.erase(position);
      return;
    }
    StoredToken& token = tokens.at(position);
    const Format& from = format_of(view, token.tier);
    const auto tier = static_cast<std::uint32_t>(to);
    const Format& next = view.tiers[tier].format;
    token.k = demoted(from.k, next.k, view.tiers[0].head_dim_k, token.k);
    token.v = demoted(from.v, next.v, view.tiers[0].head_dim_v, token.v);
    token.tier = tier;
  }

  void store(const HeadView& view, std::int32_t position, std::uint32_t tier, const LifeRow& row) {
    const Format& format = format_of(view, tier);
    StoredToken token;
    token.tier = tier;
    token.k = encoded(format.k, view.k, view.tiers[0].head_dim_k, row.k.data());
    token.v = encoded(format.v, view.v, view.tiers[0].head_dim_v, row.v.data());
    tokens[position] = token;
  }

  // Every token of the pages is classified again.
  void classify_all(const LifeMoment& now) {
    std::vector<std::pair<std::int32_t, Tier>> moves;
    for (const auto& [position, token] : tokens) {
      if (token.tier == kRingTier || now.frozen.count(position) != 0) continue;
      const auto tier = static_cast<Tier>(token.tier);
      const Tier to = now.rule.tier_of(token.score, position, tier);
      if (to != tier) moves.emplace_back(position, to);
    }
    for (const auto& [position, to] : moves) move(now.view, position, to);
  }

  // A token more at position `length`: victims, the token that leaves the window, the new one.
  void advance(const LifeMoment& now, std::int32_t length, const LifeRow& row) {
    const RingShape& shape = now.view.shape;
    NaiveInput in;
    std::size_t frozen_high = 0;
    for (const auto& [position, token] : tokens) {
      if (token.tier == kRingTier) continue;
      const bool frozen = now.frozen.count(position) != 0;
      if (frozen && token.tier == 0) ++frozen_high;
      if (frozen) continue;
      (token.tier == 0 ? in.high : in.low).push_back({position, significance(now, position)});
    }
    const std::int32_t leaving = shape.window_begin(length);
    const bool leaves = shape.outside(length + 1) > shape.outside(length);
    if (leaves) in.leaving = NaiveToken{leaving, significance(now, leaving)};
    in.leaving_on_probation = leaves && now.rule.on_probation(leaving);
    in.high_threshold = Range::exact(static_cast<double>(now.rule.thresholds.high));
    in.low_threshold = Range::exact(static_cast<double>(now.rule.thresholds.low));
    in.budget = now.budget > frozen_high ? static_cast<std::size_t>(now.budget) - frozen_high : 0;
    ExactJudge judge;
    const NaiveStep step = naive_step(now.step_rule, judge, in);
    if (step.low_victim >= 0) move(now.view, step.low_victim, Tier::kDropped);
    if (step.high_victim >= 0) move(now.view, step.high_victim, tier_of(step.high_victim_to));
    if (leaves) move(now.view, leaving, tier_of(step.leaving));
    store(now.view, length, kRingTier, row);
  }

  void remove(std::int32_t first, std::int32_t end) {
    tokens.erase(tokens.lower_bound(first), tokens.lower_bound(end));
  }

  // Scores shrink from the queries that were to those that are left.
  void rescale(const LifeMoment& then, const LifeMoment& now) {
    for (auto& [position, token] : tokens) {
      if (now.frozen.count(position) != 0) continue;
      const std::int32_t was = queries(then.rule, position);
      const std::int32_t is = queries(now.rule, position);
      if (was > is) token.score *= static_cast<float>(is) / static_cast<float>(was);
    }
  }

 private:
  static Tier tier_of(Fate fate) {
    return fate == Fate::kHigh ? Tier::kHigh : (fate == Fate::kLow ? Tier::kLow : Tier::kDropped);
  }
  static const Format& format_of(const HeadView& view, std::uint32_t tier) {
    return tier == kRingTier ? view.ring->tokens.format : view.tiers[tier].format;
  }
  static std::int32_t queries(const TierRule& rule, std::int32_t position) {
    return query_count(rule.ends, rule.tail_queries, position, rule.length);
  }
  Range significance(const LifeMoment& now, std::int32_t position) const {
    const float score = tokens.at(position).score;
    return Range::exact(static_cast<double>(now.rule.significance_at(score, position)));
  }
};

// A token of a head as attention sees it, decoded.
struct LifeKey {
  std::int32_t position = 0;
  std::vector<float> k;
  std::vector<float> v;
};

// A stored vector as the model made it, transform undone.
inline std::vector<float> decode_life(const VectorFormat& format,
                                      const HeadTransform& transform,
                                      std::uint32_t dim,
                                      const StoredVector& vector) {
  StoredVector bytes = vector;
  const ConstVectorSlot slot = {
      {{bytes.codes.data(), bytes.codes.data() + plane_bytes(format, dim, 0)}},
      bytes.meta.data(),
      1};
  std::vector<float> x(dim);
  decode_vector(format, dim, slot, x.data());
  transform_back(transform, dim, x.data());
  return x;
}

inline std::vector<LifeKey> keys_of(const LifeHead& head, const HeadView& view) {
  std::vector<LifeKey> all;
  for (const auto& [position, token] : head.tokens) {
    const Format& format =
        token.tier == kRingTier ? view.ring->tokens.format : view.tiers[token.tier].format;
    all.push_back({position,
                   decode_life(format.k, view.k, view.tiers[0].head_dim_k, token.k),
                   decode_life(format.v, view.v, view.tiers[0].head_dim_v, token.v)});
  }
  return all;
}

// Attention of one query over some keys in double: probabilities and output.
struct LifeAttention {
  std::vector<double> p;
  std::vector<double> out;
  AttentionScale scale;

  LifeAttention(const std::vector<LifeKey>& keys, const float* q, std::uint32_t dim) : out(dim) {
    scale.dim = dim;
    scale.scale = 1.0 / std::sqrt(static_cast<double>(dim));
    scale.n = static_cast<std::int64_t>(keys.size());
    scale.q_norm = norm(q, dim);
    double most = -std::numeric_limits<double>::infinity();
    for (const LifeKey& key : keys) {
      double dot = 0.0;
      for (std::uint32_t d = 0; d < dim; ++d)
        dot += static_cast<double>(q[d]) * static_cast<double>(key.k[d]);
      p.push_back(dot * scale.scale);
      most = std::max(most, p.back());
      // Rotated and offset keys are stored as sums of these parts.
      scale.k_norm = std::max(scale.k_norm, 2.0 * norm(key.k.data(), dim));
      scale.v_max = std::max(scale.v_max, 2.0 * largest(key.v.data(), dim));
    }
    double sum = 0.0;
    for (double& x : p) sum += x = std::exp(x - most);
    for (std::size_t i = 0; i < p.size(); ++i) {
      p[i] /= sum;
      for (std::uint32_t d = 0; d < dim; ++d) out[d] += p[i] * static_cast<double>(keys[i].v[d]);
    }
  }
};

}  // namespace quire::test
