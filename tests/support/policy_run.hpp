// A sequence in a cache next to its reference: after every prompt and every append the retained
// sets and tiers of all heads are compared, after every attention outputs and scores.
#pragma once

#include <string>
#include <vector>

#include "support/policy_reference.hpp"

namespace quire::test {

class ReferenceRun {
 public:
  ReferenceRun(Rig& cache_rig, std::int32_t cache_slot, const Stream& input)
      : rig(cache_rig),
        slot(cache_slot),
        stream(input),
        output_bound_(output_tolerance(input.attention_scale())) {
    const ScoreError error = ScoreError::of(stream, rig.spec.policy.statistic);
    for (std::uint32_t i = 0; i < rig.spec.group.layers * rig.spec.group.kv_heads; ++i) {
      heads.emplace_back(rig.spec, error);
      heads.back().alpha_high = rig.spec.policy.alpha_high;
      heads.back().alpha_low = rig.spec.policy.alpha_low;
    }
  }

  ReferenceHead& head(std::uint32_t layer, std::uint32_t kv_head) {
    return heads[layer * rig.spec.group.kv_heads + kv_head];
  }
  bool controlled() const {
    const quire_policy& p = rig.spec.policy;
    return p.kind == QUIRE_THRESHOLD && (p.byte_target > 0.0 || p.budget_bytes > 0);
  }

  // plan: tiers of a foreign plan, or nullptr.
  void prompt(std::uint32_t tokens, const std::uint8_t* plan = nullptr) {
    rig.prompt(slot, stream, tokens, plan);
    length = static_cast<std::int32_t>(tokens);
    controlled_at = length;
    const double factor = static_cast<double>(rig.state().slots[slot].factor);
    for_each_head([&](std::uint32_t layer, std::uint32_t h, ReferenceHead& ref) {
      INFO("prompt, layer " << layer << " head " << h);
      ref.tokens.assign(tokens, {});
      ref.prompt = length;
      if (ref.scored()) PromptScorer(stream, rig.spec, tokens).score(layer, h, ref);
      const std::vector<KeptToken> kept = rig.kept(slot, layer, h);
      if (plan != nullptr) {
        take_foreign(plan + (std::size_t{layer} * rig.spec.group.kv_heads + h) * tokens, ref);
        check_kept(kept, ref);
      } else if (rig.spec.policy.kind == QUIRE_EVICT) {
        check_evicted_prompt(kept, ref);
      } else {
        check_classified_prompt(kept, factor, ref);
      }
      check_scores(kept, ref);
    });
  }

  // One token through all layers; outputs are compared within `output_tolerance`.
  void step() {
    begin_step();
    for (std::uint32_t layer = 0; layer < rig.spec.group.layers; ++layer) {
      rig.append(layer, stream.k(layer, token()), stream.v(layer, token()));
      for (std::uint32_t h = 0; h < rig.spec.group.kv_heads; ++h) {
        INFO("length " << length << " layer " << layer << " head " << h);
        check_step(layer, h);
      }
      const std::vector<float> out = rig.attend(layer, stream.q(layer, token()));
      for (std::uint32_t h = 0; h < rig.spec.group.kv_heads; ++h) {
        INFO("length " << length << " layer " << layer << " head " << h);
        attend(layer, h, out);
        check_scores(rig.kept(slot, layer, h), head(layer, h));
      }
    }
    REQUIRE(rig.cache.step_end().ok());
    if (due_) controlled_at = length;
    ++length;
  }

  // Tokens per tier of all heads, by the reference.
  std::size_t count(std::uint32_t tier) const {
    std::size_t n = 0;
    for (const ReferenceHead& h : heads)
      for (const ReferenceToken& t : h.tokens) n += t.tier == tier ? 1 : 0;
    return n;
  }

  std::string describe() const {
    return std::to_string(decisions) + " decisions, " + std::to_string(turned) +
           " turned within the score error";
  }

  Rig& rig;
  std::int32_t slot;
  const Stream& stream;
  std::vector<ReferenceHead> heads;
  std::int32_t length = 0;
  std::int32_t controlled_at = 0;
  std::size_t decisions = 0;
  std::size_t turned = 0;  // where the library's choice is not the reference's own

