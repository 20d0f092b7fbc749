// Oracle: the price of the whole sequence, page by page from planted scores, at every candidate
// factor.
#include <algorithm>
#include <cmath>
#include <vector>

#include "quire/policy/controller.hpp"
#include "src/control.hpp"
#include "support/catch.hpp"
#include "support/policy_rig.hpp"

namespace quire::test {
namespace {

constexpr std::uint32_t kTokens = 420;

StreamShape factor_shape() {
  StreamShape shape;
  shape.layers = 3;
  shape.kv_heads = 2;
  shape.group = 1;
  shape.dim = 16;
  shape.tokens = kTokens;
  return shape;
}

// A token outside the ring that may move, with its two borders in double.
struct Movable {
  std::size_t head;
  double leaves_high;
  double drops;
  std::uint32_t tier;
};

// A sequence with planted scores and everything that its price depends on.
class Priced {
 public:
  Priced(Rig& rig, std::int32_t slot, const ControlRequest& request)
      : rig_(rig), slot_(slot), request_(request) {
    const std::uint32_t heads = rig.spec.group.kv_heads;
    for (std::uint32_t layer = 0; layer < request.layers; ++layer)
      for (std::uint32_t h = 0; h < heads; ++h) add_head(layer, h);
    const quire_seq_info info = rig.cache.info(slot);
    // A head without tokens costs its ring and its row: what the sequence costs beside pages.
    std::uint64_t chunks = 0;
    for (std::size_t h = 0; h < rig.spec.group.layers * heads; ++h) chunks += table_bytes_of(h);
    fixed_ = info.total_bytes - info.page_bytes - chunks;
    if (policy().byte_target <= 0.0)
      fixed_ = info.ring_tokens * rig.state().group.ring.tokens.record_bytes;
  }

  const Policy& policy() const { return rig_.state().slots[slot_].policy; }

  std::uint64_t price(double factor, std::uint32_t growth) const {
    std::vector<std::uint64_t> high(kept_high_);
    std::vector<std::uint64_t> low(kept_low_);
    for (const Movable& t : movable_) {
      if (factor > t.drops) continue;
      const bool stays_high = t.tier == 0 && !(factor > t.leaves_high);
      ++(stays_high ? high : low)[t.head];
    }
    std::uint64_t bytes = fixed_;
    for (std::size_t h = 0; h < high.size(); ++h) {
      const PageLayout& layout = rig_.state().group.layout;
      high[h] += growth;
      if (policy().byte_target <= 0.0) {
        bytes += high[h] * layout.tier[0].record_bytes + low[h] * layout.tier[1].record_bytes;
        continue;
      }
      const std::uint64_t pages[2] = {ceil_div(high[h], std::uint64_t{layout.tier[0].tokens}),
                                      ceil_div(low[h], std::uint64_t{layout.tier[1].tokens})};
      bytes += (pages[0] + pages[1]) * layout.page_bytes + chunk_bytes(pages[0], pages[1]);
    }
    return bytes;
  }

  std::uint64_t allowed(std::uint32_t growth) const {
    if (policy().byte_target <= 0.0) return policy().budget_bytes;
    const double fp16 = 2.0 * 32.0 * 6.0 * (request_.length + static_cast<double>(growth));
    return static_cast<std::uint64_t>(policy().byte_target * fp16);
  }

  bool fits(double factor, std::uint32_t growth) const {
    return price(factor, growth) <= allowed(growth);
  }
  bool fits_all_along(double factor) const {
    for (std::uint32_t g = request_.first_growth; g <= request_.last_growth; ++g)
      if (!fits(factor, g)) return false;
    return true;
  }

 private:
  // A tier's first 32 pages take one piece of table.
  static std::uint64_t chunk_bytes(std::uint64_t high_pages, std::uint64_t low_pages) {
    return (high_pages > 0 ? kChunkBytes : 0u) + (low_pages > 0 ? kChunkBytes : 0u);
  }

