"""All figures as one JSON object."""

from __future__ import annotations

from pathlib import Path

from octavo.bench.report.writers import Report, Writer, as_json


def need() -> None:
    """Nothing."""


def write(report: Report, path: Path) -> None:
    """The data, and the facts beside them."""
    text = as_json({"title": report.title, **report.facts, **report.data})
    path.write_text(text + "\n", encoding="utf-8")


WRITER = Writer(".json", need, write)
