#include <algorithm>

#include "quire/pages/head_tokens.hpp"
#include "src/cpu/pages/write.hpp"

namespace quire::cpu {
namespace {

// One head of a prompt: tokens in order of position, each into the next place of its tier; first
// those whose ring slots the new ones may take. The offset vectors of the head are in its ring
// block already.
void write_head(const WritePromptCall& call, std::uint32_t head, CodecEvents& events) {
  const HeadView& view = call.views[head];
  const TierLayout& high = view.tiers[0];
  const std::uint64_t length = std::uint64_t{call.first} + call.tokens;
  const Tier* tiers = call.tiers + head * length;
  const float* scores = call.scores == nullptr ? nullptr : call.scores + head * length;
  std::uint32_t next[kMaxTiers] = {};
  for (std::uint32_t t = 0; call.stored != nullptr && t < kMaxTiers; ++t)
    next[t] = call.stored[head * kMaxTiers + t];
  for (std::uint32_t p = call.leaving; p < call.first; ++p) {
    if (tiers[p] == Tier::kDropped || tiers[p] == Tier::kKeep) continue;
    const auto tier = static_cast<std::uint32_t>(tiers[p]);
    move_record(
        ring_place(view, static_cast<std::int32_t>(p)), place_of(view, tier, next[tier]++), events);
  }
  float k[kMaxHeadDim];
  float v[kMaxHeadDim];
  for (std::uint32_t t = 0; t < call.tokens; ++t) {
    const std::uint32_t p = call.first + t;
    if (tiers[p] == Tier::kDropped) continue;
    load_row(call.k, call.k.offset(0, t, head), high.head_dim_k, k);
    load_row(call.v, call.v.offset(0, t, head), high.head_dim_v, v);
    saturate_row(high.head_dim_k, k, events);
    saturate_row(high.head_dim_v, v, events);
    transform_stored(view.k, high.head_dim_k, k);
    transform_stored(view.v, high.head_dim_v, v);
    const auto position = static_cast<std::int32_t>(p);
    const auto tier = static_cast<std::uint32_t>(tiers[p]);
    const TokenPlace place =
        tiers[p] == Tier::kKeep ? ring_place(view, position) : place_of(view, tier, next[tier]++);
    write_record(place, k, v, scores == nullptr ? 0.0f : scores[p], position, events);
  }
}

}  // namespace

void write_prompt(const WritePromptCall& call) {
  const std::uint32_t tasks =
      std::min(call.kv_heads, call.parallel.run == nullptr ? 1u : call.parallel.width);
  call.parallel.for_each(tasks, [&](std::uint32_t task) {
    CodecEvents events;
    for (std::uint32_t head = task; head < call.kv_heads; head += tasks)
      write_head(call, head, events);
    call.saturated[task] = events.saturated;
  });
}

}  // namespace quire::cpu
