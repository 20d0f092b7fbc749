// A prompt in one round or several, on an empty sequence or on a past.
#pragma once

#include "src/cache.hpp"

namespace quire {

// The open round of a sequence. Arrays over its tokens are by position, [0, length).
struct PromptRound {
  std::int32_t slot = 0;
  std::uint32_t first = 0;   // position of the round's first token: tokens stored before
  std::uint32_t tokens = 0;  // of the round
  std::uint32_t begin = 0;   // position of the prompt's first token, which may be of an older round
  bool more = false;         // not the prompt's last round: all goes high, nothing is scored

  std::uint32_t length() const { return first + tokens; }
  std::uint32_t prompt_tokens() const { return length() - begin; }
};

PromptRound open_round(const CacheState& cache, std::int32_t slot);

// Positions that are outside the ring when the round is stored and were in the ring, or not there,
// before.
struct Entering {
  std::uint32_t first = 0;
  std::uint32_t last = 0;  // exclusive

  std::uint32_t count() const { return last - first; }
};
Entering entering(const CacheState& cache, const PromptRound& round);

// Pages that layers [layer, layers) can take, and those of one layer.
std::uint64_t round_pages(const CacheState& cache, const PromptRound& round, std::uint32_t layer);
std::uint64_t round_layer_pages(const CacheState& cache,
                                const PromptRound& round,
                                std::uint32_t layer);

// What prefill_begin reserves.
std::uint64_t reserved_pages(const CacheState& cache, const PromptRound& round);

// What of the open round's credit is the next layer's.
std::uint64_t layer_share(const CacheState& cache, const PromptRound& round);

// Rows of queries that score the round, 0 where nothing is scored.
std::uint32_t scoring_rows(const Policy& policy, const PromptRound& round);

}  // namespace quire
