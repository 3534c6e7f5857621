#!/usr/bin/env python3
"""Checks that every #include points downwards in the house of docs/architecture.md.

A file may include its own room and the rooms below it; adapters are named in one file only; the
headers of CUDA, NCCL, MPI, Asio and liburing stay inside their adapters; layout and plan stay pure.
tests/ may include anything. `--self-test` shows that each kind of violation is found.
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

ADAPTERS = {"cpu", "cuda", "uring", "posix", "paced", "virtual", "mpi", "nccl", "self", "tcp"}
FACTORIES = ("src/session/factory.cpp", "src/session/factory_communicators.cpp",
             "src/session/machine.cpp")

# Room -> the rooms that it may include, besides itself.
BELOW = {"base": set(), "ports": {"base"}, "config": {"base"}}
BELOW["files"] = {"ports", "base"}
BELOW["safetensors"] = BELOW["files"] | {"files"}
BELOW |= {adapter: {"ports", "base"} for adapter in ADAPTERS}
for adapter in ("posix", "uring", "paced", "virtual"):
    BELOW[adapter] = BELOW["files"] | {"files"}
# A paced device is a CPU device that takes its time. Paced and virtual ports share their arithmetic.
BELOW["paced"] = BELOW["paced"] | {"cpu", "virtual"}
# Its control plane is the TCP adapter's.
BELOW["nccl"] = BELOW["tcp"] | {"tcp"}
BELOW["nccl"] |= {"cuda", "tcp"}
BELOW["layout"] = BELOW["memory"] = {"config", "ports", "base"}
BELOW["plan"] = BELOW["optim"] = BELOW["layout"] | {"layout", "memory"}
BELOW["engine"] = BELOW["plan"] | {"plan", "optim"}
BELOW["session"] = BELOW["engine"] | {"engine"}
# `strata bench` measures on the paced ports, which no configuration can choose.
BELOW["tools"] = BELOW["session"] | {"session", "paced", "virtual"}
# An example is a user: it sees public headers only, whatever their room.
BELOW["examples"] = set()

PUBLIC_HEADERS = {
    "block_io.hpp": "ports",
    "bytes.hpp": "base",
    "clock.hpp": "base",
    "communicator.hpp": "ports",
    "config.hpp": "config",
    "cuda_interop.hpp": "ports",
    "device.hpp": "ports",
    "element_ops.hpp": "base",
    "error.hpp": "base",
    "log.hpp": "base",
    "machine.hpp": "session",
    "memory_plan.hpp": "layout",
    "model.hpp": "layout",
    "safetensors.hpp": "safetensors",
    "session.hpp": "session",
    "timeline.hpp": "base",
    "types.hpp": "base",
}

# Headers of software that only some adapters, or single files, may see.
GUARDED = [
    (re.compile(r"^(cuda|cublas|cooperative_groups)"), {"cuda", "nccl"}),
    (re.compile(r"^nccl"), {"nccl"}),
    (re.compile(r"^(mpi|mpi-ext)\.h$"), {"mpi"}),
    (re.compile(r"^boost/asio"), {"tcp"}),
    (re.compile(r"^liburing"), {"uring", "tools/strata/bare_loop.cpp"}),
]

# Layout and plan compute: no I/O, no clock, no threads.
PURE_ROOMS = {"layout", "plan"}
IMPURE = re.compile(
    r"^(thread|mutex|condition_variable|future|atomic|chrono|fstream|filesystem|iostream|random"
    r"|unistd\.h|fcntl\.h|pthread\.h|time\.h|sys/.*)$"
)
IMPURE_PORTS = {"strata/device.hpp", "strata/block_io.hpp", "strata/communicator.hpp",
                "strata/clock.hpp"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SUFFIXES = {".hpp", ".cpp", ".h", ".cu", ".cuh"}


def room_of_file(path):
    """Room of a file, given its path below the repository's root, or None if it has none."""
    parts = Path(path).parts
    if parts[:2] == ("include", "strata"):
        return PUBLIC_HEADERS.get(parts[-1]) if len(parts) == 3 else None
    if parts[0] == "src":
        return parts[1] if len(parts) > 2 and parts[1] in BELOW else None
    return parts[0]


def target_of(name, path, root):
    """The repository's file that `#include "name"` in `path` means, or None for anything else."""
    if name.startswith("strata/"):
        return f"include/{name}"
    if (root / "src" / name).is_file():
        return f"src/{name}"
    sibling = Path(path).parent / name
    return sibling.as_posix() if (root / sibling).is_file() else None


def check_foreign(path, room, name):
    for pattern, owners in GUARDED:
        allowed = path in owners or (room in owners and not path.startswith("include/"))
        if pattern.match(name) and not allowed:
            yield f"<{name}> may be included only inside {', '.join(sorted(owners))}"
    if room in PURE_ROOMS and path.startswith("src/") and IMPURE.match(name):
        yield f"{room} is pure (no I/O, clock or threads) and includes <{name}>"


