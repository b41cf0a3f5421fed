"""The hashed locks: constraints/runtime.txt (what runs) and constraints/wheel.txt (what builds the wheel).

    lock.py            pip resolves anew, within constraints/test.txt and build.txt, and the files are written
    lock.py --check    do the files hold what pyproject.toml leads to? Asks no index

Versions are those that are tested. A lock has the hash of each wheel that pip finds for the Pythons and
machines below, so `pip install --require-hashes` takes no other file. It names no index.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from distributions import (
    ROOT,
    RUNTIME,
    WHEEL,
    closure,
    read_lock,
    runtime_requirements,
    wheel_requirements,
)
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")
GLIBC = [*(f"manylinux_2_{minor}" for minor in (34, 31, 28, 27, 26, 24, 17)), "manylinux2014"]
HEADER = (
    "# {what}, each file by its hash: pip install --require-hashes -r constraints/{name}\n# By make lock."
)


def pip(words: Sequence[str]) -> list[tuple[str, str, str]]:
    """What pip would install: (canonical name, version, SHA-256 of the file).

    Raises:
        subprocess.CalledProcessError: it finds no way; its reasons have gone to stderr.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--dry-run"]
    command += ["--ignore-installed", "--only-binary=:all:", "--report=-", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [
        (
            canonicalize_name(each["metadata"]["name"]),
            each["metadata"]["version"],
            each["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for each in json.loads(done.stdout)["install"]
    ]


def hashes_elsewhere(pinned: Sequence[str], python: str, machine: str) -> list[tuple[str, str, str]]:
    """As pip(), of the wheels for another Python or machine. What has none there is said and left out."""
    with tempfile.TemporaryDirectory(prefix="octavo-lock-") as folder:
        words = ["--no-deps", f"--target={folder}", f"--python-version={python}", "--implementation=cp"]
        words += [f"--platform={glibc}_{machine}" for glibc in GLIBC]
        with contextlib.suppress(subprocess.CalledProcessError):
            return pip([*words, *pinned])
        found = []
        for each in pinned:  # one has no wheel there: which?
            try:
                found += pip([*words, each])
            except subprocess.CalledProcessError:
                print(f"lock: no wheel of {each} for Python {python} on {machine}", file=sys.stderr)
    return found


def lock(requirements: Sequence[Requirement], constraints: Path) -> list[str]:
    """The lines of a lock."""
    here = pip(["--constraint", str(constraints), *map(str, requirements)])
    hashes: dict[tuple[str, str], set[str]] = {}
    for name, version, digest in here:
        hashes.setdefault((name, version), set()).add(digest)
    pinned = [f"{name}=={version}" for name, version in sorted(hashes)]
    for python in PYTHONS:
        for machine in MACHINES:
            for name, version, digest in hashes_elsewhere(pinned, python, machine):
                hashes[name, version].add(digest)
    return [
        " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{digest}" for digest in sorted(digests))])
        for (name, version), digests in sorted(hashes.items())
    ]


def problems(path: Path, requirements: Sequence[Requirement], complete: bool) -> list[str]:
    """How a lock differs from what is asked for.

    Args:
        complete: what the requirements lead to is installed here, and looked through too.
    """
    try:
        locked = {each.name: each.version for each in read_lock(path)}
    except (OSError, ValueError) as error:
        return [str(error)]
    found = []
    for requirement in requirements:
        version = locked.get(canonicalize_name(requirement.name))
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            found.append(f"{path.name}: {requirement} is asked for, {version or 'nothing'} is locked")
    if complete:
        try:
            names = set(closure(requirements))
        except importlib.metadata.PackageNotFoundError as error:
            return [*found, f"{path.name}: {error.name} is not installed here: make env"]
        found += [f"{path.name}: {name} is needed and not locked" for name in sorted(names - set(locked))]
        found += [f"{path.name}: {name} is locked and not needed" for name in sorted(set(locked) - names)]
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="lock")
    parser.add_argument("--check", action="store_true", help="write nothing; say what is out of date")
    options = parser.parse_args(arguments)
    folder = ROOT / "constraints"
    if options.check:
        found = problems(RUNTIME, runtime_requirements(), True) + problems(WHEEL, wheel_requirements(), False)
        for line in found:
            print(f"lock: {line}; make lock", file=sys.stderr)
        return int(bool(found))
    try:
        runs = lock(runtime_requirements(), folder / "test.txt")
        builds = lock(wheel_requirements(), folder / "build.txt")
    except subprocess.CalledProcessError:
        print("lock: pip found no way to install what is asked for; nothing was written", file=sys.stderr)
        return 1
    for path, what, lines in (
        (RUNTIME, "What Octavo runs with", runs),
        (WHEEL, "What builds its wheel", builds),
    ):
        path.write_text("\n".join([HEADER.format(what=what, name=path.name), *lines, ""]), encoding="utf-8")
        print(f"lock: {len(lines)} packages in constraints/{path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
