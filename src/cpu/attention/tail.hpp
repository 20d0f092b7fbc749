// The tail pass: what the last queries of a prompt think of every key. No [Q][N] buffer exists.
#pragma once

#include "src/backend.hpp"

namespace quire::cpu {

std::uint64_t tail_workspace(const TailShape& shape);
void tail_scores(const TailCall& call);

}  // namespace quire::cpu
