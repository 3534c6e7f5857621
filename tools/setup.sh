#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that Strata needs and that are missing.
#   tools/setup.sh build    to build and run (the default)
#   tools/setup.sh test     the same, and what tools/test.sh needs
# Says nothing and takes no time when nothing is missing. Where it may not install it lists what is
# missing and ends with status 2.
set -euo pipefail

# A package that stands for a program is taken as present when the program is, wherever it came
# from: "package:program".
build_packages=(
  g++:g++ cmake:cmake ninja-build:ninja ccache:ccache pkg-config:pkg-config openmpi-bin:mpirun
  libopenmpi-dev libopenblas-dev libboost-dev libcli11-dev libfmt-dev nlohmann-json3-dev
  libxxhash-dev liburing-dev libhwy-dev
)
# The formatter's and the linter's verdicts change with their version, so the version is fixed.
test_packages=(
  git:git python3:python3 clang-format-14:clang-format-14 clang-tidy-14:clang-tidy-14
  libgtest-dev libgmock-dev libbenchmark-dev
)
# A release of Debian or Ubuntu that lacks these skips the stage that uses them.
optional_packages=(clang-format-14 clang-tidy-14)
unavailable_file=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build/unavailable_packages

readonly min_cmake=3.25 min_gxx=12

say() { printf 'setup: %s\n' "$*" >&2; }
fail() {
  say "$@"
  exit 2
}

# Prints those of the given packages that are not installed, as far as they can be.
missing_packages() {
  local entry package libraries=() installed unavailable=""
  if [[ -f $unavailable_file ]]; then
    unavailable=$(<"$unavailable_file")
  fi
  for entry in "$@"; do
    package=${entry%%:*}
    if [[ $'\n'$unavailable$'\n' == *$'\n'$package$'\n'* ]]; then
      continue
    elif [[ $entry != *:* ]]; then
      libraries+=("$package")
    elif ! command -v "${entry#*:}" >/dev/null; then
      echo "$package"
    fi
  done
  installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${libraries[@]}" 2>/dev/null || true)
  for package in "${libraries[@]}"; do
    grep -qxF "$package installed" <<<"$installed" || echo "$package"
  done
}

# Prints how to become root: nothing, sudo, or "none".
find_root() {
  if [[ $EUID -eq 0 ]]; then
    echo ""
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    echo "sudo -n"
  elif command -v sudo >/dev/null && [[ -t 0 && -t 2 ]]; then
    echo "sudo"  # asks for the password
  else
    echo "none"
  fi
}

apt_get() {
  local root=$1
  shift
  # shellcheck disable=SC2086  # $root is empty or a command with options
  $root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 \
    -o Dpkg::Use-Pty=0 "$@" >&2
}

is_optional() { [[ " ${optional_packages[*]} " == *" $1 "* ]]; }

# Prints those of the given packages that are worth asking for.
drop_unavailable() {
  local package
  for package in "$@"; do
    if is_optional "$package" && [[ -z $(apt-cache madison "$package" 2>/dev/null) ]]; then
      say "this release has no $package; the stage that uses it will be skipped"
      echo "$package" >>"$unavailable_file"
    else
      echo "$package"
    fi
  done
}

install_packages() {
  local root wanted
  root=$(find_root)
  if [[ $root != none ]]; then
    say "missing packages: $*"
    apt_get "$root" update || say "apt-get update failed; going on with the package lists at hand"
  fi
  mapfile -t wanted < <(drop_unavailable "$@")
  if [[ ${#wanted[@]} -eq 0 ]]; then
    return
  fi
  if [[ $root == none ]]; then
    rm -f "$unavailable_file"  # the package lists may be missing as well
    fail "missing packages, and neither root nor sudo to install them; as root, run:" \
      "apt-get update && apt-get install -y ${wanted[*]}"
  fi
  apt_get "$root" install -y --no-install-recommends "${wanted[@]}" ||
    fail "apt-get could not install the packages; its messages stand above"
}

at_least() { [[ $(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1) == "$2" ]]; }

check_versions() {
  local cmake gxx compiler=${CXX:-c++}
  command -v "$compiler" >/dev/null || fail "there is no compiler '$compiler'; set CXX to one"
  cmake=$(cmake --version | sed -n '1s/[^0-9]*//p')
  at_least "$cmake" $min_cmake ||
    fail "CMake $cmake is too old, $min_cmake is needed (Debian 12 and Ubuntu 24.04 ship it;" \
      "Ubuntu 22.04 ships 3.22: get a newer one from https://apt.kitware.com or 'pip install cmake')"
  if "$compiler" --version | grep -qi 'free software foundation'; then
    gxx=$("$compiler" -dumpfullversion -dumpversion)
    at_least "$gxx" $min_gxx ||
      fail "g++ $gxx is too old, $min_gxx is needed (Ubuntu 22.04: apt-get install g++-12, then" \
        "set CXX=g++-12)"
  fi
}

check_cpu() {
  if [[ $(uname -m) == x86_64 ]] && ! grep -qm 1 '^flags.* avx2 .*' /proc/cpuinfo; then
    fail "this CPU has no AVX2, which Strata needs on x86-64"
  fi
}

main() {
  mkdir -p "$(dirname "$unavailable_file")"
  local packages=("${build_packages[@]}") missing
  case ${1:-build} in
    build) ;;
    test) packages+=("${test_packages[@]}") ;;
    *) fail "usage: tools/setup.sh [build|test]" ;;
  esac
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "this is no Debian or Ubuntu; assuming that these are installed: ${packages[*]%%:*}"
  else
    mapfile -t missing < <(missing_packages "${packages[@]}")
    if [[ ${#missing[@]} -gt 0 ]]; then
      install_packages "${missing[@]}"
    fi
  fi
  check_versions
  check_cpu
}

main "$@"
