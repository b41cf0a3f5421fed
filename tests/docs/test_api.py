"""docs/reference/api.md: its modules and names exist, and examples and pages import nothing else."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in PAGE.splitlines()
    if line.startswith("| `octavo")
]
MODULES = {name for modules, _ in ROWS for name in re.findall(r"`(octavo[\w.]*)`", modules)}
FENCED = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs").glob("*/*.md"))]
OLD = ("decisions",)  # what a decision showed at its time


def imported(code: str) -> set[str]:
    """Modules of octavo that the code imports; `import octavo` is "octavo"."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return {name for name in found if name.split(".")[0] == "octavo"}


def shown() -> Iterator[tuple[str, str]]:
    """(where, code) of every example and of every block of Python in the pages."""
    for path in sorted((ROOT / "examples").glob("*.py")):
        yield path.name, path.read_text(encoding="utf-8")
    for page in PAGES:
        if page.parent.name not in OLD:
            for code in FENCED.findall(page.read_text(encoding="utf-8")):
                yield page.name, code


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_modules_and_names_exist(row: tuple[str, str]) -> None:
    for name in re.findall(r"`(octavo[\w.]*)`", row[0]):
        module = importlib.import_module(name)
        listed = [] if "/" in row[1] else re.findall(r"`([A-Za-z_]\w*)`", row[1])
        assert not [each for each in listed if each not in ("octavo", "LLM") and not hasattr(module, each)]


def test_examples_and_pages_import_nothing_else() -> None:
    used = {(where, name) for where, code in shown() for name in imported(code)}
    assert len(used) > 15
    assert {(where, name) for where, name in used if name not in MODULES} == set()


def test_readers_find_it() -> None:
    assert "(reference/api.md)" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import octavo", {"octavo"}),
        ("def f():\n    from octavo.a.b import c", {"octavo.a.b"}),
        ("import os, octavo.x as y", {"octavo.x"}),
        ("from octavos import x", set()),
    ],
)
def test_the_judge_can_convict(code: str, names: set[str]) -> None:
    assert imported(code) == names
