"""The drawing in docs/concepts.md has every room, on the floors of tests/test_architecture.py."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from test_architecture import FLOORS  # noqa: E402

SOURCE = ROOT / "src" / "octavo"
ROOM = re.compile(r"(?:^ *|\| *)([a-z_]+)(/|\.py)(?= )", re.MULTILINE)


def drawn(page: str) -> list[tuple[str, str]]:
    """(room, "/" or ".py") in the drawing's order: what begins a line, or stands behind a bar."""
    picture = page.split("```")[1]
    return ROOM.findall(picture)


def floors_of(rooms: list[str]) -> list[int]:
    return [next(i for i, floor in enumerate(FLOORS) if room in floor) for room in rooms]


def test_the_drawing_has_every_room() -> None:
    rooms = drawn((ROOT / "docs" / "concepts.md").read_text(encoding="utf-8"))
    exist = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    exist |= {path.name for path in SOURCE.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert {room + kind.rstrip("/") for room, kind in rooms} == exist
    assert len(rooms) == len(set(rooms))


def test_the_drawing_has_the_floors_from_the_roof_down() -> None:
    rooms = drawn((ROOT / "docs" / "concepts.md").read_text(encoding="utf-8"))
    floors = floors_of([room for room, _ in rooms])
    assert floors == sorted(floors)


def test_the_judge_can_convict() -> None:
    page = "```\ncli/   a\nllm.py  b   | server/ c\n```"
    assert drawn(page) == [("cli", "/"), ("llm", ".py"), ("server", "/")]
    floors = floors_of([room for room, _ in drawn(page)])
    assert floors != sorted(floors)
