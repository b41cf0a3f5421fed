"""What a load asks. Each file of this folder is a data set, and is found by being there.

It says its names, the options that it has of its own (`octavo bench serve` makes flags of them) and how it
makes calls of them.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.bench.serving.exchange import LoadRequest
from octavo.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class DatasetOption:
    """An option of a data set: --name, an int or a float as its default is."""

    name: str
    default: int | float
    help: str


@dataclass(frozen=True, slots=True)
class WantedPrompts:
    """What is asked of a data set.

    Attributes:
        count: calls at most.
        ids: whether the server takes token ids; else prompts are texts.
        options: by their names, as the data set declares them.
    """

    count: int
    path: Path | None
    seed: int
    ids: bool
    options: Mapping[str, Any]

    def file(self) -> Path:
        """
        Raises:
            InvalidRequestError: none was given.
        """
        if self.path is None:
            raise InvalidRequestError("this data set needs --dataset-path")
        return self.path


@dataclass(frozen=True, slots=True)
class DataSet:
    """Attributes:
    names: of --dataset-name; the first is its own.
    about: what it asks, for the help.
    shared: options -> which part of the prompts' tokens others begin with too, at most, by intention.
    """

    names: tuple[str, ...]
    about: str
    options: tuple[DatasetOption, ...]
    calls: Callable[[WantedPrompts], list[LoadRequest]]
    shared: Callable[[Mapping[str, Any]], float] = lambda _options: 0.0


def find() -> list[DataSet]:
    """Every data set there is."""
    files = [importlib.import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]
    return [file.DATA for file in files]


def data_set(name: str) -> DataSet:
    """
    Raises:
        InvalidRequestError: there is none of this name; the message has those that there are.
    """
    every = {each: data for data in find() for each in data.names}
    if name not in every:
        raise InvalidRequestError(f"--dataset-name knows {', '.join(sorted(every))}, and not {name!r}")
    return every[name]


def calls_of(data: DataSet, wanted: WantedPrompts) -> list[LoadRequest]:
    """The calls of a data set, at least one.

    Raises:
        InvalidRequestError: there are none, or the file is wrong; its line is named.
    """
    found = data.calls(wanted)
    if not found:
        raise InvalidRequestError(f"{wanted.path or data.names[0]} holds nothing to ask")
    return found


def json_lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(number, object) of each line that is not empty.

    Raises:
        InvalidRequestError: a line is no JSON object.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InvalidRequestError(f"{path}: line {number} is no JSON: {error}") from None
            if not isinstance(row, dict):
                raise InvalidRequestError(f"{path}: line {number} is no JSON object")
            yield number, row
