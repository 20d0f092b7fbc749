// Argument checks that have to look at numbers.
#pragma once

#include "src/backend.hpp"

namespace quire::cpu {

std::int64_t find_bad_value(const RowsView& rows,
                            std::uint32_t sequences,
                            std::uint32_t tokens,
                            std::uint32_t heads,
                            std::uint32_t dim,
                            float limit);

}  // namespace quire::cpu
