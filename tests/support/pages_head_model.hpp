// The tokens of one head as plain arrays: position, score, stored and decoded K and V of every
// token, in order of place. What a plan does to a head is done to the arrays the slow way.
#pragma once

#include <algorithm>
#include <vector>

#include "support/attention_snapshot.hpp"
#include "support/catch.hpp"

namespace quire::test {

struct ModelToken {
  std::int32_t position = -1;
  float score = 0.0f;
  StoredVector k;
  StoredVector v;
  std::vector<float> k_values;  // decoded, still transformed
  std::vector<float> v_values;

  bool operator==(const ModelToken& o) const {
    return position == o.position && score == o.score && k == o.k && v == o.v &&
           k_values == o.k_values && v_values == o.v_values;
  }
};

inline std::vector<float> decoded(const VectorFormat& format,
                                  std::uint32_t dim,
                                  StoredVector vector) {
  const ConstVectorSlot slot = {
      {{vector.codes.data(), vector.codes.data() + plane_bytes(format, dim, 0)}},
      vector.meta.data(),
      1};
  std::vector<float> x(dim);
  decode_vector(format, dim, slot, x.data());
  return x;
}

class HeadModel {
 public:
  explicit HeadModel(const HeadView& view) : layouts_(view.tiers), tier_count_(view.tier_count) {
    for (std::uint32_t t = 0; t < tier_count_; ++t) {
      for (std::uint32_t i = 0; i < view.tokens[t]; ++i)
        tier[t].push_back(read(place_of(view, t, i)));
    }
  }

  // The last token of a tier takes the place of one that goes.
  void drop(std::uint32_t t, std::size_t index) {
    tier[t][index] = tier[t].back();
    tier[t].pop_back();
    ++dropped;
  }

  void demote(std::size_t index) {
    ModelToken token = tier[0][index];
    const Format& from = layouts_[0].format;
    const Format& to = layouts_[1].format;
    token.k = demoted(from.k, to.k, layouts_[0].head_dim_k, token.k);
    token.v = demoted(from.v, to.v, layouts_[0].head_dim_v, token.v);
    token.k_values = decoded(to.k, layouts_[1].head_dim_k, token.k);
    token.v_values = decoded(to.v, layouts_[1].head_dim_v, token.v);
    tier[1].push_back(token);
    tier[0][index] = tier[0].back();
    tier[0].pop_back();
    ++demoted_tokens;
  }

  // wanted[position] is where a token of the pages ends; low tokens first, from the front.
  void retier(const std::vector<Tier>& wanted) {
    const auto to = [&](const ModelToken& token) {
      return wanted[static_cast<std::size_t>(token.position)];
    };
    for (std::size_t i = 0; i < tier[1].size();) {
      if (to(tier[1][i]) == Tier::kDropped) {
        drop(1, i);
      } else {
        ++i;
      }
    }
    for (std::size_t i = 0; i < tier[0].size();) {
      switch (to(tier[0][i])) {
        case Tier::kDropped: drop(0, i); break;
        case Tier::kLow: demote(i); break;
        default: ++i;
      }
    }
  }

  std::vector<std::int32_t> positions(std::uint32_t t) const {
    std::vector<std::int32_t> out;
    for (const ModelToken& token : tier[t]) out.push_back(token.position);
    std::sort(out.begin(), out.end());
    return out;
  }

  bool operator==(const HeadModel& o) const { return tier[0] == o.tier[0] && tier[1] == o.tier[1]; }

  std::vector<ModelToken> tier[kMaxTiers];
  std::uint32_t dropped = 0;
  std::uint32_t demoted_tokens = 0;

 private:
  static ModelToken read(const TokenPlace& place) {
    const TierLayout& layout = *place.layout;
    ModelToken token;
    token.position = place.position();
    token.score = place.score();
    token.k = stored_vector(layout.format.k, layout.head_dim_k, place.k());
    token.v = stored_vector(layout.format.v, layout.head_dim_v, place.v());
    token.k_values = decoded(layout.format.k, layout.head_dim_k, token.k);
    token.v_values = decoded(layout.format.v, layout.head_dim_v, token.v);
    return token;
  }

  const TierLayout* layouts_;
  std::uint32_t tier_count_;
};

}  // namespace quire::test
