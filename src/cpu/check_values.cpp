#include "src/cpu/check_values.hpp"

namespace quire::cpu {

// Index of the first element, counted over [sequences, tokens, heads, dim], that is NaN, infinite
// or beyond the limit; -1 when there is none.
std::int64_t find_bad_value(const RowsView& rows,
                            std::uint32_t sequences,
                            std::uint32_t tokens,
                            std::uint32_t heads,
                            std::uint32_t dim,
                            float limit) {
  std::int64_t index = 0;
  for (std::uint32_t s = 0; s < sequences; ++s) {
    for (std::uint32_t t = 0; t < tokens; ++t) {
      for (std::uint32_t h = 0; h < heads; ++h, index += dim) {
        const std::int64_t at = rows.offset(s, t, h);
        for (std::uint32_t d = 0; d < dim; ++d) {
          const float x = load_as_float(rows.data, rows.dtype, at + d);
          if (!(x >= -limit && x <= limit)) return index + d;
        }
      }
    }
  }
  return -1;
}

}  // namespace quire::cpu
