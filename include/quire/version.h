/* The only place with version numbers; CMake reads this file. */
#ifndef QUIRE_VERSION_H
#define QUIRE_VERSION_H

#define QUIRE_VERSION_MAJOR 0
#define QUIRE_VERSION_MINOR 1
#define QUIRE_VERSION_PATCH 0

/* 0: the C ABI may change with every minor version (see docs/c_abi.md). */
#define QUIRE_ABI_VERSION 0

#endif
