#!/usr/bin/env bash
# Builds the native CPU kernels with sanitizers and runs them over random shapes: addresses and undefined behaviour, then
# data races. Needs g++; takes about a minute.
set -euo pipefail
cd "$(dirname "$0")/.."
build="$(mktemp -d)"
trap 'rm -rf "$build"' EXIT
csrc=engine/kernels/cpu/csrc
flags=(-std=c++17 -O1 -g -fno-omit-frame-pointer -ffp-contract=off -fno-math-errno -Wall -Wextra -Wno-maybe-uninitialized -Wno-uninitialized -Wno-psabi)
x86=(Avx512Kernels "avx512 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mavx512vnni" Avx2Kernels "avx2 -mavx2 -mfma -mf16c")
sets=(PortableKernels "portable")
if [ "$(uname -m)" = x86_64 ]; then sets+=("${x86[@]}"); fi

run() {
  local name="$1" objects=() pids=()
  shift
  for ((i = 0; i < ${#sets[@]}; i += 2)); do
    local set_flags
    read -ra set_flags <<<"${sets[i + 1]}"
    "${CXX:-g++}" "${flags[@]}" "$@" -DFL_KERNELS="${sets[i]}" -DFL_ISA="${set_flags[0]}" "${set_flags[@]:1}" -c "$csrc/isa.cc" -o "$build/$name-${sets[i]}.o" &
    pids+=($!)
    objects+=("$build/$name-${sets[i]}.o")
  done
  for pid in "${pids[@]}"; do wait "$pid"; done
  "${CXX:-g++}" "${flags[@]}" "$@" tests/kernels_cpu/sanitize.cc "${objects[@]}" -o "$build/$name" -pthread
  echo "$name:"
  "$build/$name"
}

run addresses -fsanitize=address,undefined -fno-sanitize-recover=all
run races -fsanitize=thread
