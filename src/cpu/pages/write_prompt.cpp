#include <algorithm>

#include "quire/pages/head_tokens.hpp"
#include "src/cpu/pages/write.hpp"

namespace quire::cpu {
namespace {

// One head of a prompt: tokens in order of position, each into the next place of its tier. The
// offset vectors of the head are in its ring block already.
void write_head(const WritePromptCall& call, std::uint32_t head, CodecEvents& events) {
  const HeadView& view = call.views[head];
  const TierLayout& high = view.tiers[0];
  const Tier* tiers = call.tiers + std::uint64_t{head} * call.tokens;
  const float* scores =
      call.scores == nullptr ? nullptr : call.scores + std::uint64_t{head} * call.tokens;
  std::uint32_t next[kMaxTiers] = {};
  float k[kMaxHeadDim];
  float v[kMaxHeadDim];
  for (std::uint32_t t = 0; t < call.tokens; ++t) {
    const auto position = static_cast<std::int32_t>(t);
    if (tiers[t] == Tier::kDropped) continue;
    load_row(call.k, call.k.offset(0, t, head), high.head_dim_k, k);
    load_row(call.v, call.v.offset(0, t, head), high.head_dim_v, v);
    saturate_row(high.head_dim_k, k, events);
    saturate_row(high.head_dim_v, v, events);
    transform_stored(view.k, high.head_dim_k, k);
    transform_stored(view.v, high.head_dim_v, v);
    const auto tier = static_cast<std::uint32_t>(tiers[t]);
    const TokenPlace place =
        tiers[t] == Tier::kKeep ? ring_place(view, position) : place_of(view, tier, next[tier]++);
    write_record(place, k, v, scores == nullptr ? 0.0f : scores[t], position, events);
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
