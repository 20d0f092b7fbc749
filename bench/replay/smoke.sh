#!/usr/bin/env bash
# Oracle: the same requests in a pool where nothing has to move give the same outputs.
set -euo pipefail
replay=$1
small=$("$replay" --sequences 24 --prompt 30 --answer 150 --arrivals 0.5 --batch 12 --layers 1 \
  --dim 32 --page-bytes 2048 --max-tokens 600 --pages "${2:-60}")
large=$("$replay" --sequences 24 --prompt 30 --answer 150 --arrivals 0.5 --batch 12 --layers 1 \
  --dim 32 --page-bytes 2048 --max-tokens 600 --pages 50000)
echo "$small"
echo "$large"
digest() { sed -n 's/^digest //p' <<<"$1"; }
[ -n "$(digest "$small")" ] && [ "$(digest "$small")" = "$(digest "$large")" ]
swaps() { awk 'NF == 10 && $1 + 0 > 0 {n = $8} END {print n}' <<<"$1"; }
[ "$(swaps "$small")" -gt 5 ] && [ "$(swaps "$large")" = 0 ]
