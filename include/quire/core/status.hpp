// Status instead of exceptions: a code, the field that is wrong, and the range that is allowed.
#pragma once

#include <cstdint>
#include <utility>

#include "quire/core/config.hpp"

namespace quire {

// Numbers are part of the C ABI (quire_status in quire.h) and are never reused.
enum class StatusCode : std::int32_t {
  kOk = 0,
  kInvalidArgument = 1,  // a field is outside its allowed range
  kUnsupported = 2,      // a legal request that this build or version refuses
  kBadState = 3,         // a call out of order
  kOutOfPages = 4,       // the pool has fewer free pages than the call needs
  kCapacity = 5,         // more sequences or tokens than declared at create
  kMemoryTooSmall = 6,   // a region given by the caller is smaller than asked for
  kMisaligned = 7,       // a pointer or stride misses its alignment
  kAbiMismatch = 8,      // struct_size or flags of another header version
  kBadValue = 9,         // NaN, infinite or out-of-range numbers in K, V or q
  kNotReversible = 10,   // a strict truncate that would lose tokens
  kInternal = 11,        // a defect of quire
};

// `field`, `rule` are static strings. `needed` and `given` are the two numbers of the complaint,
// for example pages missing and pages free; 0 where there are none.
struct [[nodiscard]] Status {
  StatusCode code = StatusCode::kOk;
  const char* field = "";
  const char* rule = "";
  std::uint64_t needed = 0;
  std::uint64_t given = 0;

  QUIRE_HD constexpr bool ok() const { return code == StatusCode::kOk; }
};

QUIRE_HD constexpr Status ok_status() { return Status{}; }

QUIRE_HD constexpr Status fail(StatusCode code,
                               const char* field,
                               const char* rule,
                               std::uint64_t needed = 0,
                               std::uint64_t given = 0) {
  return Status{code, field, rule, needed, given};
}

QUIRE_HD constexpr Status invalid(const char* field,
                                  const char* rule,
                                  std::uint64_t needed = 0,
                                  std::uint64_t given = 0) {
  return fail(StatusCode::kInvalidArgument, field, rule, needed, given);
}

// A value or the reason why there is none. T is default-constructible and cheap to move.
template <class T>
class [[nodiscard]] Expected {
 public:
  constexpr Expected(T value) : value_(std::move(value)) {}
  constexpr Expected(Status status) : status_(status) {}

  constexpr bool ok() const { return status_.ok(); }
  constexpr const Status& status() const { return status_; }
  constexpr const T& value() const {
    QUIRE_ASSERT(ok());
    return value_;
  }

 private:
  T value_{};
  Status status_{};
};

}  // namespace quire
