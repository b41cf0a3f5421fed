"""What `pip install octavo` brings along: no torch, and little of everything else."""

from __future__ import annotations

import importlib
import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LIMIT_MB = 200
PIP_MB = 20  # pip and the interpreter's links, which a fresh environment holds as well
UNWANTED = {"torch", "triton", "transformers", "scipy", "pandas", "llama-cpp-python"}


@pytest.fixture
def distributions(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("distributions")


def installed_mb(name: str) -> float:
    files = importlib.metadata.files(name) or []
    return sum(path.stat().st_size for file in files if (path := Path(str(file.locate()))).is_file()) / 1e6


def test_the_runtime_needs_no_torch(distributions: Any) -> None:
    names = set(distributions.closure(distributions.runtime_requirements()))
    assert "numpy" in names  # the walk works
    assert "starlette" in names  # and goes deeper than one level
    assert not names & UNWANTED
    assert not {name for name in names if name.startswith("nvidia")}


def test_the_runtime_is_small(distributions: Any) -> None:
    names = distributions.closure(distributions.runtime_requirements())
    sizes = {name: installed_mb(name) for name in names}
    assert sizes["numpy"] > 5  # the scale works
    total = sum(sizes.values()) + PIP_MB
    assert total < LIMIT_MB, sorted(sizes.items(), key=lambda item: -item[1])[:8]


def test_versions_are_locked(distributions: Any) -> None:
    """Each declared dependency has exactly one locked version, and that one is allowed."""
    lines = (ROOT / "constraints" / "test.txt").read_text(encoding="utf-8").splitlines()
    locks = [Requirement(line) for line in lines if line and not line.startswith("#")]
    names = [canonicalize_name(lock.name) for lock in locks]
    assert len(names) == len(set(names))
    version = {name: str(lock.specifier).removeprefix("==") for name, lock in zip(names, locks, strict=True)}
    assert version["torch"] == "2.13.0"
    for requirement in distributions.runtime_requirements():
        locked = version[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(locked), f"{requirement} against {locked}"


def test_locks_name_no_index_and_no_local_build() -> None:
    for path in (ROOT / "constraints").glob("*.txt"):
        text = path.read_text(encoding="utf-8")
        assert "://" not in text
        assert "+" not in "".join(line for line in text.splitlines() if not line.startswith("#"))
