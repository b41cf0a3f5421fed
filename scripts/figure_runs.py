"""Result files as runs: on which machine, of which commit, and which of them a figure is taken from."""

from __future__ import annotations

import operator
import statistics
import string
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

from result_files import load, naming

Result = Mapping[str, Any]
At = str | Callable[[Result], Any]
"""Where a value stands in a result: keys joined by "/", or a function. Of a list of dicts a key picks the
one that is called so, of another list the index."""

NOISY = 1.10
"""Above this spread (highest over lowest) of Octavo's own runs the machine did other things too."""
NAMES = ("row", "work", "what", "tool", "name", "suite")
CORES = {"25/1": "Zen 3", "25/17": "Zen 4", "26/2": "Zen 5"}
"""family/model of /proc/cpuinfo -> what its maker calls it."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: one figure, or a ratio and its two sides.

    Attributes:
        at: its values; the first is held against the bounds. A run has the figure if it has all of them.
        shown: a template for each column of figures, over the values of `at`; the last is bold below `least`.
        least, most, aim: what the first value should reach, must not pass (a number, or where it stands), and
            would be fine.
        bound: how these are shown. command: what measures it.
        only: runs that count, by what stands in them; a tuple stands for any of its members.
        detail: more on it, in a column of its own. why: what a run without it says.
        spread: how restless the machine was: above NOISY the row is marked, and where a run lacks it, too.
        range: of several runs the first value's lowest and highest stand beside the median, in this form.
    """

    label: str
    benchmark: str
    at: tuple[At, ...]
    shown: tuple[str, ...]
    command: str = ""
    least: float | None = None
    most: float | str | None = None
    aim: float | None = None
    bound: str = "{:g}"
    only: Mapping[str, Any] = field(default_factory=dict)
    detail: At | None = None
    spread: At | None = None
    why: At | None = None
    range: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows beside each other, in one table for each machine.

    Attributes:
        columns: heads of the figures. first: the head of the labels.
        command: measures all rows, which then name none. detail: the head of the rows' details.
        whole: each machine's table names what was not measured there.
    """

    rows: tuple[Row, ...]
    columns: tuple[str, ...] = ("figure",)
    first: str = "what"
    command: str = ""
    detail: str = ""
    whole: bool = False


def value_at(result: Result, at: At) -> Any:
    """What stands there; None if nothing does."""
    if callable(at):
        return at(result)
    found: Any = result
    for key in at.split("/"):
        if isinstance(found, Mapping):
            found = found.get(key)
        elif isinstance(found, list) and key.isdigit():
            found = found[int(key)] if int(key) < len(found) else None
        elif isinstance(found, list):
            named = [each for each in found if key in (each.get(name) for name in NAMES)]
            found = named[0] if named else None
        else:
            return None
    return found


@dataclass(frozen=True)
class Run:
    """One result file."""

    path: Path
    result: Result

    @property
    def benchmark(self) -> str:
        return str(self.result.get("benchmark") or self.path.name.split("-")[0])

    @property
    def commit(self) -> str:
        """At most seven digits, "+" for a changed tree."""
        given = str(self.result.get("commit") or "unknown")
        return given.rstrip("+")[:7] + "+" * given.endswith("+")

    @property
    def told(self) -> bool:
        """Whether nobody has looked the commit up: a GPU machine may have had a copy without history."""
        return bool(self.result.get("commit_told")) or self.result.get("command") == "make gpu-check"

    @property
    def date(self) -> str:
        return str(self.result["date"])

    @cached_property
    def kind(self) -> str:
        """The machine, and the instructions that Octavo used: runs of the same kind are compared."""
        with naming(self.path):
            return self._kind()

    def _kind(self) -> str:
        if gpu := self.result.get("gpu"):
            versions = f"torch {self.result['torch']}, Triton {self.result['triton']}"
            return f"{gpu['name']}, CUDA {gpu['cuda']}, {versions}"
        machine = self.result.get("machine") or {}
        cpu = machine.get("cpu") or "unknown CPU"
        if isinstance(cpu, Mapping):  # as `octavo bench ablate --out` describes it
            machine = {**cpu, "cores": cpu.get("cores")}
            cpu = cpu.get("model")
        family = machine.get("family_model", "")
        named = f" {CORES.get(family, family)}".rstrip()
        isa = self._isa(machine.get("flags", ()))
        return f"{cpu}{named}, {machine.get('cores', '?')} cores, {isa}"

    def _isa(self, flags: Sequence[str]) -> str:
        """As Octavo was told, or said, or by the CPU."""
        told = (value_at(self.result, "settings/options") or {}).get("isa")
        told = told or value_at(self.result, "result/machine/isa")
        notes = [each.get("notes", "") for each in (self.result.get("engines") or {}).values()]
        said = [word[4:] for note in notes for word in note.split() if word.startswith("isa=")]
        best = (
            "avx512vnni" if "avx512_vnni" in flags else "avx2" if "avx2" in flags else "unknown instructions"
        )
        return str(told or (said or [best])[0])

    def values(self, row: Row) -> list[Any] | None:
        """A row's values, None without one of them. A quick run has no figures."""
        with naming(self.path):
            return self._values(row)

    def _values(self, row: Row) -> list[Any] | None:
        if self.benchmark != row.benchmark or value_at(self.result, "settings/quick"):
            return None
        for at, allowed in row.only.items():
            if value_at(self.result, at) not in (allowed if isinstance(allowed, tuple) else (allowed,)):
                return None
        found = [value_at(self.result, at) for at in row.at]
        return None if any(each is None for each in found) else found

    def noisy(self, row: Row) -> bool | None:
        """Whether the machine did other things while this was measured; None: the run does not say."""
        marked = self.result.get("noisy")
        if isinstance(marked, bool):
            return marked
        if row.spread is None:
            return False
        spread = value_at(self.result, row.spread)
        return None if spread is None else float(spread) > NOISY


