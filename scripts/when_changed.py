"""Run a command only when its inputs have changed: Make's timestamps, by content.

    when_changed.py STAMP [--makes GLOB]... INPUT... -- COMMAND...

The stamp holds a SHA-256 over the inputs (files, or folders walked), the command, the Python that
runs this and the checkout's place. Equal stamp and all of --makes present: nothing to do. The stamp
is written after the command has succeeded, so an interrupted run starts again. A lock beside the
stamp makes two `make` at once wait for each other.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

IGNORED_SUFFIXES = (".pyc", ".so")


def files_of(inputs: Iterable[Path]) -> Iterator[Path]:
    """Every file among the inputs, folders walked in sorted order. A missing input is no file."""
    for path in inputs:
        if path.is_dir():
            yield from (
                p for p in sorted(path.rglob("*")) if p.is_file() and p.suffix not in IGNORED_SUFFIXES
            )
        elif path.is_file():
            yield path


def fingerprint(inputs: Iterable[Path], command: Sequence[str]) -> str:
    """SHA-256 (hex) of the command, the interpreter, the working folder, and each input's name and bytes."""
    digest = hashlib.sha256()
    for part in (sys.version, str(Path.cwd()), *command):
        digest.update(part.encode() + b"\0")
    for path in files_of(inputs):
        digest.update(f"{path}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def run(stamp: Path, makes: Sequence[str], inputs: Sequence[Path], command: Sequence[str]) -> int:
    """The command's exit status, or 0 where nothing had to be done."""
    stamp.parent.mkdir(parents=True, exist_ok=True)
    with stamp.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = fingerprint(inputs, command)
        if stamp.exists() and stamp.read_text() == wanted and all(any(Path().glob(made)) for made in makes):
            return 0
        stamp.unlink(missing_ok=True)
        status = subprocess.run(command, check=False).returncode
        if status == 0:
            stamp.write_text(wanted)
        return status


def main(arguments: Sequence[str]) -> int:
    if "--" not in arguments:
        print("when_changed: no command: STAMP [--makes GLOB] INPUT... -- COMMAND...", file=sys.stderr)
        return 2
    split = list(arguments).index("--")
    parser = argparse.ArgumentParser(prog="when_changed")
    parser.add_argument("stamp", type=Path)
    parser.add_argument("--makes", action="append", default=[])
    parser.add_argument("inputs", type=Path, nargs="*")
    options = parser.parse_intermixed_args(arguments[:split])
    return run(options.stamp, options.makes, options.inputs, arguments[split + 1 :])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
