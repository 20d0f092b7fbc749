// The calls of a walk between steps, each on the cache and on its model. They return the slots that
// they touched.
#pragma once

#include <utility>
#include <vector>

#include "support/life_walk.hpp"

namespace quire::test {

struct LifeTally {
  std::uint32_t steps = 0, drafts = 0, accepted = 0, truncated = 0, spans = 0, forks = 0,
                frames = 0, plans = 0, shortages = 0, closed = 0, prompts = 0, frozen = 0;
};

class LifeCalls {
 public:
  LifeTally tally;

 protected:
  LifeCalls(std::uint32_t recipe, std::uint64_t pages, std::uint64_t seed)
      : rng_(seed), cache_(recipe, pages, rng_) {}

  const Cache& api() const { return cache_.rig.cache; }

  std::int32_t any() {
    auto at = open_.begin();
    std::advance(at, rng_.below(static_cast<std::uint32_t>(open_.size())));
    return at->first;
  }

  // A refusal for want of pages with the right numbers.
  bool short_of_pages(const Result& result) {
    if (result.ok()) return false;
    INFO(result.text());
    REQUIRE(result.status() == QUIRE_OUT_OF_PAGES);
    const quire_stats stats = api().stats();
    REQUIRE(result.given() == stats.pages - stats.live_pages - stats.promised_pages);
    REQUIRE(result.needed() > result.given());
    ++tally.shortages;
    return true;
  }

  std::vector<std::int32_t> open() {
    std::int32_t slot = -1;
    const Result opened = api().open(cache_.rig.spec.policy, &slot);
    if (open_.size() == LifeCache::kSequences) {
      REQUIRE(opened.status() == QUIRE_CAPACITY);
      return close(any());
    }
    REQUIRE(opened.ok());
    LifeSequence& s = open_[slot];
    s = LifeSequence{};
    s.heads.resize(LifeCache::kHeads);
    if (rng_.below(4) != 0) prompt(slot, s, 1 + rng_.below(60));
    return {slot};
  }

  // A prompt in one round or two, on whatever the sequence holds.
  void prompt(std::int32_t slot, LifeSequence& s, std::uint32_t tokens) {
    const LifeRows rows = cache_.random_rows(tokens);
    const bool alone = s.tokens == 0;
    const std::uint32_t early = tokens > 1 && rng_.below(3) == 0 ? 1 + rng_.below(tokens - 1) : 0;
    if (early > 0 && !round(slot, s, rows, {0, early, true})) return;
    if (!round(slot, s, rows, {early, tokens, false})) {
      if (early > 0) close(slot);  // no step takes half a prompt
      return;
    }
    s.first_prompt = alone ? s.tokens : 0;
    ++tally.prompts;
  }

  struct Part {
    std::uint32_t first;
    std::uint32_t end;
    bool more;
  };

  bool round(std::int32_t slot, LifeSequence& s, const LifeRows& rows, const Part& part) {
    const std::uint32_t flags = part.more ? QUIRE_PREFILL_MORE : 0;
    if (short_of_pages(api().prefill_begin(slot, part.end - part.first, flags))) return false;
    std::vector<float> k, v;
    const std::vector<std::vector<LifeRow>> kv(rows.kv.begin() + part.first,
                                               rows.kv.begin() + part.end);
    for (const auto& row : kv) {
      for (const LifeRow& head : row) {
        k.insert(k.end(), head.k.begin(), head.k.end());
        v.insert(v.end(), head.v.begin(), head.v.end());
      }
    }
    s.tokens += static_cast<std::int32_t>(kv.size());
    std::vector<std::uint8_t> plan(LifeCache::kHeads * static_cast<std::size_t>(s.tokens), 77);
    quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
    args.slot = slot;
    args.k = rows_of(k.data());
    args.v = rows_of(v.data());
    args.q = rows_of(rows.q.data());
    args.q_rows = part.end;
    args.plan_out = plan.data();
    const Result stored = api().prefill_layer(args);
    INFO(stored.text());
    REQUIRE(stored.ok());
    REQUIRE(api().prefill_end(slot).ok());
    cache_.take_round(slot, s, kv, plan, !part.more);
    return true;
  }

