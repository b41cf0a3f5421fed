"""What one streamed chat request passes: files, levels on the way out, objects. Numbers that may not rise."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import request_path

# Who lowers one lowers it here.
AT_MOST = {"files": 40, "lines": 8_000, "generators": 3, "objects": 5}


@pytest.fixture(scope="module")
def path(smollm2_path: Path) -> dict[str, Any]:
    """Traced in a process of its own: another test's threads would be seen, too."""
    done = subprocess.run(
        [sys.executable, request_path.__file__, "smollm2"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    traced: dict[str, Any] = json.loads(done.stdout)
    return traced


@pytest.mark.parametrize("measure", AT_MOST)
def test_ratchet(path: dict[str, Any], measure: str) -> None:
    found = path[measure]
    number = found if isinstance(found, int) else len(found)
    assert number <= AT_MOST[measure], found


def test_every_room_on_the_path_is_seen(path: dict[str, Any]) -> None:
    """It would be easy to see too little: a thread without a profiler, a request that fails."""
    rooms = {name.split("/")[0] for name in path["files"]}
    assert {"server", "engine", "runtime", "sampling", "kernels", "tokenizer"} <= rooms
    assert {"chunks", "EventStream._stream"} <= set(path["generators"])
    assert {"ChatRequest", "Request", "a row"} <= set(path["objects"])


async def generator() -> AsyncGenerator[int, None]:
    yield 1


async def takes() -> None:
    async for _ in generator():
        pass


async def waits() -> None:
    await asyncio.sleep(0)


def plain() -> int:
    return 1


def test_levels_on_the_way_out() -> None:
    levels = [request_path.is_level(f.__code__) for f in (generator, takes, waits, plain)]
    assert levels == [True, True, False, False]


class SamplingParams:
    """Known by its name."""


@dataclass(slots=True)
class Slotted:
    request_id: str
    params: SamplingParams


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        (["cmpl-7f-0", SamplingParams()], ["X"]),
        (["cmpl-7f-0"], []),
        ([SamplingParams()], []),
        ([[5, 6, 7]], ["X"]),
        ([[5, 6, 7, 8, 9]], ["X"]),
        ([[5, 6, 8]], []),
        ([[{"role": "user", "content": request_path.TEXT}]], ["X"]),
        ([[{"role": "user", "content": "Other."}]], []),
        ([np.array([[0, 0, 0, 0], [5, 6, 7, 0]])], ["a row"]),
        ([np.array([[0, 0, 0, 0], [5, 6, 0, 0]])], []),
        ([None, 3, "other", {}], []),
    ],
)
def test_objects_that_it_lives_as(fields: list[object], found: list[str]) -> None:
    assert list(request_path.objects_of({"X": fields}, "7f", [5, 6, 7])) == found


def test_answers_are_no_requests() -> None:
    assert list(request_path.objects_of({"RequestOutput": [[5, 6, 7]]}, "7f", [5, 6, 7])) == []


def test_fields_of_slots_and_of_dicts() -> None:
    params = SamplingParams()
    assert list(request_path.fields_of(Slotted("a", params))) == ["a", params]
    trace = request_path.Trace()
    trace.see(Slotted("a", params))
    assert trace.held == {}, "only what is of src/octavo"
