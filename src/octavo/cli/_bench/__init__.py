"""The commands of `octavo bench`, a file each: NAME, what it is called, and COMMAND, what typer calls."""

from __future__ import annotations

import asyncio
import datetime
import importlib
import json
import pkgutil
import shutil
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from octavo.cli._flags import EngineChoice
from octavo.cli._progress import saying
from octavo.config.user import MAX_NUM_SEQS
from octavo.errors import InvalidRequestError

if TYPE_CHECKING:
    from octavo.bench.driver import Driver
    from octavo.bench.report.chart import Chart
    from octavo.bench.report.table import Table
    from octavo.bench.serving.datasets import DataSet, DatasetOption, WantedPrompts

T = TypeVar("T")
INTERRUPTED = 130


def find() -> dict[str, Callable[..., int]]:
    """Every command of this folder by its name."""
    files = [importlib.import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]
    return {file.NAME: file.COMMAND for file in files}


@dataclass(frozen=True, slots=True)
class Output:
    """Where a command's figures go, as its options declare it."""

    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
    plot: Annotated[
        list[Path] | None,
        typer.Option(
            "--plot",
            help="Draw it to a file: .svg, .png (needs matplotlib), .html (one page, all in it) or .json. "
            "May be given several times.",
            show_default=False,
        ),
    ] = None

    def check(self) -> None:
        """
        Raises:
            OctavoError: one of the files could not be written.
        """
        from octavo.bench.report.writers import check

        check(self.plot or [])

    def show(
        self, title: str, tables: Sequence[Table], charts: Sequence[Chart], data: Mapping[str, Any]
    ) -> None:
        """Print what was measured, and write what --plot asks for; printing comes first."""
        from octavo.bench.report.writers import Report, write_all

        if self.as_json:
            print(json.dumps(data))
        else:
            print("\n\n".join(table.text(columns()) for table in tables), flush=True)
        if self.plot:
            write_all(Report(title, tables, charts, facts(), data), self.plot)
            if not self.as_json:
                print(f"written: {', '.join(map(str, self.plot))}", file=sys.stderr)


def columns() -> int | None:
    """Of the terminal; None: what is printed goes to no terminal, and has room."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def facts() -> dict[str, str]:
    """What a reader needs in order to judge figures."""
    from octavo.cli.env import collect

    found = collect()
    return {
        "command": " ".join(["octavo", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "octavo": str(found["octavo"]),
        "platform": str(found["platform"]),
        "cpu": str(found["cpu"].get("model", "")),
    }


def machine() -> dict[str, Any]:
    """What the figures belong to, as result files have it."""
    from octavo.cli.env import collect

    found = collect()
    return {name: found[name] for name in ("octavo", "platform", "cpu")}


def until_interrupted(work: Callable[[asyncio.Event], Coroutine[Any, Any, T]]) -> T:
    """Run work(stop). Ctrl-C sets stop, so that it ends with what it has; a second one is raised."""

    async def main() -> T:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def interrupted() -> None:
            stop.set()
            loop.remove_signal_handler(signal.SIGINT)

        try:
            loop.add_signal_handler(signal.SIGINT, interrupted)
        except (NotImplementedError, RuntimeError, ValueError):  # no such system, or no main thread
            return await work(stop)
        try:
            return await work(stop)
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    return asyncio.run(main())


def dataset_options() -> list[DatasetOption]:
    """What all data sets have of their own."""
    from octavo.bench.serving.datasets import find as data_sets

    return [option for data in data_sets() for option in data.options]


def wanted_of(
    data: DataSet,
    given: Mapping[str, Any],
    count: int,
    path: Path | None,
    *,
    ids: bool = True,
    seed: int = 0,
) -> WantedPrompts:
    """What a data set is asked for, with the options that were typed.

    Raises:
        InvalidRequestError: one is another data set's, or is negative or no number.
    """
    from octavo.bench.serving.datasets import WantedPrompts

    own = {option.name: given.get(option.name, option.default) for option in data.options}
    foreign = sorted(set(given) - set(own))
    if foreign:
        flag = f"--{foreign[0].replace('_', '-')}"
        raise InvalidRequestError(f"{flag} is for another data set than {data.names[0]}")
    for name, value in own.items():
        if not 0 <= value < float("inf"):
            raise InvalidRequestError(f"--{name.replace('_', '-')} is a number and not negative, not {value}")
    return WantedPrompts(count, path, seed, ids, own)


def driver_of(engine: EngineChoice, max_batch: int | None, quiet: bool) -> Driver:
    """The engine to measure: no request may find another's prefix.

    Args:
        max_batch: sequences at once, where no flag says how many; None: as many as by default.
    """
    from octavo.bench.driver import Driver
    from octavo.cli._load import fetch

    fetch(engine.model, quiet)
    most = {} if max_batch is None else {"max_num_seqs": max_batch}
    with saying(f"loading {engine.model}", quiet, after_s=3.0):
        return Driver(engine.model, **most | dict(engine.options) | {"enable_prefix_caching": False})


def milliseconds(seconds: float | None) -> float | None:
    """Nothing stays nothing."""
    return None if seconds is None else 1e3 * seconds


def batches(text: str, flag: str = "--batch-sizes") -> list[int]:
    """Numbers of sequences at once.

    Raises:
        InvalidRequestError: one is none, or more than an engine computes at once.
    """
    found = numbers(text, flag)
    if max(found) > MAX_NUM_SEQS:
        raise InvalidRequestError(f"{flag} takes at most {MAX_NUM_SEQS} sequences, not {max(found)}")
    return found


def numbers(text: str, flag: str) -> list[int]:
    """1,8,32 as numbers.

    Raises:
        InvalidRequestError: one is no number above 0.
    """
    try:
        values = [int(word) for word in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < 1:
        raise InvalidRequestError(f"{flag} takes positive numbers with commas between, not {text!r}")
    return values
