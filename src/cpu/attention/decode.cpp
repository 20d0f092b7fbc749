// Attention over ring and pages on the CPU: every (sequence, KV head) is a unit, all query heads of
// its group are columns of one pass, so each stored byte is read once.
//
//   parts.cpp      cuts the call into parts of about equal bytes, carves the workspace
//   decode-inl.h   one part: tiles of 64 tokens, online softmax, scales outside the element loop
//   combine-inl.h  parts to output, LSE and scores
//   this file      the two passes over the caller's threads, once per instruction set
#include "src/cpu/attention/decode.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/cpu/attention/decode.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "src/cpu/attention/combine-inl.h"
#include "src/cpu/attention/decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire {
namespace HWY_NAMESPACE {

// The parts of one task. Units that end inside it are finished at once, with the task's buffers.
void run_task(const AttentionCall& call, const CallPlan& plan, std::uint32_t task) {
  const TaskScratch& scratch = plan.tasks[task];
  for (std::uint32_t u = 0; u < call.unit_count; ++u) {
    const cpu::UnitPlan& unit = plan.units[u];
    const Part* parts = plan.parts + unit.first_part;
    if (parts[unit.part_count - 1].task < task || parts[0].task > task) continue;
    const TileWork work{call, call.units[u], plan, scratch, plan.columns};
    prepare_queries(work);
    for (std::uint32_t p = 0; p < unit.part_count; ++p) {
      if (parts[p].task != task) continue;
      const PartResult& result = unit.straddles ? parts[p].result : scratch.local[p];
      attend_part(work, parts[p], result, unit.straddles ? unit.stage : scratch.stage);
    }
    if (!unit.straddles) finish_unit(work, scratch.local, unit.part_count, scratch.stage);
  }
}

// Units that straddle tasks, dealt out over the tasks.
void finish_straddling(const AttentionCall& call, const CallPlan& plan, std::uint32_t task) {
  std::uint32_t turn = 0;
  for (std::uint32_t u = 0; u < call.unit_count; ++u) {
    const cpu::UnitPlan& unit = plan.units[u];
    if (!unit.straddles || turn++ % plan.task_count != task) continue;
    const TileWork work{call, call.units[u], plan, plan.tasks[task], plan.columns};
    const Part* parts = plan.parts + unit.first_part;
    for (std::uint32_t p = 1; p < unit.part_count; ++p) {
      const PartResult pair[2] = {parts[0].result, parts[p].result};
      join_parts(pair, 2, plan.columns, call.units[u].view.tiers[0].head_dim_v);
    }
    finish_unit(work, &parts[0].result, 1, unit.stage);
  }
}

std::int64_t target_bits() { return HWY_TARGET; }

}  // namespace HWY_NAMESPACE
}  // namespace quire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace quire::cpu {

HWY_EXPORT(run_task);
HWY_EXPORT(finish_straddling);
HWY_EXPORT(target_bits);

void attention(const AttentionCall& call) {
  if (call.unit_count == 0) return;
  Arena arena(call.workspace);
  const CallPlan plan = plan_call(call, arena);
  const auto task = HWY_DYNAMIC_DISPATCH(run_task);
  const auto finish = HWY_DYNAMIC_DISPATCH(finish_straddling);
  call.parallel.for_each(plan.task_count, [&](std::uint32_t t) { task(call, plan, t); });
  bool straddling = false;
  for (std::uint32_t u = 0; u < call.unit_count; ++u)
    straddling = straddling || plan.units[u].straddles;
  if (!straddling) return;
  call.parallel.for_each(plan.task_count, [&](std::uint32_t t) { finish(call, plan, t); });
}

const char* target_name() { return hwy::TargetName(HWY_DYNAMIC_DISPATCH(target_bits)()); }

}  // namespace quire::cpu

#endif
