#!/usr/bin/env bash
# Checks what the build made for GPUs: that the libraries hold the adapters and nothing of the
# runtimes, and that the kernels hold code for each architecture.
#   tools/check_cuda_build.sh LIBSTRATA_CUDA LIBSTRATA_NCCL ARCHITECTURES CUDA_BIN
# ARCHITECTURES as in CMAKE_CUDA_ARCHITECTURES: "80-real;90-real;100".
set -euo pipefail

[[ $# -eq 4 ]] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cuda_library=$1 nccl_library=$2 architectures=$3 cuda_bin=$4

fail() {
  echo "check_cuda_build: $1" >&2
  exit 1
}

# expect_symbol LIBRARY TYPE NAME
expect_symbol() {
  local symbols
  symbols=$(nm -C "$1" 2>/dev/null)
  grep -Eq " $2 $3" <<<"$symbols" || fail "$(basename "$1") lacks '$3' ($2)"
}

expect_symbol "$cuda_library" T 'strata::CudaDevice::copy\('
expect_symbol "$cuda_library" T 'strata::cuda::launch_element_op\('
expect_symbol "$cuda_library" U 'cudaMemcpyAsync'
expect_symbol "$nccl_library" T 'strata::create_nccl_communicator\('
for collective in AllGather ReduceScatter AllReduce Broadcast; do
  expect_symbol "$nccl_library" U "nccl$collective"
done
if nm -C "$cuda_library" "$nccl_library" 2>/dev/null | grep -E ' [Tt] (cuda|nccl)[A-Z][A-Za-z]*$'; then
  fail "a runtime was linked into an adapter's library"
fi

# A fat binary is compressed: only cuobjdump can tell what is in it.
cuobjdump=$(command -v cuobjdump || true)
[[ -n $cuobjdump || ! -x $cuda_bin/cuobjdump ]] || cuobjdump=$cuda_bin/cuobjdump
if [[ -z $cuobjdump ]]; then
  echo "symbols are there; cuobjdump was not found, so the kernels' architectures were not looked at"
  exit 0
fi
listing=$("$cuobjdump" --list-elf --list-ptx "$cuda_library" 2>/dev/null)
IFS=';' read -ra wanted <<<"$architectures"
for architecture in "${wanted[@]}"; do
  number=${architecture%%-*}
  [[ $architecture == *-virtual ]] || grep -q "sm_$number\.cubin" <<<"$listing" ||
    fail "the kernels hold no code for sm_$number"
  [[ $architecture == *-real ]] || grep -q "sm_$number\.ptx\|compute_$number\.ptx" <<<"$listing" ||
    fail "the kernels hold no PTX for compute_$number"
done
echo "symbols are there, and code for ${wanted[*]}"
