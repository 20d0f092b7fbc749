// From the structs of quire.h to the types of the library: sizes, flags, pointers, errors.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>

#include "quire/core/status.hpp"
#include "quire/core/view.hpp"
#include "quire/quire.h"
#include "src/backend.hpp"

namespace quire {

inline constexpr std::uint32_t kLayoutFlags =
    QUIRE_LAYOUT_NO_SCORE | QUIRE_LAYOUT_NO_POSITION | QUIRE_LAYOUT_BIAS;

// Queries beyond this are refused: dot products with stored keys then stay finite in fp32.
inline constexpr float kMaxQuery = 1.0e30f;

// With QUIRE_CACHE_SATURATE: all finite numbers but the last few, whose sums would overflow.
inline constexpr float kMaxSaturating = 3.0e38f;

// No struct of any version is larger: such a size was never initialised.
inline constexpr std::uint32_t kLargestStruct = 4096;

// Copies a caller's struct. A larger one is of a newer header: fine as long as what this version
// does not know is zero. A smaller one is of no version there ever was.
template <class ArgsT>
Status read_args(const ArgsT* in, const char* name, std::uint32_t known_flags, ArgsT& out) {
  if (in == nullptr) return invalid(name, "not NULL");
  std::uint32_t size;
  std::memcpy(&size, in, sizeof(size));
  if (size < sizeof(ArgsT) || size > kLargestStruct) {
    return fail(StatusCode::kAbiMismatch,
                "struct_size",
                "the size of this version's struct",
                sizeof(ArgsT),
                size);
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(in);
  for (std::uint32_t i = sizeof(ArgsT); i < size; ++i) {
    if (bytes[i] != 0) {
      return fail(StatusCode::kAbiMismatch,
                  "struct_size",
                  "no field behind those of this version",
                  sizeof(ArgsT),
                  i);
    }
  }
  std::memcpy(&out, in, sizeof(ArgsT));
  std::uint32_t flags;
  std::memcpy(&flags, bytes + 4, sizeof(flags));
  if ((flags & ~known_flags) != 0) {
    return fail(StatusCode::kAbiMismatch,
                "flags",
                "only flags that this version knows",
                known_flags,
                flags);
  }
  return ok_status();
}

// Writes a failure where the caller asked for it, and returns the number.
quire_status report(quire_error* error, const Status& status);

// Runs the body of an entry point: nothing ever leaves it but a status.
template <class BodyT>
quire_status guarded(quire_error* error, BodyT&& body) {
  try {
    return report(error, body());
  } catch (...) {
    return report(error, fail(StatusCode::kInternal, "quire", "no exception inside the library"));
  }
}

// The error pointer of an args struct that may be NULL or of a wrong size itself.
template <class ArgsT>
quire_error* error_of(const ArgsT* args) {
  if (args == nullptr || args->struct_size < sizeof(ArgsT) || args->struct_size > kLargestStruct)
    return nullptr;
  return args->error;
}

struct RowsShape {
  std::uint32_t tokens;
  std::uint32_t heads;
  std::uint32_t dim;
};

// Checks pointer, dtype, alignment; fills in dense strides.
Status read_rows(const quire_rows& rows, const char* name, const RowsShape& shape, RowsView& view);
Status read_rows(const quire_rows& rows,
                 const char* name,
                 const RowsShape& shape,
                 MutableRowsView& view);

Status read_rule(const quire_rule& rule,
                 std::uint32_t head_dim_k,
                 std::uint32_t q_heads,
                 AttentionRule& out);

Status read_parallel(const quire_parallel* parallel, std::uint32_t threads, Parallel& out);

VectorFormat to_format(const quire_vector_format& format);
Format to_format(const quire_format& format);

// A description inside another struct: it cannot be larger than its place.
Status check_embedded(const quire_layout_desc& desc);

// The desc's struct_size and flags have been read already.
Status to_layout_spec(const quire_layout_desc& desc, PageLayoutSpec& spec);

// Positions are implied by the order of tokens in one tier only.
Status check_implied_positions(const PageLayout& layout);

void to_layout(const PageLayout& layout, std::uint32_t flags, quire_layout* out);

Status read_policy(const quire_policy* in, Policy& out);
void write_policy(const Policy& in, quire_policy* out);

}  // namespace quire
