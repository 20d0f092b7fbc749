#!/usr/bin/env bash
# Installs what is missing, builds, runs all tests, then the unit tests once more with sanitizers: all
# with address and undefined, those of several threads with thread.
#
#   bash tests/run.sh             everything (about 15 minutes on two cores)
#   bash tests/run.sh --quick     without the sanitizer run
set -euo pipefail
cd "$(dirname "$0")/.."

quick=0
for arg in "$@"; do
  case "$arg" in
    --quick) quick=1 ;;
    *) echo "usage: bash tests/run.sh [--quick]" >&2; exit 2 ;;
  esac
done

. examples/setup.sh
quire_install_packages tests
model=$(quire_fetch_model || true)
if [ -n "$model" ]; then
  export QUIRE_SMOL_MODEL="$model"
else
  echo "tests/run.sh: the model is not to be had; tests that need it are reported as skipped" >&2
fi
quire_build

status=0
ctest --test-dir build --output-on-failure --parallel "$(nproc)" || status=$?
if [ "$quick" = 0 ] && [ "$status" = 0 ]; then
  quire_build_asan
  ctest --test-dir build-asan --output-on-failure --parallel "$(nproc)" \
    --label-exclude 'slow|install|reported' || status=$?
fi
if [ "$quick" = 0 ] && [ "$status" = 0 ]; then
  quire_build_tsan
  # The sanitizer of GCC 12 does not know the wide address randomisation of newer kernels.
  fixed=()
  if setarch "$(uname -m)" -R true 2>/dev/null; then fixed=(setarch "$(uname -m)" -R); fi
  "${fixed[@]}" ctest --test-dir build-tsan --output-on-failure --label-regex threads || status=$?
fi
exit "$status"
