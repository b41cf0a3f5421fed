"""The golden file: what this program said at one commit, compared with what it says now.

    golden.py record --out FILE             write what this tree says
    golden.py compare [--against FILE]      exit 1 where it says something else than the file
    golden.py compare --part 10             the same of every tenth crowd and every tenth group of calls

Recorded are the ids, ends and log-probability bits of 500 random crowds on tiny models of four kinds
(golden_crowds.py, golden_models.py), and the bodies of more than 300 API calls to apps with these and with
SmolLM2-135M Q4_1 (golden_calls.py, golden_http.py). Ids, times and hashes are masked.

It does not depend on the machine: the native kernels run as AVX2 (--isa avx2), with threads and seeds given;
NumPy is kept to AVX2 as well, for its sines and exponentials differ in the last bit from one instruction set
to another. A CPU without AVX2 cannot compare.

What differs on purpose stands in tests/golden/differences.json, each with its row in
docs/decisions/0014-answers-that-change-on-purpose.md: {"entry": a name, `*` for any characters; "path":
keys to what differs, joined by "/", `*` allowed; "old", "new": values, absent where there is none; "why"}.
Everything else that differs is an error, and so is, in a whole comparison, a difference listed that is none.
"""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "golden"
FILE, LISTED = FOLDER / "e9d8bdb.json.gz", FOLDER / "differences.json"
PINNED = "NPY_DISABLE_CPU_FEATURES"
SHOWN = 40
Entries = dict[str, Any]
NOTHING: Any = object()


class Difference(NamedTuple):
    """One place where the two say something else; NOTHING where one of them says nothing."""

    entry: str
    path: str
    old: Any
    new: Any

    def __str__(self) -> str:
        def shown(value: Any) -> str:
            return "(nothing)" if value is NOTHING else json.dumps(value)[:300]

        return f"{self.entry} | {self.path}\n    old {shown(self.old)}\n    new {shown(self.new)}"


def pin() -> None:
    """Start again in an environment where NumPy and its BLAS use AVX2 and nothing above."""
    if PINNED in os.environ:
        return
    names = "import numpy; print(*numpy._core._multiarray_umath.__cpu_dispatch__)"
    found = subprocess.run([sys.executable, "-c", names], capture_output=True, text=True, check=True).stdout
    above = [name for name in found.split() if name.startswith(("AVX512", "X86_V4"))]
    pinned = {PINNED: " ".join(above), "OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_NUM_THREADS": "1"}
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **pinned})


def say(part: int) -> Entries:
    """What this tree says, by name: every part-th crowd and group of calls."""
    import golden_crowds
    import golden_models

    with TemporaryDirectory() as folder:
        folders = golden_models.save_all(Path(folder))
        said = {
            f"crowd {seed}": golden_crowds.crowd(seed, folders)
            for seed in range(0, golden_crowds.COUNT, part)
        }
        said |= asyncio.run(_answers(folders, part))
    # As JSON has it, so that what is compared is what a file can hold.
    entries: Entries = json.loads(json.dumps(said))
    return entries


async def _answers(folders: Any, part: int) -> Entries:
    import golden_calls
    import golden_http

    apps = golden_http.Apps(folders)
    said: Entries = {}
    try:
        for group in list(golden_calls.groups(apps.models))[::part]:
            said |= await golden_http.answers(apps, group)
    finally:
        apps.close()
    return said


def differences(old: Any, new: Any, entry: str, path: str = "") -> Iterator[Difference]:
    """The innermost places where two values differ. Lists of other lengths differ as a whole."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            where = f"{path}/{key}" if path else key
            yield from differences(old.get(key, NOTHING), new.get(key, NOTHING), entry, where)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for at, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, entry, f"{path}/{at}" if path else str(at))
    elif type(old) is not type(new) or old != new:
        yield Difference(entry, path, old, new)


def listed(found: Difference, allowed: dict[str, Any]) -> bool:
    """The difference is the one that this line of the list names."""
    return (
        fnmatch.fnmatchcase(found.entry, allowed["entry"])
        and fnmatch.fnmatchcase(found.path, allowed["path"])
        and allowed.get("old", NOTHING) == found.old
        and allowed.get("new", NOTHING) == found.new
    )


def judge(old: Entries, new: Entries, allowed: Sequence[dict[str, Any]], whole: bool) -> list[str]:
    """What is wrong, a line or more each: differences that are not listed, and lines that list none.

    Args:
        whole: new holds all that was asked; else only what it holds is compared, and what old lacks of
            it is wrong too.
    """
    wrong, used = [], set()
    names = [*old, *(name for name in new if name not in old)] if whole else list(new)
    for name in names:
        for found in differences(old.get(name, NOTHING), new.get(name, NOTHING), name):
            lines = [i for i, line in enumerate(allowed) if listed(found, line)]
            used.update(lines)
            if not lines:
                wrong.append(str(found))
    if whole:
        wrong += [f"listed, but no difference: {line}" for i, line in enumerate(allowed) if i not in used]
    return wrong


def read(path: Path) -> dict[str, Any]:
    """{"about": ..., "entries": ...} of a golden file."""
    content: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return content


def record(path: Path) -> None:
    import octavo

    tree = Path(octavo.__file__).resolve().parents[2]
    commit = subprocess.run(
        ["git", "-C", str(tree), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    status = ["git", "-C", str(tree), "status", "--porcelain", "--", "src", "csrc"]
    changed = subprocess.run(status, capture_output=True, text=True, check=True).stdout.strip()
    about = {"commit": commit, "changed": bool(changed), "isa": "avx2", "numpy": "kept to AVX2"}
    entries = say(1)
    text = json.dumps({"about": about, "entries": entries}, sort_keys=True, separators=(",", ":"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{path}: {len(entries)} entries of {commit}{' with changes' if changed else ''}")


def compare(path: Path, listing: Path, part: int) -> int:
    golden, new = read(path), say(part)
    assert new, f"this tree says nothing of every {part}th crowd and group of calls"
    allowed = json.loads(listing.read_text(encoding="utf-8"))
    old = golden["entries"]
    wrong = judge(old, new, allowed, part == 1)
    print("\n".join(wrong[:SHOWN]))
    commit = golden["about"]["commit"][:7]
    print(f"{len(new)} entries compared with {commit}: {len(wrong)} differences that are not listed")
    return int(bool(wrong))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="golden", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--against", type=Path, default=FILE)
    parser.add_argument("--listed", type=Path, default=LISTED)
    parser.add_argument("--part", type=int, default=1)
    options = parser.parse_args(arguments)
    pin()
    if options.what == "record":
        record(options.out)
        return 0
    return compare(options.against, options.listed, options.part)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
