// A conversation: prompts in one round or several and answers in between, every prompt checked
// against the slow model of prompt_model.hpp.
#pragma once

#include "support/prompt_model.hpp"

namespace quire::test {

class Turns {
 public:
  Turns(const RigSpec& spec, const Stream& text) : rig(spec), stream(text), slot(rig.open()) {}

  std::int32_t length() const { return rig.state().slots[slot].tokens; }

  // One round behind what is stored; the prompt began at `begin`.
  Result try_round(std::uint32_t tokens, std::int32_t begin, std::uint32_t flags) {
    const auto first = static_cast<std::uint32_t>(length());
    const Result begun = rig.cache.prefill_begin(slot, tokens, flags);
    if (!begun.ok()) return begun;
    for (std::uint32_t layer = 0; layer < rig.spec.group.layers; ++layer) {
      const Result stored = rig.cache.prefill_layer(args(layer, first, tokens, begin));
      if (!stored.ok()) return stored;
    }
    return rig.cache.prefill_end(slot);
  }

  quire_prefill_layer_args args(std::uint32_t layer,
                                std::uint32_t first,
                                std::uint32_t tokens,
                                std::int32_t begin) {
    quire_prefill_layer_args a = QUIRE_PREFILL_LAYER_ARGS_INIT;
    a.slot = slot;
    a.layer = layer;
    a.k = rows_of(stream.k(layer, first));
    a.v = rows_of(stream.v(layer, first));
    const std::uint32_t all = first + tokens - static_cast<std::uint32_t>(begin);
    a.q_rows = std::min(rig.spec.policy.tail_queries, all);
    if (a.q_rows > 0) a.q = rows_of(stream.q(layer, first + tokens - a.q_rows));
    a.rule.sliding_window = rule.sliding_window;
    a.rule.alibi_slopes = rule.alibi_slopes;
    if (give_lse && a.q_rows > 0) {
      find_lse(layer,
               {begin,
                static_cast<std::int32_t>(first),
                static_cast<std::int32_t>(first + tokens),
                rule},
               a.q_rows);
      a.lse = lse_.data();
    }
    return a;
  }

  // A whole prompt in rounds of the given sizes, the last of which is checked.
  void prompt(const std::vector<std::uint32_t>& rounds) {
    const std::int32_t begin = length();
    for (std::size_t i = 0; i + 1 < rounds.size(); ++i) {
      const Result done = try_round(rounds[i], begin, QUIRE_PREFILL_MORE);
      INFO(done.text());
      REQUIRE(done.ok());
      check_pages();
    }
    last_round(rounds.back(), begin);
  }

  void decode(std::uint32_t tokens) {
    for (std::uint32_t i = 0; i < tokens; ++i)
      (void)rig.step(slot, stream, static_cast<std::uint32_t>(length()));
  }

  // Pages are exactly those that the tokens need, in the rows and in all counts.
  void check_pages() const {
    const CacheState& cache = rig.state();
    REQUIRE(check_pool(cache) == "");
    REQUIRE(check_dense(cache) == "");
    REQUIRE(rig.cache.stats().promised_pages == 0);
    std::uint64_t pages = 0;
    for (std::uint32_t h = 0; h < cache.group.heads(); ++h) {
      std::uint32_t tokens[kMaxTiers] = {};
      const std::uint32_t heads = cache.group.kv_heads;
      for (const KeptToken& t : rig.kept(slot, h / heads, h % heads))
        if (t.tier != 255) ++tokens[t.tier];
      for (std::uint32_t t = 0; t < cache.group.layout.tier_count; ++t)
        pages += ceil_div(tokens[t], cache.group.layout.tier[t].tokens);
    }
    REQUIRE(rig.cache.info(slot).live_pages == pages);
  }

  // Outputs of a query behind all tokens against attention in double over what is retained.
  void check_attention() const {
    const std::uint32_t at = static_cast<std::uint32_t>(length()) - 1;
    for (std::uint32_t layer = 0; layer < rig.spec.group.layers; ++layer) {
      std::vector<float> out(std::size_t{rig.spec.group.q_heads} * stream.shape.dim);
      quire_extend_args a = QUIRE_EXTEND_ARGS_INIT;
      a.slot = slot;
      a.layer = layer;
      a.rows = 1;
      a.first_position = length() - 1;
      a.q = rows_of(stream.q(layer, at));
      a.out = rows_of(out.data());
      REQUIRE(rig.cache.extend(a).ok());
      require_attention(rig,
                        slot,
                        {layer, stream.q(layer, at), stream.scale()},
                        out,
                        output_tolerance(stream.attention_scale()));
    }
  }

