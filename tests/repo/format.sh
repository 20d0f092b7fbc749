#!/usr/bin/env bash
# Oracle: clang-format 14 with the .clang-format at the top. tests/docs keeps the width of README.md.
# 77 when there is no such clang-format: other versions format differently.
set -euo pipefail
cd "$1"
if ! clang-format --version 2>/dev/null | grep -q 'version 14\.'; then
  echo "no clang-format 14" >&2
  exit 77
fi
bad=$(find include src tests examples \( -name '*.c' -o -name '*.cpp' -o -name '*.h' -o -name '*.hpp' \) \
  -not -path 'tests/docs/*' -print0 |
  { xargs -0 clang-format --dry-run -Werror 2>&1 || true; } | sed -nE 's/^([^:]+):.*error:.*/\1/p' | sort -u)
for file in $bad; do
  echo "$file is not formatted"
done
[ -z "$bad" ]