 private:
  std::uint32_t token() const { return static_cast<std::uint32_t>(length); }

  template <class BodyT>
  void for_each_head(BodyT&& body) {
    for (std::uint32_t layer = 0; layer < rig.spec.group.layers; ++layer)
      for (std::uint32_t h = 0; h < rig.spec.group.kv_heads; ++h) body(layer, h, head(layer, h));
  }

  // Pages that a step takes are bounded by what quire_headroom_pages said before.
  void begin_step() {
    std::uint64_t needed = 0;
    std::uint64_t available = 0;
    REQUIRE(quire_headroom_pages(rig.cache.get(), &slot, 1, 1, &needed, &available, nullptr) ==
            QUIRE_OK);
    const std::uint64_t before = rig.cache.info(slot).live_pages;
    const bool cadence =
        controlled() &&
        length - controlled_at >= static_cast<std::int32_t>(rig.state().slots[slot].policy.cadence);
    const Result begun = rig.begin(slot);
    INFO(begun.text());
    REQUIRE(begun.ok());
    // It may run before its cadence has passed, should the step exceed the budget.
    due_ = rig.state().step.slots[0].cadence != 0;
    REQUIRE((due_ || !cadence));
    starved_ = rig.state().step.slots[0].factor >= kDropAll;
    REQUIRE(rig.cache.info(slot).live_pages <= before + needed);
  }

  static void check_kept(const std::vector<KeptToken>& kept, const ReferenceHead& ref) {
    std::size_t next = 0;
    for (std::size_t i = 0; i < ref.tokens.size(); ++i) {
      if (ref.tokens[i].tier == kRefGone) continue;
      INFO("position " << i);
      REQUIRE(next < kept.size());
      REQUIRE(kept[next].position == static_cast<std::int32_t>(i));
      REQUIRE(kept[next].tier == ref.tokens[i].tier);
      ++next;
    }
    REQUIRE(next == kept.size());
  }

  static std::vector<std::uint32_t> tiers_of(const std::vector<KeptToken>& kept, std::size_t n) {
    std::vector<std::uint32_t> tiers(n, kRefGone);
    for (const KeptToken& t : kept) tiers.at(static_cast<std::size_t>(t.position)) = t.tier;
    return tiers;
  }

  void take_foreign(const std::uint8_t* plan, ReferenceHead& ref) const {
    for (std::int32_t t = 0; t < length; ++t) {
      const auto at = static_cast<std::size_t>(t);
      ref.tokens[at].tier = ref.in_ring(t, length) ? kRefRing : plan[at];
    }
  }

  // The library's tier must be one that the score error allows.
  void follow(const std::vector<std::uint32_t>& allowed, std::uint32_t tier, ReferenceToken& t) {
    ++decisions;
    if (allowed[0] != tier) ++turned;
    const bool possible = std::find(allowed.begin(), allowed.end(), tier) != allowed.end();
    INFO("wanted tier " << allowed[0] << ", found " << tier);
    REQUIRE(possible);
    t.tier = tier;
  }

  void check_classified_prompt(const std::vector<KeptToken>& kept,
                               double factor,
                               ReferenceHead& ref) {
    const std::vector<std::uint32_t> found = tiers_of(kept, ref.tokens.size());
    const bool by_position =
        (rig.spec.policy.flags & QUIRE_POLICY_POSITION_THRESHOLDS) != 0 && !controlled();
    const bool classified = rig.spec.policy.kind == QUIRE_THRESHOLD;
    for (std::int32_t t = 0; t < length; ++t) {
      const auto at = static_cast<std::size_t>(t);
      INFO("position " << t);
      std::vector<std::uint32_t> allowed = {kRefHigh};
      if (ref.in_ring(t, length)) allowed = {kRefRing};
      if (classified && !ref.in_ring(t, length) && !ref.on_probation(t, length)) {
        const std::int32_t base = by_position ? t : length;
        allowed = ref.classes(ref.significance(ref.ranking[at], t, length),
                              ReferenceHead::threshold(ref.alpha_high, factor, base),
                              ReferenceHead::threshold(ref.alpha_low, factor, base));
      }
      follow(allowed, found[at], ref.tokens[at]);
    }
  }