  std::uint64_t table_bytes_of(std::size_t h) const {
    const std::uint32_t heads = rig_.spec.group.kv_heads;
    const HeadState& s = rig_.state().head_state(
        slot_, static_cast<std::uint32_t>(h) / heads, static_cast<std::uint32_t>(h) % heads);
    return chunk_bytes(s.pages[0], s.pages[1]);
  }

  void add_head(std::uint32_t layer, std::uint32_t h) {
    const HeadState& state = rig_.state().head_state(slot_, layer, h);
    const TierRule rule = rig_.state().rule(slot_, layer, h, request_.length, 1.0f);
    const std::size_t index = kept_high_.size();
    kept_high_.push_back(0);
    kept_low_.push_back(0);
    for (const KeptToken& t : rig_.kept(slot_, layer, h)) {
      if (t.tier == 255) continue;
      if (rule.on_probation(t.position)) {
        ++(t.tier == 0 ? kept_high_ : kept_low_)[index];
        continue;
      }
      const double s = static_cast<double>(rule.significance_at(t.score, t.position));
      const auto border = [&](float alpha) {
        return alpha > 0.0f ? s * request_.length / static_cast<double>(alpha) : 1e300;
      };
      movable_.push_back({index, border(state.alpha_high), border(state.alpha_low), t.tier});
    }
  }

  Rig& rig_;
  std::int32_t slot_;
  ControlRequest request_;
  std::vector<std::uint64_t> kept_high_;
  std::vector<std::uint64_t> kept_low_;
  std::vector<Movable> movable_;
  std::uint64_t fixed_ = 0;
};

// A prompt stored all high, or with random low tokens and holes, and scores of a wide spread.
class Planted {
 public:
  Planted(std::uint64_t seed, std::uint32_t recipe, bool mixed)
      : rng(seed), stream(factor_shape(), rng), rig(spec_of(recipe)), slot(rig.open()) {
    std::vector<std::uint8_t> plan(6 * kTokens, 0);
    for (std::uint8_t& tier : plan) {
      const std::uint32_t draw = rng.below(6);
      if (mixed && draw < 3) tier = draw == 2 ? 254 : 1;
    }
    Policy& policy = rig.state().slots[slot].policy;
    policy.byte_target = 1.5;  // the prompt itself is not cut
    rig.prompt(slot, stream, kTokens, plan.data());
    rig.plant_scores(slot, [&](std::uint32_t layer, std::uint32_t, std::int32_t, std::uint32_t) {
      const double spread = 1.0 + layer;
      return static_cast<float>(std::exp(spread * static_cast<double>(rng.normal())) / kTokens);
    });
  }

  Rng rng;
  Stream stream;
  Rig rig;
  std::int32_t slot;

