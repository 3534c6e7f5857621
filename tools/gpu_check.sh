#!/usr/bin/env bash
# Checks Strata on the GPUs of this machine, within 6 minutes and without a network, and prints one
# table: conformance of the CUDA device and of NCCL, whole sessions, compute-sanitizer on a small
# run, weight hashes by placement, rates of the link and of the kernels.
#   tools/gpu_check.sh              build (build/gpu) and check
#   tools/gpu_check.sh --prepare    only build; needs no GPU. The folder may then be carried to a
#                                   machine with a GPU that lacks compilers or packages
#   tools/gpu_check.sh --no-build   check what --prepare built
# Needs the CUDA toolkit and NCCL, and what tools/setup.sh installs. The table is also written to
# build/gpu/gpu_check.md. Ends with status 1 when a check failed, 2 when it could not begin.
set -euo pipefail
# shellcheck source=tools/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

build_dir=$root_dir/build/gpu
table=$build_dir/gpu_check.md
programs=(gpu_conformance_test gpu_session_test gpu_bench)
do_build=true do_check=true
failed=0

usage() {
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  exit "$1"
}

while [[ $# -gt 0 ]]; do
  case $1 in
    --prepare) do_check=false ;;
    --no-build) do_build=false ;;
    -h | --help) usage 0 ;;
    *) usage 2 >&2 ;;
  esac
  shift
done

say() { printf 'gpu_check: %s\n' "$*" >&2; }

# Only what the check needs: no MPI, no io_uring, no tools.
build() {
  say "building in $build_dir"
  cmake -S "$root_dir" -B "$build_dir" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DSTRATA_CUDA=ON -DSTRATA_NCCL=ON -DSTRATA_MPI=OFF -DSTRATA_URING=OFF \
    -DSTRATA_BUILD_TOOLS=OFF -DSTRATA_BUILD_TESTS=ON -DSTRATA_INSTALL=OFF >"$build_dir.log" 2>&1 &&
    cmake --build "$build_dir" --parallel "$cores" --target "${programs[@]}" >>"$build_dir.log" 2>&1 ||
    { tail -n 20 "$build_dir.log" >&2; say "the build failed; $build_dir.log has all of it"; exit 2; }
  # Beside the programs, for a machine that lacks them. NCCL and the driver must be there.
  mkdir -p "$build_dir/lib"
  ldd "${programs[@]/#/$build_dir/tests/}" |
    awk '/=> \// && /libfmt|libcudart|libstdc|libgcc_s/ {print $3}' | sort -u |
    xargs -r cp -L -t "$build_dir/lib"
}

row() { printf '| %s | %s |\n' "$1" "$2" | tee -a "$table"; }

# check NAME SECONDS COMMAND...: a row that says how it went. The output goes to a log.
check() {
  local name=$1 limit=$2 log status=0 verdict
  shift 2
  log=$build_dir/$(tr -c 'a-z0-9\n' '_' <<<"$name").log
  timeout -k 5 "$limit" "$@" >"$log" 2>&1 || status=$?
  verdict=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) tests*\.$/\1 passed/p' "$log")
  if grep -q '^\[  SKIPPED \] [0-9]* test' "$log"; then
    verdict+=", $(sed -n 's/^\[  SKIPPED \] \([0-9]*\) tests*,.*/\1 skipped/p' "$log")"
  fi
  if [[ $status -ne 0 ]]; then
    failed=1
    verdict="FAILED ($([[ $status -eq 124 ]] && echo "no end within $limit s" || echo "status $status"); $log)"
  fi
  row "$name" "${verdict:-ok}"
}

describe_machine() {
  local gpus
  gpus=$(nvidia-smi --query-gpu=name,memory.total,driver_version,pcie.link.gen.max,pcie.link.width.max \
    --format=csv,noheader)
  printf '| check | result |\n|---|---|\n' | tee "$table"
  row "GPUs" "$(wc -l <<<"$gpus") x $(head -n 1 <<<"$gpus" | awk -F', ' '{
    printf "%s, %s, driver %s, PCIe %s x%s", $1, $2, $3, $4, $5}')"
  row "processor" "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $cores cores"
  row "commit" "$(git -C "$root_dir" describe --always --dirty 2>/dev/null || echo unknown)"
}

run_checks() {
  local tests=$build_dir/tests sanitizer name value unit
  export LD_LIBRARY_PATH=$build_dir/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  describe_machine
  check "conformance: device, collectives" 90 "$tests/gpu_conformance_test"
  check "sessions" 90 "$tests/gpu_session_test"
  while IFS=$'\t' read -r _ name value; do
    row "weights hash, states in: $name" "\`$value\`"
  done < <(grep -h '^hash' "$build_dir/sessions.log" || true)
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
  if [[ -n $sanitizer ]]; then
    for tool in memcheck racecheck; do
      check "compute-sanitizer $tool" 45 "$sanitizer" --tool "$tool" --error-exitcode 9 \
        "$tests/gpu_session_test" --gtest_filter='SessionAlone.StepAfterASkippedOneIsClean'
    done
  else
    row "compute-sanitizer" "not installed"
  fi
  while IFS=$'\t' read -r name value unit; do
    row "$name" "$value $unit"
  done < <(timeout -k 5 60 "$tests/gpu_bench" 256 || echo $'rates\tFAILED\t')
}

mkdir -p "$build_dir"
if $do_build; then build; fi
$do_check || { say "built; run tools/gpu_check.sh --no-build on a machine with a GPU"; exit 0; }
[[ -x $build_dir/tests/gpu_bench ]] || { say "nothing is built: run it without --no-build"; exit 2; }
if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
  say "no GPU is visible here (nvidia-smi -L)"
  exit 2
fi
run_checks
exit "$failed"