  // The budget's best: no dropped token may certainly be better than a kept one.
  void check_evicted_prompt(const std::vector<KeptToken>& kept, ReferenceHead& ref) {
    const std::vector<std::uint32_t> found = tiers_of(kept, ref.tokens.size());
    NaiveTier candidates;
    for (std::int32_t t = ref.sinks(); t < ref.window_begin(length); ++t) {
      const double rank = ref.scored() ? ref.ranking[static_cast<std::size_t>(t)] : 0.0;
      candidates.push_back({t, ref.significance(rank, t, length)});
    }
    std::sort(candidates.begin(), candidates.end(), [](const NaiveToken& a, const NaiveToken& b) {
      return worse(b, a);
    });
    const std::size_t keep = std::min(candidates.size(), pages_budget());
    double least_kept = std::numeric_limits<double>::infinity();
    double best_dropped = -least_kept;
    std::size_t high = 0;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const NaiveToken& c = candidates[i];
      const std::uint32_t tier = found[static_cast<std::size_t>(c.position)];
      ++decisions;
      turned += (tier == kRefHigh) != (i < keep) ? 1 : 0;
      REQUIRE((tier == kRefHigh || tier == kRefGone));
      high += tier == kRefHigh ? 1 : 0;
      if (tier == kRefHigh) least_kept = std::min(least_kept, c.significance.high);
      if (tier == kRefGone) best_dropped = std::max(best_dropped, c.significance.low);
      ref.tokens[static_cast<std::size_t>(c.position)].tier = tier;
    }
    REQUIRE(high == keep);
    REQUIRE(best_dropped <= least_kept);
    for (std::int32_t t = 0; t < length; ++t)
      if (ref.in_ring(t, length)) ref.tokens[static_cast<std::size_t>(t)].tier = kRefRing;
    check_kept(kept, ref);
  }

  std::size_t pages_budget() const {
    return rig.spec.policy.budget_tokens - rig.spec.sinks() - rig.spec.window();
  }

  StepRule rule() const {
    const quire_policy& p = rig.spec.policy;
    if (p.kind == QUIRE_KEEP_ALL || p.kind == QUIRE_FOREIGN) return StepRule::kAppend;
    if (p.kind == QUIRE_EVICT && (p.flags & QUIRE_POLICY_GROWS) != 0) return StepRule::kAppend;
    if (!controlled()) return static_cast<StepRule>(p.step_rule);
    return starved_ ? StepRule::kClassify : StepRule::kAppend;
  }

  void check_step(std::uint32_t layer, std::uint32_t h) {
    ReferenceHead& ref = head(layer, h);
    const std::vector<KeptToken> kept = rig.kept(slot, layer, h);
    const double factor = static_cast<double>(due_ ? rig.state().step.slots[0].factor
                                                   : rig.state().slots[slot].factor);
    const std::size_t budget = rig.spec.policy.kind == QUIRE_EVICT ? pages_budget() : 0;
    const NaiveInput in = ref.step_input(length, factor, budget);
    const std::vector<std::uint32_t> found = tiers_of(kept, ref.tokens.size() + 1);
    if (due_) retier(in, found, ref);
    settle(in, found, ref);
    ref.tokens.push_back({ref.in_ring(length, length + 1) ? kRefRing : found.back(), 0.0});
    check_kept(kept, ref);
  }

  // A cadence step: every stored token is classified again and can only fall.
  void retier(const NaiveInput& in, const std::vector<std::uint32_t>& found, ReferenceHead& ref) {
    for (std::int32_t t = 0; t < length; ++t) {
      ReferenceToken& token = ref.tokens[static_cast<std::size_t>(t)];
      if (token.tier > kRefLow || ref.on_probation(t, length)) continue;
      INFO("position " << t << " at a cadence step");
      std::vector<std::uint32_t> allowed =
          ref.classes(ref.significance(t, length), in.high_threshold, in.low_threshold);
      for (std::uint32_t& tier : allowed) tier = std::max(tier, token.tier);
      follow(allowed, found[static_cast<std::size_t>(t)], token);
    }
  }

