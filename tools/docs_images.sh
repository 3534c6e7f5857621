#!/usr/bin/env bash
# Draws the pictures of docs/partitioning.md from the models beside them.
#   tools/docs_images.sh STRATA          draws them again; STRATA is the built program
#   tools/docs_images.sh --check STRATA  compares, and checks the listings in the text as well
set -euo pipefail
docs_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/../docs" && pwd)

check=no
if [[ ${1:-} == --check ]]; then
  check=yes
  shift
fi
if [[ $# -ne 1 || ! -x $1 ]]; then
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
strata=$1
out_dir=$docs_dir/images
if [[ $check == yes ]]; then
  out_dir=$(mktemp -d)
  trap 'rm -rf "$out_dir"' EXIT
fi

stale=0
for picture in two_layers:4 toy:4 gpt:8; do
  name=${picture%:*}
  listing=$("$strata" inspect partition --model "$docs_dir/images/$name.json" \
    --ranks "${picture#*:}" --svg "$out_dir/$name.svg")
  if [[ $check == no ]]; then continue; fi
  if ! cmp -s "$out_dir/$name.svg" "$docs_dir/images/$name.svg"; then
    echo "docs/images/$name.svg is stale: run tools/docs_images.sh $strata"
    stale=1
  fi
  # The text quotes the whole listing of this model.
  if [[ $name != two_layers ]]; then continue; fi
  while IFS= read -r line; do
    if ! grep -Fqx -- "$line" "$docs_dir/partitioning.md"; then
      echo "docs/partitioning.md does not have the line: $line"
      stale=1
    fi
  done <<<"$listing"
done
exit "$stale"
