"""What pyproject.toml asks for, what that leads to, and what the hashed locks say."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
RUNTIME, WHEEL = ROOT / "constraints" / "runtime.txt", ROOT / "constraints" / "wheel.txt"
"""The locks of what runs, and of what builds the wheel."""
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Locked:
    """A line of a lock.

    Attributes:
        name: canonical.
        hashes: SHA-256 of each file that may be installed, in hexadecimal digits.
    """

    name: str
    version: str
    hashes: tuple[str, ...]


def project(root: Path = ROOT) -> dict[str, Any]:
    """pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


def runtime_requirements(root: Path = ROOT) -> list[Requirement]:
    """What `pip install octavo` asks for by itself."""
    return [Requirement(line) for line in project(root)["project"]["dependencies"]]


def wheel_requirements(root: Path = ROOT) -> list[Requirement]:
    """What building a wheel asks for, with the tools of `make ext`."""
    tools = (root / "constraints" / "build.txt").read_text(encoding="utf-8").splitlines()
    lines = [
        *project(root)["build-system"]["requires"],
        *(line for line in tools if line[:1] not in ("", "#")),
    ]
    return [Requirement(line) for line in lines]


def read_lock(path: Path) -> list[Locked]:
    """A lock's lines.

    Raises:
        ValueError: a line is no NAME==VERSION with at least one hash, or a name stands there twice.
    """
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    found = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        pinned, *rest = line.split()
        name, _, version = pinned.partition("==")
        hashes = [match[1] for word in rest if (match := HASH.fullmatch(word))]
        if not version or not hashes or len(hashes) < len(rest):
            raise ValueError(f"{path.name}: no version or no hash, or something else: {line.strip()!r}")
        found.append(Locked(canonicalize_name(name), version, tuple(hashes)))
    if len({each.name for each in found}) < len(found):
        raise ValueError(f"{path.name}: a name stands there twice")
    return found


def closure(wanted: Iterable[Requirement]) -> dict[str, set[str]]:
    """Canonical names of all distributions that requirements lead to, as installed here, each with those that
    it asks for itself.

    Raises:
        importlib.metadata.PackageNotFoundError: one is not installed.
    """
    asked: dict[str, set[str]] = {}
    done: set[tuple[str, str]] = set()
    queue = [(r, extra) for r in wanted for extra in (r.extras or {""})]
    while queue:
        requirement, extra = queue.pop()
        name = canonicalize_name(requirement.name)
        if (name, extra) in done:
            continue
        done.add((name, extra))
        below = asked.setdefault(name, set())
        for line in importlib.metadata.requires(requirement.name) or ():
            inner = Requirement(line)
            if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                below.add(canonicalize_name(inner.name))
                queue.extend((inner, e) for e in (inner.extras | {""}))
    return asked
