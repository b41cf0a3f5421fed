"""The files that a report is written to. Each file of this folder is a format, found by its suffix.

need() of a format says before anything is measured what would be missing; write() draws.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo.bench.report.chart import Chart
from octavo.bench.report.table import Table
from octavo.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Report:
    """What was measured, for people.

    Attributes:
        facts: what a reader needs in order to judge it: the command, the machine, the date.
        data: all figures, for JSON.
    """

    title: str
    tables: Sequence[Table]
    charts: Sequence[Chart]
    facts: Mapping[str, str]
    data: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Writer:
    """Attributes:
    suffix: of its files, with the dot.
    need: raises what is missing. write: the report's file.
    """

    suffix: str
    need: Callable[[], None]
    write: Callable[[Report, Path], None]


def find() -> dict[str, Writer]:
    """Every format by its suffix."""
    files = [importlib.import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]
    return {file.WRITER.suffix: file.WRITER for file in files}


def check(paths: Sequence[Path]) -> None:
    """What write_all would fail with, before anything is measured.

    Raises:
        InvalidRequestError: a suffix is none that there is, or nothing can be written there.
        UnsupportedError: a library is missing.
    """
    every = find()
    for path in paths:
        if path.suffix not in every:
            raise InvalidRequestError(f"{path}: a report is one of {', '.join(sorted(every))}")
        every[path.suffix].need()
        folder = path.parent
        if not folder.is_dir() or not os.access(folder, os.W_OK) or path.is_dir():
            raise InvalidRequestError(
                f"{path} cannot be written: {folder} is no folder that one may write to"
            )


def write_all(report: Report, paths: Sequence[Path]) -> None:
    """Write the report to each path, in the format of its suffix."""
    every = find()
    for path in paths:
        every[path.suffix].write(report, path)


def as_json(data: Mapping[str, object]) -> str:
    """One object, with nothing that JSON has not.

    Raises:
        ValueError: a figure is infinite or no number.
    """
    return json.dumps(data, indent=2, allow_nan=False)
