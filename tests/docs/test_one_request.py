"""docs/one-request.md against the path of the request that it follows: files, functions, threads, order."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from support import live, request_path
from support.fake_engine import FakeEngine

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "one-request.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "octavo"
THREADS = {"Event loop": "MainThread", "Engine thread": "octavo-engine"}
SECTION = re.compile(r"^## ([^:\n]+): [^\n]+\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
BEFORE = re.compile(r"^- \*\*`([\w/]+\.py)`\*\* ((?:`[\w.]+`(?:, )?)+)\.", re.MULTILINE)
"""What is before the app, which has no numbers."""
ITEM = re.compile(r"^\d+\. \*\*`([\w/]+\.py)`\*\* ((?:`[\w.]+`(?:, )?)+)\.", re.MULTILINE)
Call = tuple[str, str, str]
Section = list[list[Call]]


def sections(page: str) -> Iterator[Section]:
    """Of each section about a thread its items, each as (thread, file, function) for every function."""
    for heading, text in SECTION.findall(page):
        yield [
            [(THREADS[heading], file, name) for name in re.findall(r"`([\w.]+)`", names)]
            for file, names in ITEM.findall(text)
        ]


def not_entered(page: str, calls: list[Call]) -> list[Call]:
    return [call for section in sections(page) for item in section for call in item if call not in calls]


def not_named(page: str, files: list[str]) -> set[str]:
    return set(files) - {file for section in sections(page) for item in section for _, file, _ in item}


def out_of_order(page: str, calls: list[Call]) -> list[Call]:
    """Items of which the first function was entered before that of the item above it."""
    found = []
    for section in sections(page):
        firsts = [item[0] for item in section]
        places = [calls.index(first) for first in firsts]
        found += [firsts[i] for i in range(1, len(firsts)) if places[i] < places[i - 1]]
    return found


@pytest.fixture(scope="module")
def trace(smollm2_path: Path) -> tuple[list[str], list[Call]]:
    done = subprocess.run(
        [sys.executable, request_path.__file__, "smollm2"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    traced = json.loads(done.stdout)
    return traced["files"], [(thread, file, name) for thread, file, name in traced["calls"]]


def test_every_function_was_entered_where_the_page_says(trace: tuple[list[str], list[Call]]) -> None:
    assert not_entered(PAGE, trace[1]) == []


def test_every_file_on_the_path_is_named(trace: tuple[list[str], list[Call]]) -> None:
    assert not_named(PAGE, trace[0]) == set()


def test_the_order_is_the_order_of_entry(trace: tuple[list[str], list[Call]]) -> None:
    assert out_of_order(PAGE, trace[1]) == []


def before_the_app(page: str) -> list[tuple[str, str]]:
    """(file, function) of each bullet."""
    return [(file, name) for file, names in BEFORE.findall(page) for name in re.findall(r"`([\w.]+)`", names)]


def served() -> list[tuple[str, str]]:
    """(file, function) as a real server, with a scripted engine, enters them for a chat over a socket."""
    entered: dict[tuple[str, str], None] = {}

    def see(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            entered[path.relative_to(SOURCE).as_posix(), frame.f_code.co_qualname] = None

    async def ask() -> None:
        async with live.running(FakeEngine()) as server:
            sys.setprofile(see)
            try:
                response = await server.client.post(live.CHAT, json=live.BODY)
            finally:
                sys.setprofile(None)
            assert response.status_code == 200

    asyncio.run(ask())
    return list(entered)


def test_what_is_before_the_app_is_entered_in_this_order() -> None:
    app = ("server/limits.py", "LimitsMiddleware.__call__")
    entered, named = served(), before_the_app(PAGE)
    assert len(named) > 5
    assert set(named) <= set(entered)
    assert [call for call in entered if call in {*named, app}] == [*named, app]


def test_every_item_is_understood() -> None:
    """A line that ITEM does not match would be held to nothing."""
    numbered = re.findall(r"^\d+\. ", PAGE, re.MULTILINE)
    assert len(numbered) == sum(len(section) for section in sections(PAGE)) > 60


def test_other_names_of_the_page_exist() -> None:
    """In the text: files of src/octavo, tests and csrc; and every name after a file of csrc stands in it."""
    for path in re.findall(r"`([\w/]+\.(?:py|cpp|h))`", PAGE):
        assert (SOURCE / path).exists() or (ROOT / path).exists(), path
    native = re.findall(r"`(csrc/[\w.]+)` `([\w:]+)`", PAGE)
    assert len(native) == 3
    for path, name in native:
        assert name + "(" in (ROOT / path).read_text(encoding="utf-8"), name
    python = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    text = ITEM.sub("", PAGE)
    for owner, name in re.findall(r"`([A-Z]\w+)\.(\w+)(?:\(\))?`", text):
        assert f"class {owner}" in python, owner
        assert re.search(rf"def {name}\(", python), name
    for owner in re.findall(r"`([A-Z][a-z]+[A-Z]\w+)`", text):
        assert re.search(rf"^class {owner}\b", python, re.MULTILINE), owner


def test_it_is_read_in_ten_minutes() -> None:
    assert len(PAGE.split()) < 2_000


SMALL = """## Event loop: in

1. **`a.py`** `A.x`, `y`. Text.
2. **`b.py`** `z`. Text.

## Engine thread: first

1. **`b.py`** `w`.
"""
GOOD = [
    ("MainThread", "a.py", "A.x"),
    ("octavo-engine", "b.py", "w"),
    ("MainThread", "b.py", "z"),
    ("MainThread", "a.py", "y"),
]


def test_the_judges_can_acquit_and_convict() -> None:
    assert (not_entered(SMALL, GOOD), out_of_order(SMALL, GOOD)) == ([], [])
    assert not_named(SMALL, ["a.py", "b.py"]) == set()
    assert not_named(SMALL, ["a.py", "c.py"]) == {"c.py"}
    other_thread = [*GOOD[:2], ("octavo-engine", "b.py", "z"), GOOD[3]]
    assert not_entered(SMALL, other_thread) == [("MainThread", "b.py", "z")]
    assert out_of_order(SMALL, [GOOD[2], *GOOD[:2], GOOD[3]]) == [("MainThread", "b.py", "z")]
