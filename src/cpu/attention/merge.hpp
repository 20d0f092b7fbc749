// Joining attention parts by their log-sum-exp.
#pragma once

#include "src/backend.hpp"

namespace quire::cpu {

void merge(const MergeCall& call);

}  // namespace quire::cpu
