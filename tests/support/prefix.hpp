// Prefix handles of one stream of tokens.
#pragma once

#include "support/lifecycle.hpp"

namespace quire::test {

constexpr std::uint32_t kPrompt = 120;
constexpr std::uint32_t kTokens = 260;

struct Name {
  std::uint64_t word[2] = {};
  friend bool operator==(const Name& a, const Name& b) {
    return a.word[0] == b.word[0] && a.word[1] == b.word[1];
  }
};

struct Prefix {
  explicit Prefix(std::uint32_t recipe, std::uint32_t sequences = 6)
      : Prefix(fork_spec(recipe, sequences)) {}
  explicit Prefix(const RigSpec& spec)
      : rng(9971), stream(fork_shape(kTokens), rng), rig(spec), ids(kTokens) {
    for (std::uint32_t t = 0; t < kTokens; ++t)
      ids[t] = static_cast<std::int32_t>((t * 7919) % 32003) - 3;
  }

  // A handle of the first `tokens` tokens.
  std::int32_t handle(std::uint32_t tokens, Name* name = nullptr) {
    const std::int32_t slot = rig.open();
    rig.prompt(slot, stream, tokens);
    Name got;
    const Result frozen = rig.cache.freeze(slot, ids.data(), tokens, got.word);
    INFO(frozen.text());
    REQUIRE(frozen.ok());
    if (name != nullptr) *name = got;
    return slot;
  }

  // The handle found for the first `tokens` ids; -1: none.
  std::int32_t find(std::uint32_t tokens, std::uint32_t* held = nullptr) const {
    quire_seq_open_args open = QUIRE_SEQ_OPEN_ARGS_INIT;
    open.policy = &rig.spec.policy;
    open.thresholds = rig.spec.thresholds.data();
    open.threshold_count = rig.spec.thresholds.size();
    quire_prefix_find_args args = QUIRE_PREFIX_FIND_ARGS_INIT;
    std::int32_t slot = -7;
    args.token_ids = ids.data();
    args.token_count = tokens;
    args.open = &open;
    args.slot = &slot;
    args.tokens = held;
    const Result found = rig.cache.find_prefix(args);
    INFO(found.text());
    REQUIRE(found.ok());
    return slot;
  }

  Rng rng;
  Stream stream;
  Rig rig;
  std::vector<std::int32_t> ids;
};

inline void require_refused(const Result& result, quire_status status, const char* field) {
  INFO(result.text());
  REQUIRE(result.status() == status);
  REQUIRE(std::string(result.field()) == field);
}

}  // namespace quire::test