  std::vector<std::int32_t> later_prompt(std::int32_t slot) {
    LifeSequence& s = open_.at(slot);
    const std::uint32_t room = LifeCache::kTokens - static_cast<std::uint32_t>(s.tokens);
    if (room > 0) prompt(slot, s, 1 + rng_.below(std::min(room, 30u)));
    return {slot};
  }

  // Only what is one prompt and nothing else.
  std::vector<std::int32_t> freeze(std::int32_t slot) {
    LifeSequence& s = open_.at(slot);
    const std::vector<std::int32_t> ids(static_cast<std::size_t>(s.tokens) + 1, 3);
    const bool legal = s.tokens > 0 && s.first_prompt == s.tokens;
    const Result done =
        api().freeze(slot, ids.data(), static_cast<std::uint32_t>(s.tokens), nullptr);
    INFO(done.text() << " first prompt " << s.first_prompt << " tokens " << s.tokens);
    REQUIRE(done.status() == (legal ? QUIRE_OK : QUIRE_BAD_STATE));
    s.frozen = legal;
    tally.frozen += legal ? 1 : 0;
    return {slot};
  }

  std::vector<std::int32_t> close(std::int32_t slot) {
    REQUIRE(api().close(slot).ok());
    REQUIRE(api().close(slot).status() == QUIRE_BAD_STATE);
    open_.erase(slot);
    ++tally.closed;
    return {};
  }

  std::vector<std::int32_t> truncate(std::int32_t slot) {
    LifeSequence& s = open_.at(slot);
    const auto tokens =
        static_cast<std::int32_t>(rng_.below(static_cast<std::uint32_t>(s.tokens) + 1));
    std::vector<HeadView> views;
    std::vector<LifeMoment> before;
    for (std::uint32_t h = 0; h < LifeCache::kHeads; ++h) views.push_back(cache_.view(slot, h));
    for (std::uint32_t h = 0; h < LifeCache::kHeads; ++h)
      before.push_back(cache_.moment(slot, h, views[h], s.tokens, 1.0f));
    quire_seq_truncate_args args = QUIRE_SEQ_TRUNCATE_ARGS_INIT;
    std::uint32_t lossy = 0;
    args.slot = slot;
    args.tokens = static_cast<std::uint32_t>(tokens);
    args.lossy = &lossy;
    args.flags = rng_.below(4) == 0 ? QUIRE_TRUNCATE_STRICT : 0;
    const Result cut = api().truncate(args);
    if (cut.status() == QUIRE_NOT_REVERSIBLE) return {slot};
    if (short_of_pages(cut)) return {slot};
    ++tally.truncated;
    if (tokens == s.tokens) return {slot};
    s.first_prompt = 0;
    for (std::uint32_t h = 0; h < LifeCache::kHeads; ++h) {
      s.heads[h].remove(tokens, s.tokens);
      const HeadView view = cache_.view(slot, h);
      s.heads[h].rescale(before[h], cache_.moment(slot, h, view, tokens, 1.0f));
    }
    s.tokens = tokens;
    if (tokens == 0) s.unscored = 0;
    return {slot};
  }

  std::vector<std::int32_t> remove_span(std::int32_t slot) {
    LifeSequence& s = open_.at(slot);
    const auto below = [&](std::int32_t n) {
      return static_cast<std::int32_t>(rng_.below(static_cast<std::uint32_t>(n)));
    };
    const std::int32_t first = below(s.tokens + 1);
    const std::int32_t end = first + below(20);
    quire_seq_remove_span_args args = QUIRE_SEQ_REMOVE_SPAN_ARGS_INIT;
    args.slot = slot;
    args.first = first;
    args.end = end;
    const RingShape& shape = cache_.slot_of(slot).shape;
    const bool legal =
        first >= static_cast<std::int32_t>(shape.sinks) && end <= shape.window_begin(s.tokens);
    const bool stored = cache_.state().group.layout.tier[0].fields.position;
    const Result result = api().remove_span(args);
    if (!legal || !stored) {
      REQUIRE(result.status() == (legal ? QUIRE_UNSUPPORTED : QUIRE_INVALID_ARGUMENT));
      return {slot};
    }
    if (short_of_pages(result)) return {slot};
    for (LifeHead& head : s.heads) head.remove(first, end);
    s.first_prompt = 0;
    ++tally.spans;
    return {slot};
  }