def read(folder: Path) -> list[Run]:
    """All result files, oldest first.

    Raises:
        ResultError: one of them is no result.
    """
    runs = [Run(path, load(path)) for path in sorted(folder.glob("*.json"))]
    return sorted(runs, key=lambda run: (run.date, run.path.name))


def chosen(row: Row, runs: Iterable[Run], kind: str) -> list[Run]:
    """All runs of the newest commit that has the figure on this kind of machine.

    The newest is the one whose first run is the latest: measuring an old commit again does not make it new.
    """
    having = [run for run in runs if run.kind == kind and run.values(row) is not None]
    first: dict[str, str] = {}
    for run in having:
        first.setdefault(run.commit, run.date)
    newest = max(first, key=lambda commit: first[commit], default="")
    return [run for run in having if run.commit == newest]


def medians(row: Row, runs: Sequence[Run]) -> list[Any]:
    """Of each value over the runs; of words, those that differ; no words say nothing."""
    columns = zip(*(run.values(row) or [] for run in runs), strict=True)
    return [_middle(list(column)) for column in columns]


@dataclass(frozen=True, slots=True)
class Span:
    """The lowest and the highest of some repetitions; shown as the one over the other."""

    low: float
    high: float

    @staticmethod
    def of(rates: Sequence[float]) -> Span:
        return Span(min(rates), max(rates))

    @staticmethod
    def around(middle: float, spread: float) -> Span:
        """Where only the median and the spread are known: as far up as down."""
        return Span(middle / spread**0.5, middle * spread**0.5)

    def __or__(self, other: Span) -> Span:
        return Span(min(self.low, other.low), max(self.high, other.high))

    def __format__(self, spec: str) -> str:
        return format(self.high / self.low, spec)


def _middle(values: list[Any]) -> Any:
    if all(isinstance(value, Span) for value in values):
        return reduce(operator.or_, values)  # of all repetitions of all runs
    if all(isinstance(value, (int, float)) for value in values):
        return values[0] if len(values) == 1 else statistics.median(values)
    return " / ".join(dict.fromkeys(filter(None, map(str, values))))


class Format(string.Formatter):
    """Templates: "%" stands apart from its number, "rate" has three digits at least, "MB" and "GB": bytes."""

    def format_field(self, value: Any, spec: str) -> str:
        if isinstance(value, str):
            return value
        if spec.endswith("%"):
            return f"{format(100 * value, f'{spec[:-1]}f')} %"
        if spec == "rate":
            return format(value, ",.0f" if value >= 100 else ".1f")
        if spec == "MB":
            return f"{value / 1e6:.1f} MB"
        if spec == "GB":
            return f"{value / 1e9:.1f} GB"
        return format(value, spec)


def shown(template: str, values: Sequence[Any]) -> str:
    return Format().format(template, *values)


class History:
    """Which commits the checkout's history has.

    Attributes:
        complete: False where there is no git, no checkout, or only a shallow one: then nothing is known.
    """

    def __init__(self, root: Path) -> None:
        self._git, self._known = ["git", "-C", str(root)], dict[str, bool]()
        self.complete = (root / ".git").exists() and self._says(
            "rev-parse", "--is-shallow-repository"
        ) == "false"

    def _says(self, *words: str) -> str | None:
        try:
            done = subprocess.run([*self._git, *words], capture_output=True, text=True, check=False)
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    def lacks(self, commit: str) -> bool:
        """Whether HEAD does not descend from it; False where nothing is known."""
        if not self.complete or commit == "unknown":
            return False
        name = commit.rstrip("+")
        if name not in self._known:
            self._known[name] = self._says("merge-base", "--is-ancestor", name, "HEAD") is not None
        return not self._known[name]
