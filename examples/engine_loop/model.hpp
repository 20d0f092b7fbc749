// A hybrid model made of random numbers: vectors depend on token, position and layer. What it does
// with a cache is what a real one does: rows of every layer in, attention out.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "quire/quire.hpp"

namespace engine {

constexpr std::uint32_t kLayers = 4;
constexpr std::uint32_t kHeads = 2;
constexpr std::uint32_t kQueryHeads = 4;
constexpr std::uint32_t kDim = 64;
constexpr std::uint32_t kRows = 4;  // of a step: a token and three guesses

using Tokens = std::vector<std::int32_t>;

// A request and what has become of it.
struct Sequence {
  Tokens text;                   // prompts and answers so far
  std::size_t stored = 0;        // tokens of it in the cache
  std::size_t prompt_begin = 0;  // of the newest prompt
  std::size_t goal = 0;          // length at which the answer is complete
  int turns = 0;                 // that follow
  std::int32_t slot = -1;
  std::vector<std::uint8_t> frame;  // while it is swapped out
};

inline void need(const quire::Result& result) {
  if (result.ok()) return;
  std::fprintf(stderr, "%s: %s\n", result.field(), result.text());
  std::exit(1);
}

inline std::uint32_t hash(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x45d9f3bu;
  x = (x ^ (x >> 15)) * 0x45d9f3bu;
  return x ^ (x >> 16);
}

inline std::int32_t next_token(const Tokens& text) {
  const auto last = static_cast<std::uint32_t>(text.back());
  return static_cast<std::int32_t>(hash(last * 7 + static_cast<std::uint32_t>(text.size())) % 1000);
}

// Three guesses in four are right.
inline std::int32_t guess(const Tokens& text, std::uint32_t row) {
  const bool wrong = hash(static_cast<std::uint32_t>(text.size()) + row) % 4 == 0;
  return next_token(text) + (wrong ? 1 : 0);
}

// Layers 1 and 3 see everything, 0 and 2 the last 128 tokens.
inline void describe(quire_group_desc* group, quire_policy* policy) {
  static const std::uint32_t ids[2][2] = {{1, 3}, {0, 2}};
  for (int g = 0; g < 2; ++g) {
    quire_recipe_get(QUIRE_RECIPE_DIFFKV_UPSTREAM, policy, &group[g], nullptr);
    group[g].layers = kLayers / 2;
    group[g].kv_heads = kHeads;
    group[g].q_heads = kQueryHeads;
    group[g].layout.head_dim_k = group[g].layout.head_dim_v = kDim;
    group[g].layout.expected_tokens = 256;
    group[g].max_draft = kRows - 1;
    group[g].layer_ids = ids[g];
  }
  group[1].sliding_window = 128;
}

enum Kind : std::uint32_t { kKey, kValue, kQuery };

// Rows of tokens [first, text.size()), added to `out`.
inline void add_rows(const Tokens& text,
                     std::size_t first,
                     std::uint32_t layer,
                     Kind kind,
                     std::vector<float>& out) {
  const std::uint32_t heads = kind == kQuery ? kQueryHeads : kHeads;
  for (std::size_t t = first; t < text.size(); ++t) {
    std::uint32_t x = static_cast<std::uint32_t>(text[t]) * 31 + static_cast<std::uint32_t>(t);
    x = hash(x + 3 * layer + kind);
    for (std::uint32_t i = 0; i < heads * kDim; ++i) {
      x = hash(x + i);
      out.push_back(static_cast<float>(static_cast<std::int32_t>(x)) * 0x1.0p-31f);
    }
  }
}

inline quire_rows rows_of(std::vector<float>& data) { return {data.data(), QUIRE_F32, 0, 0, 0, 0}; }

// The next chunk of a prompt, up to `end`; the model's own attention is left out. False when the
// cache has no room for it: then nothing has happened.
inline bool prefill(const quire::Cache& cache, Sequence& s, std::size_t end) {
  const Tokens text(s.text.begin(), s.text.begin() + static_cast<std::ptrdiff_t>(end));
  const bool last = end == s.text.size();
  const auto count = static_cast<std::uint32_t>(end - s.stored);
  const quire::Result begun = cache.prefill_begin(s.slot, count, last ? 0 : QUIRE_PREFILL_MORE);
  if (begun.status() == QUIRE_OUT_OF_PAGES) return false;
  need(begun);
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    std::vector<float> k, v, q;
    add_rows(text, s.stored, layer, kKey, k);
    add_rows(text, s.stored, layer, kValue, v);
    add_rows(text, s.prompt_begin, layer, kQuery, q);  // scores may want rows of earlier chunks
    quire_prefill_layer_args args = QUIRE_PREFILL_LAYER_ARGS_INIT;
    args.slot = s.slot;
    args.layer = layer;
    args.k = rows_of(k);
    args.v = rows_of(v);
    args.q = rows_of(q);
    args.q_rows = static_cast<std::uint32_t>(end - s.prompt_begin);
    need(cache.prefill_layer(args));
  }
  need(cache.prefill_end(s.slot));
  s.stored = end;
  return true;
}

// One step of a batch: the next token of every sequence and guesses behind it. Returns them.
inline std::vector<Tokens> decode(const quire::Cache& cache, const std::vector<Sequence>& batch) {
  std::vector<std::int32_t> slots;
  std::vector<Tokens> rows;
  for (const Sequence& s : batch) {
    slots.push_back(s.slot);
    rows.push_back(s.text);
    rows.back().push_back(next_token(s.text));
    for (std::uint32_t r = 1; r < kRows; ++r) rows.back().push_back(guess(rows.back(), r));
  }
  quire_step_begin_args begin = QUIRE_STEP_BEGIN_ARGS_INIT;
  begin.slots = slots.data();
  begin.batch = static_cast<std::uint32_t>(slots.size());
  begin.rows = kRows;
  need(cache.step_begin(begin));
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    std::vector<float> k, v, q, out(batch.size() * kRows * kQueryHeads * kDim);
    for (const Tokens& text : rows) {
      add_rows(text, text.size() - kRows, layer, kKey, k);
      add_rows(text, text.size() - kRows, layer, kValue, v);
      add_rows(text, text.size() - kRows, layer, kQuery, q);
    }
    need(cache.append(layer, rows_of(k), rows_of(v)));
    need(cache.attention(layer, rows_of(q), rows_of(out)));
  }
  need(cache.step_end());
  for (Tokens& row : rows) row.erase(row.begin(), row.end() - kRows);
  return rows;
}

}  // namespace engine
