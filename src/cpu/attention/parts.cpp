#include "src/cpu/attention/parts.hpp"

#include <algorithm>

namespace quire::cpu {
namespace {

struct BufferSizes {
  std::uint64_t columns = 1;
  std::uint64_t head_dim_k = 0;
  std::uint64_t head_dim_v = 0;
  std::uint64_t k_groups = 1;
  std::uint64_t parts_per_unit = 1;
  std::uint64_t stage_bytes = 0;
};

PartResult take_result(const BufferSizes& sizes, Arena& arena) {
  PartResult result;
  result.max = arena.take<float>(sizes.columns);
  result.sum = arena.take<float>(sizes.columns);
  result.acc = arena.take<float>(sizes.columns * sizes.head_dim_v);
  return result;
}

TaskScratch take_scratch(const BufferSizes& sizes, Arena& arena) {
  TaskScratch scratch;
  scratch.q = arena.take<float>(sizes.columns * sizes.head_dim_k);
  scratch.q_sums = arena.take<float>(sizes.columns * sizes.k_groups);
  scratch.constants = arena.take<float>(sizes.columns);
  scratch.keys = arena.take<float>(kTileTokens * sizes.head_dim_k);
  scratch.values = arena.take<float>(kTileTokens * sizes.head_dim_v);
  scratch.logits = arena.take<float>(sizes.columns * kTileTokens);
  scratch.dots = arena.take<float>(sizes.columns * kTileTokens);
  scratch.meta = arena.take<float>(2 * kTileTokens);
  scratch.lse = arena.take<float>(sizes.columns);
  scratch.local = arena.take<PartResult>(sizes.parts_per_unit);
  for (std::uint64_t i = 0; i < sizes.parts_per_unit; ++i) {
    const PartResult result = take_result(sizes, arena);
    if (scratch.local != nullptr) scratch.local[i] = result;
  }
  scratch.stage = arena.take<std::uint8_t>(sizes.stage_bytes);
  return scratch;
}

std::uint64_t segment_bytes(const Segment& s) {
  return std::uint64_t{s.count} * (s.layout->record_bytes - s.layout->fields.bytes());
}

// Walks all segments of all units and closes parts at unit ends and at task borders (automatic), or
// at equal counts of segments (fixed splits).
class PartBuilder {
 public:
  PartBuilder(const AttentionCall& call, CallPlan& plan) : call_(call), plan_(plan) {
    for (std::uint32_t u = 0; u < call.unit_count; ++u) total_ += call.units[u].view.read_bytes();
  }

  void build() {
    for (std::uint32_t u = 0; u < call_.unit_count; ++u) {
      plan_.units[u].first_part = plan_.part_count;
      if (call_.splits == 0) {
        cut_at_tasks(u);
      } else {
        cut_evenly(u);
      }
      UnitPlan& unit = plan_.units[u];
      unit.part_count = plan_.part_count - unit.first_part;
      unit.straddles = plan_.parts[unit.first_part].task != plan_.parts[plan_.part_count - 1].task;
    }
  }

 private:
  std::uint32_t task_at(std::uint64_t byte) const {
    if (total_ == 0) return 0;
    const std::uint64_t task = byte * plan_.task_count / total_;
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(task, plan_.task_count - 1));
  }

  void open(std::uint32_t unit, std::uint32_t segment, std::uint64_t stage_offset) {
    Part& part = plan_.parts[plan_.part_count++];
    part = Part{};
    part.unit = unit;
    part.first_segment = segment;
    part.last_segment = segment;
    part.task = task_at(done_);
    part.stage_offset = stage_offset;
  }

  void cut_at_tasks(std::uint32_t u) {
    const HeadView& view = call_.units[u].view;
    std::uint64_t stage = 0;
    open(u, 0, 0);
    for (std::uint32_t i = 0; i < view.segment_count(); ++i) {
      if (task_at(done_) != plan_.parts[plan_.part_count - 1].task) open(u, i, stage);
      advance(view.segment(i), stage);
    }
  }

  void cut_evenly(std::uint32_t u) {
    const HeadView& view = call_.units[u].view;
    const std::uint64_t count = view.segment_count();
    std::uint64_t stage = 0;
    std::uint64_t next = 0;
    for (std::uint64_t p = 0; p < call_.splits; ++p) {
      open(u, static_cast<std::uint32_t>(next), stage);
      for (; next < count * (p + 1) / call_.splits; ++next) {
        advance(view.segment(static_cast<std::uint32_t>(next)), stage);
      }
    }
  }

