"""docs/questions.md: each answer names a file and a function that exist, and two steps of search find it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "octavo"
PAGE = (ROOT / "docs" / "questions.md").read_text(encoding="utf-8")
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in PAGE.splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| question |"))
]
PLACE = re.compile(r"`([\w/]+\.py)` `([\w.]+)`")
FILE = re.compile(r"`([\w/]+\.py)`")
Place = tuple[str, str]


def places(answer: str) -> list[Place]:
    """(file below src/octavo, function or class) of an answer."""
    return PLACE.findall(answer)


@cache
def defined(path: Path) -> frozenset[str]:
    """Qualified names of a file's classes and functions: "f", "C", "C.method"."""
    names: set[str] = set()

    def visit(node: ast.AST, owner: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                names.add(owner + child.name)
                visit(child, f"{owner}{child.name}.")

    visit(ast.parse(path.read_text(encoding="utf-8")), "")
    return frozenset(names)


def by_name(word: str, source: Path = SOURCE) -> set[str]:
    """Files whose own name, or that of a class or function in them, holds the word."""
    word = word.lower()
    return {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if word in path.stem.lower() or any(word in name.lower() for name in defined(path))
    }


def by_page(word: str, docs: Path = ROOT / "docs") -> set[str]:
    """Files that a line of the first pages names together with the word."""
    pages = [*docs.glob("*.md"), *(docs / "how-to").glob("*.md")]
    lines = [
        line
        for page in pages
        if page.name not in ("questions.md", "status.md")
        for line in page.read_text(encoding="utf-8").splitlines()
    ]
    return {file for line in lines if word.lower() in line.lower() for file in FILE.findall(line)}


def test_there_are_twenty() -> None:
    questions = [question for question, _, _ in ROWS]
    assert len(questions) >= 20
    assert len(set(questions)) == len(questions)
    assert all(question.endswith("?") for question in questions)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_an_answer_is_there(row: tuple[str, str, str]) -> None:
    found = places(row[1])
    assert found, "an answer names `file` `function`"
    for file, name in found:
        assert (SOURCE / file).is_file(), file
        assert name in defined(SOURCE / file), f"{file} has no {name}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_two_steps_of_search_find_it(row: tuple[str, str, str]) -> None:
    _, answer, word = row
    assert places(answer)[0][0] in by_name(word) | by_page(word), f"searching {word!r} does not lead there"


def test_the_page_is_linked() -> None:
    assert "(questions.md)" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


def test_the_judges_can_convict(tmp_path: Path) -> None:
    (tmp_path / "pool.py").write_text("class A:\n    def take(self): ...\nx = 1\n", encoding="utf-8")
    (tmp_path / "a.md").write_text("Pages: `pool.py`.\nNothing of `other.py`.\n", encoding="utf-8")
    assert defined(tmp_path / "pool.py") == {"A", "A.take"}
    assert (by_name("TAKE", tmp_path), by_name("x", tmp_path)) == ({"pool.py"}, set())
    assert (by_page("pages", tmp_path), by_page("tokens", tmp_path)) == ({"pool.py"}, set())
    assert places("`a/b.py` `C.d` and `e.py`") == [("a/b.py", "C.d")]
