// The CPU backend's attention entry.
#pragma once

#include "src/cpu/attention/parts.hpp"

namespace quire::cpu {

void attention(const AttentionCall& call);

// Instruction set that run-time dispatch chose, e.g. "AVX3".
const char* target_name();

}  // namespace quire::cpu
