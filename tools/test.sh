#!/usr/bin/env bash
# Builds Strata and runs every check and test; stops at the first that fails.
#   tools/test.sh                 everything that CI runs
#   tools/test.sh --quick         set-up, format, layers, release build and tests
#   tools/test.sh --stage NAME    only the stage NAME (and set-up); may be repeated
#   tools/test.sh --all           clang-tidy on the whole tree instead of the changed files
# Stages: format layers tidy release asan tsan. Logs: build/test/<stage>.log.
set -euo pipefail
# shellcheck source=tools/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

all_stages=(format layers tidy release asan tsan)
log_dir=$root_dir/build/test
tidy_scope=changed
stages=()
summaries=()  # logs of the ctest runs so far
passed=0 failed=0 skipped=0

usage() {
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  exit "$1"
}

while [[ $# -gt 0 ]]; do
  case $1 in
    --quick) stages+=(format layers release) ;;
    --stage)
      [[ $# -ge 2 ]] || usage 2 >&2
      stages+=("$2")
      shift
      ;;
    --all) tidy_scope=all ;;
    -h | --help) usage 0 ;;
    *) usage 2 >&2 ;;
  esac
  shift
done
if [[ ${#stages[@]} -eq 0 ]]; then
  stages=("${all_stages[@]}")
fi

# Prints our sources, one a line. A copy without a repository counts as well.
list_sources() {
  local folders=(include src tools examples tests)
  if git -C "$root_dir" rev-parse HEAD >/dev/null 2>&1; then
    git -C "$root_dir" ls-files --cached --others --exclude-standard -- "${folders[@]}"
  else
    (cd "$root_dir" && find "${folders[@]}" -type f)
  fi | grep -E '\.(hpp|cpp|cu)$' | while read -r file; do
    if [[ -f $root_dir/$file ]]; then echo "$file"; fi
  done
}

run_format() {
  if ! command -v clang-format-14 >/dev/null; then
    echo "skipped: no clang-format-14 here, and other versions format differently"
    return
  fi
  cd "$root_dir"
  local files found
  mapfile -t files < <(list_sources)
  if ! found=$(clang-format-14 --dry-run -Werror "${files[@]}" 2>&1); then
    printf '%s\n' "$found" | sed 's/:[0-9]*:[0-9]*: error: .*//; t; d' | sort -u
    echo "these files need: clang-format-14 -i FILE"
    return 1
  fi
  [[ ${#files[@]} -gt 0 ]] || return 1
  echo "${#files[@]} files are formatted"
}

run_layers() {
  "$root_dir/tools/check_layers.py" --self-test
  "$root_dir/tools/check_layers.py"
}

run_tidy() {
  if ! command -v clang-tidy-14 >/dev/null; then
    echo "skipped: no clang-tidy-14 here, and other versions find different things"
    return
  fi
  (cd "$root_dir" && cmake --preset release >/dev/null)
  "$root_dir/tools/check_tidy.py" --build "$root_dir/build/release" --jobs "$cores" \
    "--$tidy_scope"
}

# Adds the numbers of a ctest run to the totals.
count_tests() {
  local results=$1 header tests failures not_run
  header=$(grep -m 1 -A 8 '<testsuite ' "$results" | tr '\n' ' ')
  number() { sed -E "s/.*[[:space:]]$1=\"([0-9]+)\".*/\\1/" <<<"$header"; }
  tests=$(number tests) failures=$(number failures) not_run=$(number skipped)
  failed=$((failed + failures))
  skipped=$((skipped + not_run))
  passed=$((passed + tests - failures - not_run))
}

# build_and_test PRESET [BUILD TARGET]: ctest arguments come from the test preset. Programs, which
# the build starts to list their tests, run under the words of `wrapper`.
wrapper=()
build_and_test() {
  local preset=$1 target=${2:-all} results=$log_dir/$1.xml status=0
  (cd "$root_dir" && cmake --preset "$preset")
  "${wrapper[@]}" cmake --build "$root_dir/build/$preset" --target "$target" --parallel "$cores"
  (cd "$root_dir" && "${wrapper[@]}" ctest --preset "$preset" --parallel "$cores" \
    --output-junit "$results") || status=$?
  [[ -f $results ]] || return 1
  return "$status"
}

run_release() { build_and_test release; }
run_asan() { build_and_test asan; }
run_tsan() {
  # Where addresses are randomised by more than 28 bits, this sanitizer finds its memory taken.
  if setarch "$(uname -m)" --addr-no-randomize true 2>/dev/null; then
    wrapper=(setarch "$(uname -m)" --addr-no-randomize)
  fi
  build_and_test tsan tsan_tests
}

# The last lines: what ctest said at the end of each run, and the sum.
print_totals() {
  local log
  for log in "${summaries[@]}"; do
    printf '\n== %s\n' "$(basename "$log" .log)"
    sed -n '/% tests passed, /,$p' "$log"
  done
  if [[ ${#summaries[@]} -gt 0 ]]; then
    printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  fi
}

run_stage() {
  local stage=$1 log=$log_dir/$1.log status=0 start=$SECONDS
  printf '\n== %s\n' "$stage"
  # A subshell of its own, because `set -e` is off wherever a status is tested.
  set +e
  (set -e; "run_$stage") 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  set -e
  if [[ -f $log_dir/$stage.xml ]]; then
    count_tests "$log_dir/$stage.xml"
    summaries+=("$log")
  fi
  if [[ $status -ne 0 ]]; then
    print_totals
    printf 'tools/test.sh: FAILED in stage %s after %d s; log: %s\n' "$stage" \
      $((SECONDS - start)) "$log" >&2
    exit 1
  fi
  printf '== %s: ok, %d s\n' "$stage" $((SECONDS - start))
}

for stage in "${stages[@]}"; do
  [[ " ${all_stages[*]} " == *" $stage "* ]] || usage 2 >&2
done

"$root_dir/tools/setup.sh" test
export_mpi_settings
mkdir -p "$log_dir"
rm -f "$log_dir"/*.xml
for stage in "${stages[@]}"; do
  run_stage "$stage"
done
printf '\n== all stages ok, %d s: %s\n' "$SECONDS" "${stages[*]}"
print_totals
