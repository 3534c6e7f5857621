#!/usr/bin/env python3
"""Runs clang-tidy 14 on the sources that changed, or with --all on the whole tree.

Changed means: different from the merge base with origin/main (on main itself: from the commit
before), or not committed yet. A changed header is checked through one source that includes it.
What was clean once is not checked again until it, a header or the configuration changes.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOL = "clang-tidy-14"


def git(*arguments):
    """Output of a git command, or None when it fails."""
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def base_commit():
    head = git("rev-parse", "HEAD")
    base = git("merge-base", "origin/main", "HEAD")
    return base if base and base != head else git("rev-parse", "HEAD~1")


def changed_files():
    """Paths below the root, or None when there is nothing to compare with."""
    base = base_commit()
    if base is None:
        return None
    names = git("diff", "--name-only", "--diff-filter=d", base) or ""
    untracked = git("ls-files", "--others", "--exclude-standard") or ""
    return {ROOT / name for name in (names + "\n" + untracked).split("\n") if name}


def translation_units(build):
    commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    files = {(Path(command["directory"]) / command["file"]).resolve() for command in commands}
    return sorted(file for file in files if file.is_relative_to(ROOT) and
                  not file.is_relative_to(ROOT / "build"))


def includer(header, units):
    """The source that stands for a header: its own .cpp, else the first that includes it."""
    own = [unit for unit in units if unit.stem == header.stem]
    name = re.compile(rf'#include "(\S*/)?{re.escape(header.name)}"')
    users = [unit for unit in units if name.search(unit.read_text(encoding="utf-8"))]
    return next((unit for unit in own + users if unit in users), None)


def select(units, changed):
    chosen = {unit for unit in units if unit in changed}
    for header in sorted(changed):
        if header.suffix == ".hpp" and header.is_file():
            unit = includer(header, units)
            if unit:
                chosen.add(unit)
    return sorted(chosen)


def context_hash():
    """Changes with everything that a verdict depends on besides the source itself."""
    digest = hashlib.sha256()
    headers = (file for top in ("include", "src", "tools", "examples", "tests")
               for file in (ROOT / top).rglob("*.hpp"))
    configs = [ROOT / ".clang-tidy", ROOT / "tests/.clang-tidy"]
    for file in sorted([*headers, *(config for config in configs if config.is_file())]):
        digest.update(file.as_posix().encode() + file.read_bytes())
    return digest.digest()


def check(unit, build, cache, context):
    """Prints what clang-tidy says about one source; True when it is clean."""
    digest = hashlib.sha256(context + unit.as_posix().encode() + unit.read_bytes()).hexdigest()
    stamp = cache / digest
    if stamp.exists():
        return True
    done = subprocess.run([TOOL, "--quiet", "-p", build, unit], capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{done.stdout}{done.stderr}", flush=True)
        return False
    stamp.touch()
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True, help="has compile_commands.json")
    parser.add_argument("--jobs", type=int, default=2)
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument("--all", action="store_true")
    scope.add_argument("--changed", action="store_true", help="the default")
    arguments = parser.parse_args()

    units = translation_units(arguments.build)
    changed = None if arguments.all else changed_files()
    if changed is None and not arguments.all:
        print("tidy: no earlier commit to compare with, so every file counts as changed")
    chosen = units if changed is None else select(units, changed)
    cache = arguments.build / "clang-tidy"
    cache.mkdir(exist_ok=True)
    context = context_hash()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        clean = list(pool.map(lambda unit: check(unit, arguments.build, cache, context), chosen))
    print(f"tidy: {len(chosen)} of {len(units)} sources checked, {clean.count(False)} with findings")
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