  // Finds a decision of the rule, among those that the score error allows, that gives what the
  // cache holds, and carries it out.
  void settle(const NaiveInput& in, const std::vector<std::uint32_t>& found, ReferenceHead& ref) {
    ChoosingJudge judge;
    ++decisions;
    bool first = true;
    do {
      judge.rewind();
      const NaiveStep step = naive_step(rule(), judge, in);
      if (gives(step, in, found, ref)) {
        turned += first ? 0 : 1;
        carry_out(step, in, ref);
        return;
      }
      first = false;
    } while (judge.next());
    FAIL("no decision within the score error gives what the cache holds");
  }

  static std::uint32_t tier_of(Fate fate) {
    return fate == Fate::kHigh ? kRefHigh : (fate == Fate::kLow ? kRefLow : kRefGone);
  }

  static void carry_out(const NaiveStep& step, const NaiveInput& in, ReferenceHead& ref) {
    const auto set = [&](std::int32_t position, std::uint32_t tier) {
      if (position < 0 || static_cast<std::size_t>(position) >= ref.tokens.size()) return;
      ref.tokens[static_cast<std::size_t>(position)].tier = tier;
    };
    set(step.low_victim, kRefGone);
    set(step.high_victim, tier_of(step.high_victim_to));
    if (in.leaving) set(in.leaving->position, tier_of(step.leaving));
  }

  static bool gives(const NaiveStep& step,
                    const NaiveInput& in,
                    const std::vector<std::uint32_t>& found,
                    const ReferenceHead& ref) {
    if (in.leaving &&
        found[static_cast<std::size_t>(in.leaving->position)] != tier_of(step.leaving))
      return false;
    for (std::size_t i = 0; i < ref.tokens.size(); ++i) {
      const auto position = static_cast<std::int32_t>(i);
      if (in.leaving && position == in.leaving->position) continue;
      std::uint32_t want = ref.tokens[i].tier;
      if (position == step.low_victim) want = kRefGone;
      if (position == step.high_victim) want = tier_of(step.high_victim_to);
      if (found[i] != want) return false;
    }
    return true;
  }

  // Attention in double over what the head decodes to; adds to the reference's scores.
  void attend(std::uint32_t layer, std::uint32_t h, const std::vector<float>& out) {
    ReferenceHead& ref = head(layer, h);
    const DecodedHead decoded = rig.gather(slot, layer, h);
    const std::uint32_t group = stream.shape.group;
    const std::uint32_t dim = stream.shape.dim;
    const std::size_t n = decoded.positions.size();
    std::vector<std::vector<double>> p;
    for (std::uint32_t g = 0; g < group; ++g) {
      const std::size_t q_head = std::size_t{h} * group + g;
      p.push_back(softmax_of(stream.q(layer, token()) + q_head * dim,
                             decoded.keys.data(),
                             n,
                             dim,
                             dim,
                             stream.scale()));
      for (std::uint32_t d = 0; d < dim; ++d) {
        double want = 0.0;
        for (std::size_t i = 0; i < n; ++i)
          want += p[g][i] * static_cast<double>(decoded.values[i * dim + d]);
        const double got = static_cast<double>(out[q_head * dim + d]);
        if (!(std::fabs(got - want) <= output_bound_)) REQUIRE(got == want);
      }
    }
    std::vector<double> column(group);
    for (std::size_t i = 0; i < n && ref.scored(); ++i) {
      for (std::uint32_t g = 0; g < group; ++g) column[g] = p[g][i];
      ref.tokens[static_cast<std::size_t>(decoded.positions[i])].score +=
          statistic_of(rig.spec.policy.statistic, column.data(), group);
    }
  }

  void check_scores(const std::vector<KeptToken>& kept, const ReferenceHead& ref) const {
    if (!ref.scored()) return;
    for (const KeptToken& t : kept) {
      const double want = ref.tokens[static_cast<std::size_t>(t.position)].score;
      const double bound =
          ref.error.relative * want + ref.error.per_query * static_cast<double>(ref.tokens.size());
      const double got = static_cast<double>(t.score);
      if (std::fabs(got - want) <= bound) continue;
      INFO("score of position " << t.position);
      REQUIRE(got == want);
    }
  }

  bool due_ = false;
  bool starved_ = false;  // no factor fits: tokens are dropped as they come
  double output_bound_;
};

}  // namespace quire::test
