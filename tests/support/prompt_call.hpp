// quire_prefill_begin from plain arguments.
#pragma once

#include <cstdint>

#include "quire/quire.h"

namespace quire::test {

inline quire_status begin_prompt(quire_cache* cache,
                                 std::int32_t slot,
                                 std::uint32_t tokens,
                                 quire_error* error,
                                 std::uint32_t flags = 0) {
  quire_prefill_begin_args args = QUIRE_PREFILL_BEGIN_ARGS_INIT;
  args.flags = flags;
  args.slot = slot;
  args.tokens = tokens;
  args.error = error;
  return quire_prefill_begin(cache, &args);
}

}  // namespace quire::test