 private:
  static RigSpec spec_of(std::uint32_t recipe) {
    RigSpec spec(recipe, factor_shape());
    spec.set_ring(1, 16);
    spec.policy.tail_queries = 200;
    spec.thresholds.push_back({1, 0, 2.0f, 0.5f});
    spec.thresholds.push_back({2, 1, 1.5f, 0.0f});
    return spec;
  }
};

ControlRequest request_of(const Planted& planted, std::uint32_t first, std::uint32_t last) {
  ControlRequest request;
  request.slot = planted.slot;
  request.layers = 3;
  request.length = kTokens;
  request.first_growth = first;
  request.last_growth = last;
  return request;
}

// Candidates are floats of 10 bits after the first, and none of the coarse ones (2 bits) below the
// found factor may fit.
float predecessor(float factor) { return bits_float(float_bits(factor) - (1u << 13)); }

void check_factor(Planted& planted, const ControlRequest& request, std::size_t* searched) {
  const Priced priced(planted.rig, planted.slot, request);
  const float factor = find_factor(planted.rig.state(), request);
  INFO("factor " << factor << ", growth " << request.first_growth);
  if (factor == 0.0f) {
    REQUIRE(priced.fits_all_along(0.0));
    return;
  }
  const BorderWindow coarse;
  for (std::uint32_t bin = 0; bin < kControllerBins && coarse.edge(bin) < factor; ++bin) {
    INFO("smaller factor " << coarse.edge(bin));
    REQUIRE(!priced.fits_all_along(static_cast<double>(coarse.edge(bin))));
  }
  if (factor >= kDropAll) return;
  ++*searched;
  REQUIRE(priced.fits_all_along(static_cast<double>(factor)));
  if (factor > coarse.edge(0))
    REQUIRE(!priced.fits_all_along(static_cast<double>(predecessor(factor))));
}

TEST_CASE("the byte controller finds a factor that fits and whose predecessor does not",
          "[policy][controller]") {
  const std::uint32_t recipe = GENERATE(QUIRE_RECIPE_QUIRE_BUDGET, QUIRE_RECIPE_DIFFKV_UPSTREAM);
  const bool mixed = GENERATE(false, true);
  const std::uint64_t seed = GENERATE(7701u, 7702u, 7703u);
  Planted planted(seed, recipe, mixed);
  INFO(planted.rng.describe() << " recipe " << recipe << " mixed " << mixed);
  std::size_t searched = 0;
  for (int i = 0; i < 60; ++i) {
    Policy& policy = planted.rig.state().slots[planted.slot].policy;
    policy.byte_target = 0.1 + 0.012 * i;
    INFO("byte target " << policy.byte_target);
    check_factor(planted, request_of(planted, 0, 16), &searched);
    check_factor(planted, request_of(planted, 1, 16), &searched);
  }
  REQUIRE(searched > 10);
}

TEST_CASE("the byte controller meets record budgets exactly", "[policy][controller]") {
  const bool mixed = GENERATE(false, true);
  Planted planted(7704, QUIRE_RECIPE_QUIRE_BUDGET, mixed);
  INFO(planted.rng.describe() << " mixed " << mixed);
  std::size_t searched = 0;
  for (std::uint64_t bytes = 12000; bytes < 160000; bytes += 1571) {
    Policy& policy = planted.rig.state().slots[planted.slot].policy;
    policy.byte_target = 0.0;
    policy.budget_bytes = bytes;
    INFO("budget " << bytes);
    check_factor(planted, request_of(planted, 0, 16), &searched);
  }
  REQUIRE(searched > 20);
}

// Exact counts may ask for a little more than the bins did; every step of that walk counts all
// tokens of all layers again, so a long one stalls the engine.
TEST_CASE("exact counts end within a few steps of the found factor", "[policy][controller]") {
  constexpr int kWalk = 4;
  const std::uint64_t seed = GENERATE(7711u, 7712u);
  Rng rng(seed);
  INFO(rng.describe());
  const Stream stream(factor_shape(), rng);
  int searched = 0;
  for (int i = 0; i < 40; ++i) {
    RigSpec spec(QUIRE_RECIPE_DIFFKV_UPSTREAM, factor_shape());
    spec.set_ring(1, 16);
    spec.policy.byte_target = 0.35 + 0.01 * i;
    Rig rig(spec);
    const std::int32_t slot = rig.open();
    rig.prompt(slot, stream, 300);
    for (std::uint32_t t = 300; t < 316; ++t) rig.step(slot, stream, t);
    ControlRequest request;
    request.slot = slot;
    request.layers = 3;
    request.length = 316;
    request.first_growth = 1;
    request.last_growth = 16;
    const float found = find_factor(rig.state(), request);
    REQUIRE(rig.begin(slot).ok());
    const float used = rig.state().step.slots[0].factor;
    INFO("byte target " << spec.policy.byte_target << " found " << found << " used " << used);
    REQUIRE(used >= found);
    if (found > 0.0f && found < kDropAll) {
      ++searched;
      REQUIRE(std::log(used / found) <= (kWalk + 0.5f) * std::log(kFactorStep));
    }
  }
  REQUIRE(searched > 10);
}

}  // namespace
}  // namespace quire::test
