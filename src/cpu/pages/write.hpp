// Writing tokens into rings and pages on the CPU: prompts, appends, and re-tiering.
#pragma once

#include "src/backend.hpp"

namespace quire::cpu {

void write_prompt(const WritePromptCall& call);
void append(const AppendCall& call);

}  // namespace quire::cpu
