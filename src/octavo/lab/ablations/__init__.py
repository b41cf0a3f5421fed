"""What each technique is worth here, beside its honest baseline. Each file of this folder is a row, found by
being there (one with a leading underscore is no row).

The two sides take turns, round by round, so that whatever else the machine does falls on both; what is
reported are medians of the rounds.
"""

from __future__ import annotations

import importlib
import pkgutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from octavo.assembly import Loaded, load
from octavo.bench.driver import Driver
from octavo.engine_args import EngineArgs
from octavo.errors import InvalidRequestError, OctavoError, UnsupportedError

ENGINE = {"max_model_len": 4608, "max_num_seqs": 32, "max_num_batched_tokens": 4096, "num_pages": 1536}
"""What the model is loaded with where rows share it: a prompt of 4,000 fits into one step."""
INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Found:
    """What a row measured.

    Attributes:
        unit: of the bars; the first bar is with the technique, the second its baseline.
        more_is_better: of the unit.
        why: one sentence that says where the difference comes from.
        figures: all that was measured, by group and name. ratios: by name.
    """

    unit: str
    bars: tuple[tuple[str, float], ...]
    more_is_better: bool
    why: str
    figures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ratios: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gain(self) -> float:
        """How many times better with the technique than without."""
        (_, with_it), (_, without) = self.bars[:2]
        return with_it / without if self.more_is_better else without / with_it


class Setting:
    """What rows measure on: one model, loaded as they need it.

    Args:
        options: of the engine, as they were typed.
        rounds: repetitions of each side. quick: small sizes, for two minutes in all.
    """

    def __init__(
        self, model: str, options: Mapping[str, Any] | None = None, rounds: int = 3, quick: bool = False
    ) -> None:
        self.model, self.options, self.rounds, self.quick = model, dict(options or {}), rounds, quick

    @cached_property
    def loaded(self) -> Loaded:
        """An engine with ENGINE's numbers, where none were typed."""
        return load(EngineArgs(self.model, **ENGINE | self.options).config)

    def driver(self, **changes: Any) -> Driver:
        """Another engine: what was typed, with these changes."""
        return Driver(self.model, **self.options | {"enable_prefix_caching": False} | changes)

    def size(self, full: int, quick: int) -> int:
        """A number of a row: the second where it has to be quick."""
        return quick if self.quick else full

    def medians(self, sides: Mapping[str, Callable[[int], float]]) -> dict[str, float]:
        """Each side's median over the rounds, in turns; a first round warms up.

        Args:
            sides: figure of a round, by name; each gets the round's number.
        """
        found: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(self.rounds + 1):
            for name, side in sides.items():
                found[name].append(side(number))
        return {name: statistics.median(values[1:]) for name, values in found.items()}

    def need(self, tokens: int) -> None:
        """For a sequence of so many tokens on the shared engine.

        Raises:
            UnsupportedError: the shared engine holds no sequence of so many tokens.
        """
        most = self.loaded.config.max_model_len
        if most < tokens:
            raise UnsupportedError(f"it needs a context of {tokens} tokens, and --max-model-len is {most}")


@dataclass(frozen=True, slots=True)
class Technique:
    """One technique.

    Attributes:
        name: of --only.
        claim: what is said of it, in one sentence. source: who says it.
        needs: raises what is missing for it, before anything is measured.
    """

    name: str
    claim: str
    source: str
    measure: Callable[[Setting], Found]
    needs: Callable[[Setting], None]


@dataclass(frozen=True, slots=True)
class Line:
    """A row, and what came of it: figures, or why there are none."""

    row: Technique
    found: Found | None
    not_measured: str | None = None


def find() -> dict[str, Technique]:
    """Every row by its name, in the order of names."""
    names = (file.name for file in pkgutil.iter_modules(__path__) if file.name[0] != "_")
    rows = [importlib.import_module(f"{__name__}.{name}").TECHNIQUE for name in names]
    return {row.name: row for row in sorted(rows, key=lambda row: row.name)}


def chosen(only: Sequence[str]) -> list[Technique]:
    """The rows of these names; all where there are none.

    Raises:
        InvalidRequestError: there is no such row; the message has those that there are.
    """
    every = find()
    for name in only:
        if name not in every:
            raise InvalidRequestError(f"--only knows {', '.join(every)}, and not {name!r}")
    return [every[name] for name in only] if only else list(every.values())


def missing(rows: Sequence[Technique], setting: Setting) -> dict[str, str]:
    """Why rows cannot be measured on this model and machine, by their names."""
    found = {}
    for row in rows:
        try:
            row.needs(setting)
        except UnsupportedError as error:
            found[row.name] = str(error)
    return found


def ablate(
    rows: Sequence[Technique], setting: Setting, progress: Callable[[str, int, int], None]
) -> list[Line]:
    """Measure rows, one after the other. What needs something that is not here is not measured; nor is what
    is left when Ctrl-C comes.

    Args:
        progress: called with (a row's name, how many were measured, how many will be) before it begins.
    """
    lacks = missing(rows, setting)
    lines, done = [], 0
    interrupted = False
    for row in rows:
        why = INTERRUPTED if interrupted else lacks.get(row.name)
        found = None
        if why is None:
            progress(row.name, done, len(rows) - len(lacks))
            done += 1
            try:
                found = row.measure(setting)
            except OctavoError as error:
                why = str(error)
            except KeyboardInterrupt:
                interrupted, why = True, INTERRUPTED
        lines.append(Line(row, found, why))
    return lines
