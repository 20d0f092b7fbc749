// How an attention call is cut into parts, and where each part keeps its results. No SIMD here.
//
// A part is a run of segments of one unit (one sequence and KV head). Tasks get runs of parts of
// about equal bytes. A unit whose parts all belong to one task is finished inside it, with buffers
// of the task; the few units that straddle tasks are finished by a second pass.
#pragma once

#include <cstdint>

#include "src/backend.hpp"
#include "src/cpu/simd/tile.hpp"

namespace quire::cpu {

// Running softmax of the columns (query rows x query heads of the group) over some segments.
struct PartResult {
  float* max = nullptr;  // [columns]
  float* sum = nullptr;  // [columns]
  float* acc = nullptr;  // [columns, head_dim_v], transformed space, not normalised
};

struct Part {
  std::uint32_t unit = 0;
  std::uint32_t first_segment = 0;
  std::uint32_t last_segment = 0;  // exclusive
  std::uint32_t task = 0;
  std::uint64_t stage_offset = 0;  // of its first tile within the unit's stage
  PartResult result;               // set for parts of straddling units
};

struct UnitPlan {
  std::uint32_t first_part = 0;
  std::uint32_t part_count = 0;
  bool straddles = false;
  std::uint8_t* stage = nullptr;  // set for straddling units
};

// Scratch of one task.
struct TaskScratch {
  float* q = nullptr;           // [columns, head_dim_k], scaled and transformed
  float* q_sums = nullptr;      // [columns, k_groups]
  float* constants = nullptr;   // [columns], what the key offset took from every logit
  float* keys = nullptr;        // [kTileTokens, head_dim_k]
  float* values = nullptr;      // [kTileTokens, head_dim_v]
  float* logits = nullptr;      // [columns, kTileTokens]
  float* dots = nullptr;        // [columns, kTileTokens]
  float* meta = nullptr;        // [2, kTileTokens] scale and zero of one group
  float* lse = nullptr;         // [columns]
  PartResult* local = nullptr;  // [parts of a unit]
  std::uint8_t* stage = nullptr;
};

struct CallPlan {
  std::uint32_t columns = 0;
  std::uint32_t scored_columns = 0;
  std::uint32_t task_count = 1;
  std::uint32_t part_count = 0;
  Part* parts = nullptr;
  UnitPlan* units = nullptr;
  TaskScratch* tasks = nullptr;
};

// Bytes of staged logits for a segment: per scored column 16 bits a token and a maximum per tile.
inline std::uint64_t stage_bytes(std::uint64_t tokens, std::uint64_t columns) {
  const std::uint64_t even = round_up(tokens, std::uint64_t{2});  // keeps the maxima aligned
  return columns * (2 * even + 4 * ceil_div(tokens, std::uint64_t{kTileTokens}));
}

std::uint64_t attention_workspace(const AttentionShape& shape);

// Cuts the call and carves its buffers out of the workspace.
CallPlan plan_call(const AttentionCall& call, Arena& arena);

}  // namespace quire::cpu
