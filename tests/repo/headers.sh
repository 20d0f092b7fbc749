#!/usr/bin/env bash
# Oracle: every public header compiles alone, with all warnings as errors.
#   headers.sh cxx COMPILER SOURCE_DIR    C++17
#   headers.sh c COMPILER SOURCE_DIR      quire.h as C99
#   headers.sh cuda nvcc SOURCE_DIR       C++17 in device code; 77 when there is no nvcc
set -euo pipefail
mode=$1 compiler=$2 source=$3
warnings=(-pedantic -Wall -Wextra -Wconversion -Wsign-conversion -Wshadow -Wcast-align -Wvla -Werror)

if [ "$mode" = cuda ] && ! command -v "$compiler" >/dev/null; then
  echo "no $compiler: headers are not tried in device code" >&2
  exit 77
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$source/include"
if [ "$mode" = c ]; then
  headers=(quire/quire.h quire/version.h)
else
  mapfile -t headers < <(find quire \( -name '*.h' -o -name '*.hpp' \) | sort)
fi
[ "${#headers[@]}" -gt 1 ] || { echo "no headers found" >&2; exit 1; }

failed=0
for header in "${headers[@]}"; do
  # Twice, so that a missing guard shows.
  printf '#include "%s"\n#include "%s"\ntypedef int not_empty;\n' "$header" "$header" \
    >"$work/alone.inc"
  case "$mode" in
    cxx) "$compiler" -std=c++17 "${warnings[@]}" -fsyntax-only -I. -x c++ "$work/alone.inc" ;;
    c) "$compiler" -std=c99 -pedantic -Wall -Wextra -Werror -fsyntax-only -I. -x c "$work/alone.inc" ;;
    cuda)
      "$compiler" -std=c++17 -x cu -fatbin -arch=sm_80 -Werror all-warnings -I. "$work/alone.inc" \
        -o "$work/alone.fatbin"
      ;;
    *) echo "headers.sh: unknown mode '$mode'" >&2; exit 2 ;;
  esac || { echo "$header does not compile alone" >&2; failed=1; }
done
echo "${#headers[@]} headers tried ($mode)"
exit "$failed"
