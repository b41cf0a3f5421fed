"""docs/glossary.md: each word stands once, and each file and name that it gives is in the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in PAGE.splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| word |"))
]
PLACE = re.compile(r"`([\w/.]+)`(?: `(\w+)`)?")
SOURCES = ("src/octavo", ".")


def wrong(place: str, root: Path = ROOT) -> str | None:
    """What of a row's last column is not so, or None."""
    found = PLACE.fullmatch(place)
    if found is None:
        return "not `file` or `file` `name`"
    path, name = found.groups()
    files = [root / source / path for source in SOURCES if (root / source / path).is_file()]
    if not files:
        return "there is no such file"
    defined = rf"^(?:class|def|async def) {name}\b|^{name}\b.*="  # at the top level
    if name and not re.search(defined, files[0].read_text(encoding="utf-8"), re.MULTILINE):
        return "the file defines no such name"
    return None


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_word_leads_to_the_code(row: tuple[str, ...]) -> None:
    word, field, meaning, place = row
    assert word
    assert field
    assert meaning.endswith(".")
    assert wrong(place) is None, place


def test_no_word_stands_twice() -> None:
    words = [row[0] for row in ROWS]
    assert len(words) > 70
    assert len(words) == len(set(words))


@pytest.mark.parametrize("page", ["index.md", "concepts.md", "one-request.md"])
def test_readers_find_it(page: str) -> None:
    assert "(glossary.md)" in (ROOT / "docs" / page).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("`a.py` `A`", None),
        ("`a.py`", None),
        ("`a.py` `f`", None),
        ("`a.py` `C`", None),
        ("`a.py` `D`", None),
        ("`a.py` `method`", "the file defines no such name"),
        ("`a.py` `B`", "the file defines no such name"),
        ("`b.py` `A`", "there is no such file"),
        ("a.py", "not `file` or `file` `name`"),
    ],
)
def test_the_judge_can_convict(place: str, said: str | None, tmp_path: Path) -> None:
    text = "class A:\n    def method(self): ...\ndef f(): ...\nC: int = 1\nD = 2\nB\n"
    (tmp_path / "a.py").write_text(text, encoding="utf-8")
    assert wrong(place, tmp_path) == said
