// Rows of a step beside the new token: drafts that a speculating engine wants judged in one pass.
#pragma once

#include <cstdint>

#include "quire/core/config.hpp"
#include "quire/core/types.hpp"

namespace quire {

// Which rows a row of a step sees. Row 0 is the new token; a draft's parent is an earlier row, and
// it sees what its parent sees and itself.
struct DraftTree {
  std::uint16_t sees[kMaxDecodeRows] = {};  // bit j of entry r: row r sees row j

  QUIRE_HD bool visible(std::uint32_t row, std::uint32_t key_row) const {
    return ((sees[row] >> key_row) & 1u) != 0;
  }

  // Steps from row 0, which is how far the row's position lies behind that of row 0.
  QUIRE_HD std::int32_t depth(std::uint32_t row) const {
    std::int32_t count = -1;
    for (std::uint32_t bits = sees[row]; bits != 0; bits &= bits - 1) ++count;
    return count;
  }

  // The row before it on the way from row 0; row 0 has none.
  QUIRE_HD std::int32_t parent(std::uint32_t row) const {
    std::int32_t p = static_cast<std::int32_t>(row) - 1;
    while (p >= 0 && !visible(row, static_cast<std::uint32_t>(p))) --p;
    return p;
  }
};

// Every row follows the one before.
QUIRE_HD inline DraftTree linear_drafts() {
  DraftTree tree;
  for (std::uint32_t r = 0; r < kMaxDecodeRows; ++r)
    tree.sees[r] = static_cast<std::uint16_t>((2u << r) - 1);
  return tree;
}

}  // namespace quire
