// Compiler facts that every other header relies on: host-device functions and assertions.
#pragma once

#if defined(__CUDACC__)
#define QUIRE_HD __host__ __device__
#else
#define QUIRE_HD
#endif

// A broken invariant of quire itself. Wrong arguments are never asserted, they become a Status.
// On in debug builds and in tests; the trap stops at the line without printing or unwinding.
#if !defined(QUIRE_ASSERT_LEVEL)
#if defined(NDEBUG)
#define QUIRE_ASSERT_LEVEL 0
#else
#define QUIRE_ASSERT_LEVEL 1
#endif
#endif

#if QUIRE_ASSERT_LEVEL > 0 && defined(__CUDA_ARCH__)
#define QUIRE_ASSERT(condition) ((condition) ? (void)0 : __trap())
#elif QUIRE_ASSERT_LEVEL > 0
#define QUIRE_ASSERT(condition) ((condition) ? (void)0 : __builtin_trap())
#else
#define QUIRE_ASSERT(condition) ((void)0)
#endif

// Returns the status of `expression` from the enclosing function unless it is ok.
#define QUIRE_TRY(expression)                              \
  do {                                                     \
    const ::quire::Status quire_try_status = (expression); \
    if (!quire_try_status.ok()) return quire_try_status;   \
  } while (false)
