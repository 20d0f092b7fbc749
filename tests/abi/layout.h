/* Assertions at compile time, in C99, C11 and C++17. */
#ifndef QUIRE_TESTS_ABI_LAYOUT_H
#define QUIRE_TESTS_ABI_LAYOUT_H

#include <stddef.h>

#include "quire/quire.h"

#if defined(__cplusplus)
#define FIX(condition, text) static_assert(condition, text)
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define FIX(condition, text) _Static_assert(condition, text)
#else
#define FIX(condition, text) extern char fixed_at_compile_time[(condition) ? 1 : -1]
#endif

#define SIZE(type, bytes) FIX(sizeof(type) == (bytes), "size of " #type)
#define AT(type, field, bytes) FIX(offsetof(type, field) == (bytes), #type "." #field)

FIX(sizeof(void*) == 8, "a 64-bit target");

#endif
