"""Tables for terminals of any width."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

NUMBER = re.compile(r"[-+]?[\d.]")
"""How a cell begins that is a figure, whatever its unit."""
NONE = "-"
"""Stands where nothing was measured."""
CONTINUED = "    "
"""Before what is left of a line that was too long."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells. The first cell of a row is its name; headers have the units.

    Attributes:
        notes: lines below it.

    Columns of figures stand right, columns of words left.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    notes: tuple[str, ...] = ()

    def text(self, columns: int | None = None) -> str:
        """As lines; where they would not fit into so many columns, a line for each cell. Sentences go on in
        the next line."""
        every = (self.headers, *self.rows)
        widths = [max(len(row[i]) for row in every) for i in range(len(self.headers))]
        lines = folded(self.title, columns) if self.title else []
        if columns is not None and sum(widths) + 2 * (len(widths) - 1) > columns:
            room = max(map(len, self.headers[1:]), default=0)
            for row in self.rows:
                lines += folded(row[0], columns)
                for header, cell in zip(self.headers[1:], row[1:], strict=True):
                    lines += folded(f"  {header:<{room}}  {cell}", columns)
        else:
            for row in every:
                cells = zip(row, self.sides, widths, strict=True)
                lines.append("  ".join(f"{cell:{side}{width}}" for cell, side, width in cells).rstrip())
        return "\n".join([*lines, *(line for note in self.notes for line in folded(note, columns))])

    @property
    def sides(self) -> tuple[str, ...]:
        """Of each column, where its cells stand: "<" left (names and words), ">" right (figures)."""
        columns = list(zip(*self.rows, strict=True)) or [()] * len(self.headers)
        return ("<", *(_side(cells) for cells in columns[1:]))


def folded(text: str, columns: int | None) -> list[str]:
    """Its lines, none of them longer than so many columns."""
    if columns is None:
        return text.split("\n")
    return [
        part
        for line in text.split("\n")
        for part in textwrap.wrap(line, columns, subsequent_indent=CONTINUED) or [""]
    ]


def number(value: float | None, digits: int = 1) -> str:
    """A figure with thousands apart; what was not measured is no figure."""
    return NONE if value is None else f"{value:,.{digits}f}"


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> Table:
    """Cells that are numbers as number() writes them, None as what was not measured."""
    return Table(tuple(headers), tuple(tuple(_cell(cell) for cell in row) for row in rows), title)


def _side(cells: Sequence[str]) -> str:
    """Right where at least half of what is there are figures: a reason may stand in for one of them."""
    told = [bool(NUMBER.match(cell)) for cell in cells if cell not in ("", NONE)]
    return ">" if 2 * sum(told) >= len(told) else "<"


def _cell(value: object) -> str:
    if value is None or isinstance(value, float):
        return number(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
