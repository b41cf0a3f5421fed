"""docs/instruction-sets.md says where each op and each layout is in csrc."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "instruction-sets.md").read_text(encoding="utf-8")
MAP = PAGE.partition("## Where each op and each format is\n")[2].partition("\n## ")[0]
ROWS = [line.strip("|").split("|") for line in MAP.splitlines() if line.startswith("| `")]
NAME = re.compile(r"`(\w+)`")
FILE = re.compile(r"`(csrc/[\w./]+\.\w+)`")


def declared() -> set[str]:
    """The ops of the specification."""
    tree = ast.parse((ROOT / "src/octavo/kernels/operations.py").read_text(encoding="utf-8"))
    [ops] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Ops"]
    return {node.name for node in ops.body if isinstance(node, ast.FunctionDef)}


def registered() -> dict[str, str]:
    """Op -> the file of csrc that registers it."""
    return {
        op: path.relative_to(ROOT).as_posix()
        for path in (ROOT / "csrc").glob("*.cpp")
        for op in re.findall(r'const OpType k\w+{"(\w+)"', path.read_text(encoding="utf-8"))
    }


def layouts() -> set[str]:
    found = re.search(
        r"enum class Layout : int {([^}]+)}", (ROOT / "csrc/types.h").read_text(encoding="utf-8")
    )
    assert found is not None
    return set(re.findall(r"\w+", found[1]))


def test_each_op_and_each_layout_stands_in_it() -> None:
    named = {name for row in ROWS for name in NAME.findall(row[0])}
    assert named == declared() | layouts()


@pytest.mark.parametrize("op", sorted(registered()))
def test_an_op_is_where_it_says(op: str) -> None:
    rows = [row for row in ROWS if op in NAME.findall(row[0])]
    assert any(registered()[op] in FILE.findall(row[1]) for row in rows)


def test_its_files_exist() -> None:
    files = FILE.findall(MAP)
    assert len(files) > 30
    assert [file for file in files if not (ROOT / file).is_file()] == []
