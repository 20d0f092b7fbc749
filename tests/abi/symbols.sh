#!/usr/bin/env bash
# Oracle: tests/abi/symbols.txt, the functions of the ABI, one a line.
#   symbols.sh exports|imports|header|calls|inits SOURCE_DIR LIBRARY C_SMOKE [SANITIZERS]
set -euo pipefail
export LC_ALL=C
check=$1 source=$2 library=$3 smoke=$4 sanitizers=${5:-}
list=$source/tests/abi/symbols.txt
header=$source/include/quire/quire.h

# same WHAT: the list against the lines of standard input.
same() {
  if ! diff -u --label symbols.txt "$list" --label "$1" -; then
    echo "symbols.sh: $1 differs from tests/abi/symbols.txt" >&2
    return 1
  fi
}

# The header without comments and preprocessor.
code() { sed '/^#/d' "$header" | tr '\n' ' ' | sed -E 's@/\*([^*]|\*+[^*/])*\*+/@ @g'; }

case "$check" in
  exports) # exactly the list, no weak or data symbol beside it
    nm -D --defined-only "$library" | awk '$2 == "T" {print $3} $2 != "T" {print $2, $3}' |
      sort | same "exports of $library"
    ;;
  imports) # from libc, libm, libstdc++, libgcc and Highway alone
    if [ -n "$sanitizers" ]; then
      echo "built with sanitizers, which import from their own libraries" >&2
      exit 77
    fi
    strange=$(nm -D --undefined-only "$library" | awk '{print $1, $NF}' |
      grep -Ev '^(U|v|w) [^ ]+@(GLIBC|GLIBCXX|CXXABI|GCC)_' |
      grep -Ev '^w (__gmon_start__|_ITM_(de)?registerTMCloneTable|__cxa_finalize)$' |
      grep -Ev '^U _ZN3hwy' || true)
    [ -z "$strange" ] || { echo "imports of unknown origin: $strange" >&2; exit 1; }
    ;;
  header) # declares exactly the list, at most 50
    code | grep -oE 'QUIRE_API [^;]*;' | sed -E 's/^QUIRE_API [^(]*[ *](quire_[a-z_0-9]+)\(.*/\1/' |
      sort | same "declarations in quire.h"
    [ "$(wc -l <"$list")" -le 50 ] || { echo "more than 50 functions" >&2; exit 1; }
    ;;
  calls) # c_smoke.c calls each of them
    nm --undefined-only "$smoke" | awk '{print $NF}' | grep '^quire_' | sort | same "calls of c_smoke.c"
    ;;
  inits) # every struct with a size has an initialiser, and inits.c checks each
    structs=$(code | grep -oE 'typedef struct quire_[a-z_]+ \{ *uint32_t struct_size;' |
      sed -E 's/typedef struct (quire_[a-z_]+) .*/\1/' |
      tr 'a-z' 'A-Z' | sed 's/$/_INIT/' | sort)
    macros=$(grep -oE '^#define QUIRE_[A-Z_]+_INIT' "$header" | awk '{print $2}' | sort)
    checked=$(grep -oE 'QUIRE_[A-Z_]+_INIT' "$source/tests/abi/inits.c" | sort -u)
    diff -u --label structs <(echo "$structs") --label initialisers <(echo "$macros")
    diff -u --label initialisers <(echo "$macros") --label "inits.c" <(echo "$checked")
    ;;
  *) echo "symbols.sh: unknown check '$check'" >&2; exit 2 ;;
esac