  std::vector<std::int32_t> fork_one(std::int32_t parent) {
    std::int32_t child = -1;
    const Result forked = api().fork(parent, &child);
    if (open_.size() == LifeCache::kSequences) {
      REQUIRE(forked.status() == QUIRE_CAPACITY);
      return {parent};
    }
    if (short_of_pages(forked)) return {parent};
    open_[child] = open_.at(parent);
    open_[child].frozen = false;
    ++tally.forks;
    return {parent, child};
  }

  std::vector<std::int32_t> swap_out(std::int32_t slot) {
    if (swapped_.size() > 3) return {slot};
    swapped_.push_back({exported(cache_.rig, slot), open_.at(slot)});
    swapped_.back().second.frozen = false;
    return close(slot);
  }

  std::vector<std::int32_t> swap_in() {
    if (swapped_.empty()) return {};
    auto& [frame, model] = swapped_.back();
    std::int32_t slot = -1;
    if (rng_.below(4) == 0) {  // damage is found and harms nobody
      const std::size_t at = rng_.below(static_cast<std::uint32_t>(frame.size()));
      frame[at] ^= 0x10;
      const Result damaged = api().import_frame(frame.data(), frame.size(), &slot);
      REQUIRE(!damaged.ok());
      REQUIRE(damaged.status() != QUIRE_OUT_OF_PAGES);
      frame[at] ^= 0x10;
    }
    const Result back = api().import_frame(frame.data(), frame.size(), &slot);
    if (open_.size() == LifeCache::kSequences) {
      REQUIRE(back.status() == QUIRE_CAPACITY);
      return {};
    }
    if (short_of_pages(back)) return {};
    open_[slot] = model;
    swapped_.pop_back();
    ++tally.frames;
    return {slot};
  }

  std::vector<std::int32_t> apply_plan(std::int32_t slot) {
    LifeSequence& s = open_.at(slot);
    if (!cache_.state().group.layout.tier[0].fields.position) return {slot};
    cache_.state().refresh_shared(slot);
    const auto tokens = static_cast<std::uint32_t>(s.tokens);
    std::vector<std::uint8_t> tiers(LifeCache::kHeads * tokens, 255);
    std::vector<std::pair<std::uint32_t, std::int32_t>> moves;
    for (std::uint32_t h = 0; h < LifeCache::kHeads; ++h) {
      const HeadView view = cache_.view(slot, h);
      const FrozenSet frozen = frozen_positions(view);
      for (const auto& [position, token] : s.heads[h].tokens) {
        if (token.tier == kRingTier || frozen.count(position) != 0 || rng_.below(6) != 0) continue;
        const bool lower = token.tier == 0 && view.tier_count > 1 && rng_.below(2) == 0;
        tiers[h * tokens + static_cast<std::uint32_t>(position)] = lower ? 1 : 254;
        moves.emplace_back(h, position);
      }
    }
    quire_plan_apply_args args = QUIRE_PLAN_APPLY_ARGS_INIT;
    args.slot = slot;
    args.layer_count = 1;
    args.tokens = tokens;
    const std::uint8_t none = 0;
    args.tiers = tiers.empty() ? &none : tiers.data();
    if (short_of_pages(api().plan_apply(args))) return {slot};
    s.first_prompt = 0;
    for (const auto& [h, position] : moves) {
      const auto to = static_cast<Tier>(tiers[h * tokens + static_cast<std::uint32_t>(position)]);
      s.heads[h].move(cache_.view(slot, h), position, to);
    }
    ++tally.plans;
    return {slot};
  }

  Rng rng_;
  LifeCache cache_;
  std::map<std::int32_t, LifeSequence> open_;
  std::vector<std::pair<std::vector<std::uint8_t>, LifeSequence>> swapped_;
};

}  // namespace quire::test