def check_own(path, room, target):
    target_room = room_of_file(target)
    if target_room is None:
        yield f"{target} has no room; add it to a table in tools/check_layers.py"
        return
    public = target.startswith("include/")
    if path.startswith("include/") and not public:
        yield f"a public header includes the private {target}"
    if room in PURE_ROOMS and path.startswith("src/") and target[8:] in IMPURE_PORTS:
        yield f"{room} is pure (no I/O, clock or threads) and includes {target[8:]}"
    if room == "examples":
        if not public and target_room != "examples":
            yield f"an example includes the private {target}"
    elif target_room in ADAPTERS - BELOW[room] - {room}:
        if path not in FACTORIES and target_room not in BELOW[room]:
            yield f"only {', '.join(FACTORIES)} name adapters; this includes {target}"
    elif target_room != room and target_room not in BELOW[room]:
        yield f"{room} stands not above {target_room}: it may not include {target}"


def check_file(root, path):
    """Yields (line, message) for every violation in one file."""
    room = room_of_file(path)
    if room not in BELOW:
        yield 1, "this file has no room; add it to a table in tools/check_layers.py"
        return
    text = (root / path).read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), start=1):
        match = INCLUDE.match(line)
        if not match:
            continue
        name = match.group(2)
        target = target_of(name, path, root)
        found = check_own(path, room, target) if target else check_foreign(path, room, name)
        for message in found:
            yield number, message


def check_tree(root):
    """All violations below `root` as "path:line: message", and the number of files read."""
    paths = sorted(
        file.relative_to(root).as_posix()
        for top in ("include", "src", "tools", "examples")
        for file in (root / top).rglob("*")
        if file.suffix in SUFFIXES and file.is_file()
    )
    violations = [
        f"{path}:{line}: {message}" for path in paths for line, message in check_file(root, path)
    ]
    return violations, len(paths)


# (file, its includes, part of the message, or None where all is well)
SELF_TESTS = [
    ("src/engine/a.cpp", '#include "layout/x.hpp"\n#include <mutex>', None),
    ("src/session/factory.cpp", '#include "cpu/x.hpp"', None),
    ("src/mpi/a.cpp", "#include <mpi.h>", None),
    ("src/tcp/a.cpp", "#include <boost/asio/read.hpp>", None),
    ("src/nccl/a.cpp", '#include "tcp/x.hpp"', None),
    ("tools/strata/bare_loop.cpp", "#include <liburing.h>", None),
    ("tools/strata/a.cpp", '#include "paced/x.hpp"', None),
    ("src/paced/a.cpp", '#include "files/x.hpp"', None),
    ("src/safetensors/a.cpp", '#include "files/x.hpp"', None),
    ("examples/e/a.cpp", '#include "strata/session.hpp"', None),
    ("src/base/a.cpp", '#include "layout/x.hpp"', "base stands not above layout"),
    ("src/layout/a.cpp", '#include "memory/x.hpp"', "layout stands not above memory"),
    ("src/cpu/a.cpp", '#include "strata/model.hpp"', "cpu stands not above layout"),
    ("src/cpu/a.cpp", '#include "posix/x.hpp"', "only src/session/factory.cpp"),
    ("src/session/a.cpp", '#include "cpu/x.hpp"', "only src/session/factory.cpp"),
    ("src/paced/a.cpp", '#include "engine/x.hpp"', "paced stands not above engine"),
    ("tools/strata/a.cpp", '#include "cpu/x.hpp"', "only src/session/factory.cpp"),
    ("src/session/a.cpp", "# include <mpi.h>", "only inside mpi"),
    ("src/nccl/a.cpp", "#include <boost/asio.hpp>", "only inside tcp"),
    ("src/tcp/a.cpp", '#include "cpu/x.hpp"', "only src/session/factory.cpp"),
    ("tools/strata/a.cpp", "#include <liburing.h>", "only inside tools/strata/bare_loop.cpp"),
    ("include/strata/session.hpp", "#include <mpi.h>", "only inside mpi"),
    ("include/strata/device.hpp", "#include <cuda_runtime.h>", "only inside cuda, nccl"),
    ("include/strata/session.hpp", '#include "engine/x.hpp"', "includes the private"),
    ("include/strata/unheard.hpp", "", "has no room"),
    ("src/attic/a.cpp", "", "has no room"),
    ("src/plan/a.cpp", "#include <thread>", "plan is pure"),
    ("src/layout/a.cpp", '#include "strata/clock.hpp"', "layout is pure"),
    ("examples/e/a.cpp", '#include "engine/x.hpp"', "an example includes the private"),
]


def self_test():
    failures = 0
    for path, text, expected in SELF_TESTS:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            rooms = ("base", "cpu", "posix", "paced", "files", "tcp", "layout", "memory", "engine")
            for room in rooms:
                (root / "src" / room).mkdir(parents=True)
                (root / "src" / room / "x.hpp").touch()
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
            found, _ = check_tree(root)
        good = found == [] if expected is None else len(found) == 1 and expected in found[0]
        if not good:
            failures += 1
            print(f"self-test: {path} with {text!r}: expected {expected!r}, found {found}")
    print(f"layers: self-test, {len(SELF_TESTS) - failures} passed, {failures} failed")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        return 1 if self_test() else 0
    violations, files = check_tree(arguments.root)
    print(*violations, sep="\n", end="\n" if violations else "")
    print(f"layers: {files} files, {len(violations)} violations")
    return 1 if violations or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
