// Steps with drafts: rows of the caller from a stream, outputs row by row.
#pragma once

#include <vector>

#include "support/lifecycle.hpp"

namespace quire::test {

// Rows of one sequence in a step: row r takes K, V and q of token `tokens[r]` of the stream.
struct DraftRows {
  std::vector<std::uint32_t> tokens;
  std::vector<std::uint32_t> sees;  // empty: each row follows the one before
};

// A chain from a token on.
inline DraftRows chain(std::uint32_t first, std::uint32_t rows) {
  DraftRows d;
  for (std::uint32_t r = 0; r < rows; ++r) d.tokens.push_back(first + r);
  return d;
}

// A tree whose row r > 0 hangs below row parent[r - 1]; rows take tokens first, first + 1, ...
inline DraftRows tree(std::uint32_t first, const std::vector<std::uint32_t>& parent) {
  DraftRows d = chain(first, static_cast<std::uint32_t>(parent.size()) + 1);
  d.sees.push_back(1);
  for (std::uint32_t r = 1; r <= parent.size(); ++r)
    d.sees.push_back(d.sees[parent[r - 1]] | (1u << r));
  return d;
}

enum class RowsOf { kKeys, kValues, kQueries };

inline std::vector<float> rows_from(const Stream& stream,
                                    const DraftRows& d,
                                    std::uint32_t layer,
                                    RowsOf what) {
  std::vector<float> all;
  const std::size_t kv = std::size_t{stream.shape.kv_heads} * stream.shape.dim;
  for (const std::uint32_t t : d.tokens) {
    const bool query = what == RowsOf::kQueries;
    const float* row = query ? stream.q(layer, t)
                             : (what == RowsOf::kKeys ? stream.k(layer, t) : stream.v(layer, t));
    all.insert(all.end(), row, row + (query ? kv * stream.shape.group : kv));
  }
  return all;
}

inline Result begin_drafts(const Rig& rig, std::int32_t slot, const DraftRows& d) {
  quire_step_begin_args args = QUIRE_STEP_BEGIN_ARGS_INIT;
  args.slots = &slot;
  args.batch = 1;
  args.rows = static_cast<std::uint32_t>(d.tokens.size());
  args.draft_mask = d.sees.empty() ? nullptr : d.sees.data();
  return rig.cache.step_begin(args);
}

// One step up to its end; outputs [layers, rows, q_heads, dim].
inline std::vector<float> step_drafts(Rig& rig,
                                      std::int32_t slot,
                                      const Stream& stream,
                                      const DraftRows& d,
                                      const quire_rule& rule = {}) {
  const Result begun = begin_drafts(rig, slot, d);
  INFO(begun.text());
  REQUIRE(begun.ok());
  std::vector<float> all;
  for (std::uint32_t layer = 0; layer < stream.shape.layers; ++layer) {
    const std::vector<float> k = rows_from(stream, d, layer, RowsOf::kKeys);
    const std::vector<float> v = rows_from(stream, d, layer, RowsOf::kValues);
    const std::vector<float> q = rows_from(stream, d, layer, RowsOf::kQueries);
    rig.append(layer, k.data(), v.data());
    std::vector<float> out(q.size());
    quire_attention_args args = QUIRE_ATTENTION_ARGS_INIT;
    args.layer = layer;
    args.q = rows_of(q.data());
    args.out = rows_of(out.data());
    args.splits = 1;
    args.rule = rule;
    const Result done = rig.cache.attention(args);
    INFO(done.text());
    REQUIRE(done.ok());
    all.insert(all.end(), out.begin(), out.end());
  }
  REQUIRE(rig.cache.step_end().ok());
  return all;
}

inline Result accept_rows(const Rig& rig,
                          std::int32_t slot,
                          const std::vector<std::uint32_t>& rows) {
  quire_accept_args args = QUIRE_ACCEPT_ARGS_INIT;
  const auto count = static_cast<std::uint32_t>(rows.size());
  args.slots = &slot;
  args.batch = 1;
  args.row_stride = count;
  args.counts = &count;
  args.rows = rows.data();
  return rig.cache.accept(args);
}

}  // namespace quire::test
