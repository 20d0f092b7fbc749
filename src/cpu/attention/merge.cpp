#include "src/cpu/attention/merge.hpp"

#include "quire/attention/online_softmax.hpp"
#include "quire/core/types.hpp"

namespace quire::cpu {
namespace {

constexpr float kLn2 = 0.69314718055994530942f;
constexpr float kLog2E = 1.44269504088896340736f;

float natural_lse(const MergePart& part, std::uint64_t index) {
  return part.lse_base_2 ? part.lse[index] * kLn2 : part.lse[index];
}

// One output row of one query head.
void merge_row(const MergeCall& call, std::uint32_t row, std::uint32_t head) {
  const std::uint64_t index = std::uint64_t{row} * call.q_heads + head;
  float total = kMinusInfinity;
  for (std::uint32_t p = 0; p < call.part_count; ++p)
    total = log_add(total, natural_lse(call.parts[p], index));
  const float whole = call.sink_logits == nullptr || total == kMinusInfinity
                          ? total
                          : log_add(total, call.sink_logits[head]);
  float sum[kMaxHeadDim] = {};
  for (std::uint32_t p = 0; p < call.part_count; ++p) {
    const float weight = part_weight(natural_lse(call.parts[p], index), whole);
    if (weight == 0.0f) continue;
    const RowsView& rows = call.parts[p].out;
    const std::int64_t at = rows.offset(0, row, head);
    for (std::uint32_t d = 0; d < call.head_dim_v; ++d) {
      sum[d] += weight * load_as_float(rows.data, rows.dtype, at + d);
    }
  }
  const std::int64_t at = call.out.offset(0, row, head);
  for (std::uint32_t d = 0; d < call.head_dim_v; ++d)
    store_from_float(call.out.data, call.out.dtype, at + d, sum[d]);
  if (call.lse != nullptr) call.lse[index] = call.lse_base_2 ? total * kLog2E : total;
}

}  // namespace

void merge(const MergeCall& call) {
  for (std::uint32_t row = 0; row < call.rows; ++row) {
    for (std::uint32_t head = 0; head < call.q_heads; ++head) merge_row(call, row, head);
  }
}

}  // namespace quire::cpu
