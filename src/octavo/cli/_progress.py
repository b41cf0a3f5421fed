"""Bars and lines while something takes long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

BytesProgress = Callable[[int, int], None]
MB = 1_000_000
TOLD_EACH_S = 15.0
"""Seconds between two lines that count, so that what is quick says nothing."""


@contextmanager
def byte_progress(label: str, quiet: bool = False) -> Generator[BytesProgress, None, None]:
    """A callback for (bytes so far, bytes in all): a bar on a terminal, else a line at each tenth.

    Both go to stderr.
    """
    if quiet:
        yield lambda _done, _total: None
    elif sys.stderr.isatty():
        with _bar(label) as callback:
            yield callback
    else:
        yield _lines(label)


@contextmanager
def _bar(label: str) -> Generator[BytesProgress, None, None]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(label, total=None)

        def callback(done: int, total: int) -> None:
            name = label if done < total else f"{label}: checking"
            progress.update(task, completed=done, total=total, description=name)

        yield callback


def _lines(label: str) -> BytesProgress:
    shown = -1

    def callback(done: int, total: int) -> None:
        nonlocal shown
        tenth = 10 * done // max(total, 1)
        if tenth > shown:
            shown = tenth
            last = "" if done < total else ", checking"
            print(f"{label}: {done // MB} of {total // MB} MB{last}", file=sys.stderr, flush=True)

    return callback


def _counts(label: str) -> BytesProgress:
    told = time.monotonic()

    def callback(done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told >= TOLD_EACH_S:
            told = time.monotonic()
            print(f"{label}: {done} of {total}", file=sys.stderr, flush=True)

    return callback


@contextmanager
def saying(what: str, quiet: bool = False, after_s: float = 0.0) -> Generator[None, None, None]:
    """Say on stderr what is being done while it takes long, and how long it took.

    Args:
        after_s: seconds that it may take without a word.
    """
    if quiet:
        yield
        return

    def begin() -> None:
        print(f"{what} ...", file=sys.stderr, flush=True)

    timer, start = threading.Timer(after_s, begin), time.monotonic()
    timer.daemon = True
    if after_s > 0:
        timer.start()
    else:
        begin()
    try:
        yield
    finally:
        timer.cancel()
    seconds = time.monotonic() - start
    if seconds >= after_s:
        print(f"{what}: {seconds:.1f} s", file=sys.stderr, flush=True)


@contextmanager
def count_progress(label: str, quiet: bool = False) -> Generator[BytesProgress, None, None]:
    """The same for (things done, things in all): a bar on a terminal, elsewhere a line now and then."""
    if quiet:
        yield lambda _done, _total: None
        return
    if not sys.stderr.isatty():
        yield _counts(label)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
