#!/usr/bin/env bash
# Oracle: a user's project finds the installed package, builds with warnings as errors, and runs.
#   run.sh install|package|pkg-config|pkg-config-static|subproject|relocated
# Environment: SOURCE BUILD WORK CC CXX GENERATOR SANITIZE, set by CMakeLists.txt.
set -euo pipefail
prefix=$WORK/prefix
project=$SOURCE/tests/consumer/project

if [ -n "$SANITIZE" ]; then
  echo "built with sanitizers: a user's program would have to be, too" >&2
  exit 77
fi

# configure FOLDER [ARGUMENTS OF CMAKE]
configure() {
  local folder=$1
  shift
  rm -rf "$folder"
  cmake -S "$project" -B "$folder" -G "$GENERATOR" -DCMAKE_C_COMPILER="$CC" \
    -DCMAKE_CXX_COMPILER="$CXX" -DCMAKE_BUILD_TYPE=Release "$@"
}

libdir() { dirname "$(find "$1" -name libquire.a | head -n 1)"; }

# compile_c PREFIX PROGRAM [ARGUMENTS OF PKG-CONFIG]
compile_c() {
  local at=$1 program=$2
  shift 2
  export PKG_CONFIG_PATH=$(libdir "$at")/pkgconfig
  # Words, not one string.
  # shellcheck disable=SC2046
  "$CC" -std=c99 -Wall -Wextra -Werror "$project/use_c.c" -o "$program" $(pkg-config --cflags quire) \
    $(pkg-config "$@" --libs quire)
}

case "$1" in
  install)
    rm -rf "$prefix"
    cmake --install "$BUILD" --prefix "$prefix"
    lib=$(libdir "$prefix")
    [ -e "$lib/libquire.so" ] && [ -e "$lib/libquire.a" ] && [ -e "$prefix/include/quire/quire.h" ]
    diff <(cd "$SOURCE/include" && find quire -type f | sort) \
      <(cd "$prefix/include" && find quire -type f | sort)
    ;;
  package)
    configure "$WORK/package" -DCMAKE_PREFIX_PATH="$prefix"
    cmake --build "$WORK/package"
    ctest --test-dir "$WORK/package" --output-on-failure --no-tests=error
    for program in c_shared c_alias cpp_shared; do
      ldd "$WORK/package/$program" | grep -q "libquire.so.* => $prefix/"
    done
    for program in header_only c_static cpp_static; do
      if ldd "$WORK/package/$program" | grep libquire; then
        echo "$program needs the shared library" >&2
        exit 1
      fi
    done
    ;;
  relocated) # the whole prefix at another place
    rm -rf "$WORK/moved"
    cp -a "$prefix" "$WORK/moved"
    mv "$prefix" "$prefix.away"
    trap 'mv "$prefix.away" "$prefix"' EXIT
    configure "$WORK/package-moved" -DCMAKE_PREFIX_PATH="$WORK/moved"
    cmake --build "$WORK/package-moved" --target c_shared c_static
    "$WORK/package-moved/c_shared"
    "$WORK/package-moved/c_static"
    ;;
  pkg-config)
    compile_c "$prefix" "$WORK/pkg_shared"
    LD_LIBRARY_PATH=$(libdir "$prefix") "$WORK/pkg_shared"
    ;;
  pkg-config-static) # as in a package without the shared library
    rm -rf "$WORK/static"
    cp -a "$prefix" "$WORK/static"
    find "$WORK/static" -name 'libquire.so*' -delete
    compile_c "$WORK/static" "$WORK/pkg_static" --static
    "$WORK/pkg_static"
    ;;
  subproject) # tests, examples and install rules are off; the targets are there
    configure "$WORK/sub" -DQUIRE_SOURCE_DIR="$SOURCE"
    for option in QUIRE_BUILD_TESTS QUIRE_BUILD_EXAMPLES QUIRE_INSTALL QUIRE_WERROR; do
      grep -q "^$option:BOOL=OFF$" "$WORK/sub/CMakeCache.txt" || {
        echo "$option is not OFF in a subproject" >&2
        exit 1
      }
    done
    cmake --build "$WORK/sub" --target header_only
    "$WORK/sub/header_only"
    ;;
  *) echo "run.sh: unknown step '$1'" >&2; exit 2 ;;
esac
