// Drafted rows of a step: what a call may ask for, pages for those that may be accepted.
#pragma once

#include "src/cache.hpp"

namespace quire {

// The rows of a step as the caller describes them.
struct StepRows {
  std::uint32_t rows = 1;                 // of the caller's arrays, per sequence
  const std::uint32_t* counts = nullptr;  // [batch] of them in use; nullptr: all
  const std::uint32_t* masks = nullptr;   // [batch, rows]; nullptr: each row follows the one before

  std::uint32_t count(std::uint32_t index) const {
    return counts == nullptr ? rows : counts[index];
  }
};

// Rows that a step may have: every layer group needs the ring slots.
std::uint32_t most_rows(const quire_cache& cache);

Status read_step_rows(const quire_cache& cache, const quire_step_begin_args& args, StepRows& out);

// Count and mask of one sequence of the batch.
Status check_rows_of(const StepRows& rows, std::uint32_t index);

void set_rows(const StepRows& rows, std::uint32_t index, StepSlot& out);

// Pages that accepting all drafts of a planned sequence can take beyond those of the step.
std::uint64_t draft_pages(const CacheState& cache, std::uint32_t index);

}  // namespace quire
