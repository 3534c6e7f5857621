#!/usr/bin/env bash
# Installs what is missing, builds Strata, and trains a GPT whose states do not fit its device
# budget, on two ranks, with this repository's own text as data.
#   tools/quickstart.sh [--steps N] [--dir DIR] [-- ARGUMENTS OF train_gpt]
#   --steps N   optimizer steps (default 30)
#   --dir DIR   a folder on a local disk for the states (default build/quickstart/nvme)
set -euo pipefail
# shellcheck source=tools/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

ranks=2
steps=30
preset=quick
work_dir=$root_dir/build/quickstart
nvme_dir=$work_dir/nvme
nvme_needs_mib=4096  # what the states, the build and a margin take
train_arguments=()

say() { printf 'quickstart: %s\n' "$*"; }
fail() {
  printf 'quickstart: %s\n' "$*" >&2
  exit 1
}
usage() {
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  exit "$1"
}

parse_arguments() {
  while [[ $# -gt 0 ]]; do
    case $1 in
      --steps | --dir)
        [[ $# -ge 2 ]] || usage 2 >&2
        if [[ $1 == --steps ]]; then steps=$2; else nvme_dir=$2; fi
        shift
        ;;
      --)
        shift
        train_arguments=("$@")
        return
        ;;
      -h | --help) usage 0 ;;
      *) usage 2 >&2 ;;
    esac
    shift
  done
  [[ $steps =~ ^[1-9][0-9]*$ ]] || fail "--steps takes a whole number above 0, not '$steps'"
}

check_space() {
  local free_mib
  mkdir -p "$nvme_dir" || fail "cannot create $nvme_dir; name another folder with --dir"
  nvme_dir=$(cd "$nvme_dir" && pwd)
  free_mib=$(df --output=avail -BM "$nvme_dir" | tail -n 1 | tr -dc 0-9)
  [[ $free_mib -ge $nvme_needs_mib ]] ||
    fail "$nvme_dir has $free_mib MiB free and $nvme_needs_mib MiB are needed; free some space" \
      "or name another folder with --dir"
}

# Without tests, since their packages may be missing; a build that has them stays as it is.
configure() {
  if [[ ! -f $root_dir/build/release/build.ninja ]]; then
    (cd "$root_dir" && cmake --preset release -DSTRATA_BUILD_TESTS=OFF)
  fi
}

build() {
  local log=$work_dir/build.log
  say "building (log: $log)"
  {
    configure
    cmake --build "$root_dir/build/release" --target train_gpt strata_tool --parallel "$cores"
  } >"$log" 2>&1 || {
    tail -n 30 "$log" >&2
    fail "the build failed; its last lines stand above, the whole log in $log"
  }
}

# The text to learn: Strata's own sources and docs.
write_corpus() {
  local folder
  for folder in include src tools examples tests docs; do
    find "$root_dir/$folder" -type f \( -name '*.?pp' -o -name '*.md' -o -name '*.sh' -o \
      -name '*.py' -o -name 'CMakeLists.txt' \) -print0
  done | LC_ALL=C sort -z | xargs -0 cat "$root_dir/README.md" >"$work_dir/corpus.txt"
}

# The example's configuration, with the folder for the states in place of the current one.
write_config() {
  local directory=${nvme_dir//\\/\\\\}  # as a JSON string
  directory=${directory//\"/\\\"}
  awk -v directory="${directory//\\/\\\\}" '
    { at = index($0, "[\".\"]") }
    at { $0 = substr($0, 1, at + 1) directory substr($0, at + 3) }
    { print }' "$root_dir/examples/train_gpt/configs/quickstart.json" >"$work_dir/strata.json"
}

train() {
  say "training: $steps steps on $ranks ranks, configuration $work_dir/strata.json"
  # mpirun passes an interrupt on and kills a second later; a step takes longer.
  export OMPI_MCA_odls_base_sigkill_timeout=15
  mpirun --bind-to none -n "$ranks" "$root_dir/build/release/train_gpt" --preset "$preset" \
    --data "$work_dir/corpus.txt" --config "$work_dir/strata.json" --steps "$steps" --batch 2 \
    --warmup 5 \
    "${train_arguments[@]}"
}

parse_arguments "$@"
mkdir -p "$work_dir"
check_space
"$root_dir/tools/setup.sh" build
export_mpi_settings
build
built_seconds=$SECONDS
say "set up and built in $built_seconds s"
write_corpus
write_config
train
say "trained in $((SECONDS - built_seconds)) s, $SECONDS s in all"
