"""Tests of the native kernels skip where there are none; here it fails where they could have been built."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from octavo.kernels.select import native_available

ROOT = Path(__file__).parents[2]
WITHOUT = "OCTAVO_TEST_WITHOUT_NATIVE"
"""Set to 1: the reference alone is to be tested."""


def why_missing(root: Path, which: Callable[[str], str | None], environment: Mapping[str, str]) -> str | None:
    """Why an extension need not be there: None if nothing speaks against building it."""
    if environment.get(WITHOUT) == "1":
        return f"{WITHOUT} is set"
    if not (root / "CMakeLists.txt").is_file():
        return "these are no sources to build it from"
    if which(environment.get("CXX", "g++")) is None:
        return "there is no C++ compiler"
    return None


def test_the_extension_is_there_where_it_can_be_built() -> None:
    if native_available():
        assert importlib.import_module("octavo.kernels._native").isas()
        return
    why = why_missing(ROOT, shutil.which, os.environ)
    if why is None:
        pytest.fail(f"the extension is not built (make ext; {WITHOUT}=1 to test without it)")
    pytest.skip(why)


@pytest.mark.parametrize(
    ("sources", "compiler", "environment", "why"),
    [
        (True, "g++", {}, None),
        (True, "g++", {WITHOUT: "0"}, None),
        (True, "clang++", {"CXX": "clang++"}, None),
        (True, "g++", {WITHOUT: "1"}, f"{WITHOUT} is set"),
        (False, "g++", {}, "these are no sources to build it from"),
        (True, None, {}, "there is no C++ compiler"),
        (True, "g++", {"CXX": "clang++"}, "there is no C++ compiler"),
    ],
)
def test_what_excuses_it(
    sources: bool, compiler: str | None, environment: dict[str, str], why: str | None, tmp_path: Path
) -> None:
    if sources:
        (tmp_path / "CMakeLists.txt").touch()

    def which(name: str) -> str | None:
        return name if name == compiler else None

    assert why_missing(tmp_path, which, environment) == why