  void advance(const Segment& segment, std::uint64_t& stage) {
    ++plan_.parts[plan_.part_count - 1].last_segment;
    stage += stage_bytes(segment.count, plan_.scored_columns);
    done_ += segment_bytes(segment);
  }

  const AttentionCall& call_;
  CallPlan& plan_;
  std::uint64_t total_ = 0;
  std::uint64_t done_ = 0;
};

std::uint64_t unit_stage_bytes(const HeadView& view, std::uint64_t columns) {
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < view.segment_count(); ++i)
    bytes += stage_bytes(view.segment(i).count, columns);
  return bytes;
}

std::uint32_t k_groups_of(const AttentionCall& call) {
  std::uint32_t most = 1;
  for (std::uint32_t u = 0; u < call.unit_count; ++u) {
    const HeadView& view = call.units[u].view;
    for (std::uint32_t t = 0; t < view.tier_count; ++t) {
      most = std::max(most, group_count(view.tiers[t].format.k, view.tiers[t].head_dim_k));
    }
    if (view.ring != nullptr) {
      most = std::max(most, group_count(view.ring->tokens.format.k, view.ring->tokens.head_dim_k));
    }
  }
  return most;
}

}  // namespace

std::uint64_t attention_workspace(const AttentionShape& shape) {
  BufferSizes sizes;
  sizes.columns = std::uint64_t{shape.rows} * shape.group;
  sizes.head_dim_k = shape.head_dim_k;
  sizes.head_dim_v = shape.head_dim_v;
  sizes.k_groups = shape.k_groups;
  sizes.parts_per_unit = std::max(shape.splits, 1u);
  const std::uint64_t scored = std::uint64_t{shape.score_rows} * shape.group;
  sizes.stage_bytes = scored * (2 * (shape.max_tokens + shape.max_segments) +
                                4 * (shape.max_tokens / kTileTokens + shape.max_segments));
  Arena arena(Workspace{});
  arena.take<UnitPlan>(shape.max_units);
  arena.take<Part>(shape.max_units * sizes.parts_per_unit + shape.width);
  arena.take<TaskScratch>(shape.width);
  for (std::uint32_t t = 0; t < shape.width; ++t) take_scratch(sizes, arena);
  // Straddling units: at most width - 1, with a part per task border or the fixed count of parts.
  const std::uint64_t straddling = shape.width - 1;
  for (std::uint64_t i = 0; i < straddling; ++i) arena.take<std::uint8_t>(sizes.stage_bytes);
  const std::uint64_t parts = straddling * std::max<std::uint64_t>(sizes.parts_per_unit, 2);
  for (std::uint64_t i = 0; i < parts; ++i) take_result(sizes, arena);
  return arena.used();
}

CallPlan plan_call(const AttentionCall& call, Arena& arena) {
  CallPlan plan;
  plan.columns = call.rows * call.group;
  plan.scored_columns = call.score_rows * call.group;
  plan.task_count = std::max(1u, call.parallel.run == nullptr ? 1u : call.parallel.width);
  BufferSizes sizes;
  sizes.columns = plan.columns;
  sizes.head_dim_k = call.units[0].view.tiers[0].head_dim_k;
  sizes.head_dim_v = call.units[0].view.tiers[0].head_dim_v;
  sizes.k_groups = k_groups_of(call);
  sizes.parts_per_unit = std::max(call.splits, 1u);
  for (std::uint32_t u = 0; u < call.unit_count; ++u) {
    sizes.stage_bytes =
        std::max(sizes.stage_bytes, unit_stage_bytes(call.units[u].view, plan.scored_columns));
  }
  plan.units = arena.take<UnitPlan>(call.unit_count);
  plan.parts = arena.take<Part>(call.unit_count * sizes.parts_per_unit + plan.task_count);
  plan.tasks = arena.take<TaskScratch>(plan.task_count);
  for (std::uint32_t u = 0; u < call.unit_count; ++u) plan.units[u] = UnitPlan{};
  PartBuilder(call, plan).build();
  for (std::uint32_t t = 0; t < plan.task_count; ++t) plan.tasks[t] = take_scratch(sizes, arena);
  for (std::uint32_t u = 0; u < call.unit_count; ++u) {
    UnitPlan& unit = plan.units[u];
    if (!unit.straddles) continue;
    unit.stage = arena.take<std::uint8_t>(sizes.stage_bytes);
    for (std::uint32_t p = 0; p < unit.part_count; ++p) {
      plan.parts[unit.first_part + p].result = take_result(sizes, arena);
    }
  }
  return plan;
}

}  // namespace quire::cpu