  // Keys and values of every retained token against the text's, within a relative error.
  void check_contents(double relative) const {
    const std::uint32_t dim = stream.shape.dim;
    for (std::uint32_t layer = 0; layer < rig.spec.group.layers; ++layer) {
      for (std::uint32_t head = 0; head < rig.spec.group.kv_heads; ++head) {
        const DecodedHead got = rig.gather(slot, layer, head);
        for (std::size_t i = 0; i < got.positions.size(); ++i) {
          const auto p = static_cast<std::uint32_t>(got.positions[i]);
          const auto close = [&](const float* have, const float* want) {
            double error = 0.0;
            for (std::uint32_t d = 0; d < dim; ++d)
              error = std::max(
                  error, std::fabs(static_cast<double>(have[d]) - static_cast<double>(want[d])));
            return error <= relative * largest(want, dim);
          };
          INFO("position " << p);
          const bool k = close(got.keys.data() + i * dim, stream.k(layer, p) + head * dim);
          const bool v = close(got.values.data() + i * dim, stream.v(layer, p) + head * dim);
          REQUIRE((k && v));
        }
      }
    }
  }

  void check_budget() const {
    const Policy& policy = rig.state().slots[slot].policy;
    const quire_seq_info info = rig.cache.info(slot);
    if (policy.byte_target > 0.0) {
      REQUIRE(static_cast<double>(info.total_bytes) <=
              policy.byte_target * static_cast<double>(info.fp16_bytes));
    }
    const std::uint32_t heads = rig.spec.group.layers * rig.spec.group.kv_heads;
    for (std::uint32_t h = 0; policy.budget_tokens > 0 && h < heads; ++h) {
      const auto kept =
          rig.kept(slot, h / rig.spec.group.kv_heads, h % rig.spec.group.kv_heads).size();
      REQUIRE(kept <= policy.budget_tokens);
    }
  }

  Rig rig;
  const Stream& stream;
  std::int32_t slot;
  AttentionRule rule;  // window and slopes of the model
  PromptList prompts;  // complete ones
  bool give_lse = false;

 private:
  // [rows, q_heads] as an engine's own attention over the same keys has them.
  void find_lse(std::uint32_t layer, const TextPrompt& text, std::uint32_t rows) {
    const std::uint32_t q_heads = rig.spec.group.q_heads;
    lse_.assign(std::size_t{rows} * q_heads, 0.0f);
    for (std::uint32_t h = 0; h < q_heads; ++h) {
      const std::uint32_t head = h / stream.shape.group;
      const HeadBefore before = head_before(rig, slot, layer, head);
      const KeyList keys = keys_of(stream, text, layer, head, before);
      for (std::uint32_t r = 0; r < rows; ++r) {
        const std::int32_t row = text.length - static_cast<std::int32_t>(rows - r);
        const float* q = stream.q(layer, static_cast<std::uint32_t>(row)) + h * stream.shape.dim;
        std::map<std::int32_t, double> p;
        lse_[std::size_t{r} * q_heads + h] =
            static_cast<float>(text_probabilities(stream, rule, keys, q, h, row, &p));
      }
    }
  }

  std::vector<float> lse_;

  void last_round(std::uint32_t tokens, std::int32_t begin) {
    const quire_group_desc& g = rig.spec.group;
    const TextPrompt text{begin, length(), length() + static_cast<std::int32_t>(tokens), rule};
    std::vector<HeadBefore> before;
    for (std::uint32_t h = 0; h < g.layers * g.kv_heads; ++h)
      before.push_back(head_before(rig, slot, h / g.kv_heads, h % g.kv_heads));
    const Policy policy = rig.state().slots[slot].policy;
    const Result done = try_round(tokens, begin, 0);
    INFO(done.text());
    REQUIRE(done.ok());
    prompts.push_back({begin, text.length});
    const double tolerance = sums_tolerance(stream, policy, text.length - text.begin);
    for (std::uint32_t h = 0; h < g.layers * g.kv_heads; ++h) {
      const std::uint32_t layer = h / g.kv_heads, head = h % g.kv_heads;
      std::optional<PromptSums> sums;
      if (policy.statistic != Statistic::kNone)
        sums.emplace(stream, policy, text, layer, head, before[h]);
      INFO("layer " << layer << " head " << head << " prompt " << begin << " to " << text.length);
      REQUIRE(
          HeadAfter(
              rig, slot, layer, head, before[h], sums ? &*sums : nullptr, text, prompts, tolerance)
              .check() == "");
    }
    check_pages();
    check_attention();
    check_budget();
  }
};

}  // namespace quire::test
