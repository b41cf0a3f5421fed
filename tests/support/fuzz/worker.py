"""A process that runs inputs of one target, under limits.

    python -m support.fuzz.worker SLOT        tasks come as lines of JSON, results go as lines of JSON

The input that is running stands in the file SLOT, so whoever finds this process dead knows of what.
"""

from __future__ import annotations

import base64
import json
import mmap
import os
import random
import resource
import signal
import struct
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, TextIO

from support.fuzz.registry import named
from support.fuzz.target import Case, Wrong

SLOT_BYTES = 1 << 20
HEAD = struct.Struct("<qq")  # number of the input, its bytes
HARD_S = 10.0
"""Of a processor: the system ends what takes so much longer than it may."""
SAY_S = 0.5
NEW_BYTES = 4 << 10
"""Larger inputs are not kept."""
LARGE_BYTES = 64 << 10


class Slot:
    """The file that holds the running input."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SLOT_BYTES)

    def put(self, number: int, data: bytes) -> None:
        kept = data[: SLOT_BYTES - HEAD.size]
        self._map[: HEAD.size + len(kept)] = HEAD.pack(number, len(kept)) + kept

    @staticmethod
    def read(path: Path) -> tuple[int, bytes]:
        """(number, input) of what ran last; -1: nothing did."""
        data = path.read_bytes()
        number, size = HEAD.unpack_from(data)
        return number, data[HEAD.size : HEAD.size + size]


class Runner:
    """Runs inputs of a case, and keeps the books."""

    def __init__(self, case: Case, slot: Slot, out: TextIO, known: set[str]) -> None:
        self._case, self._slot, self._out, self._known = case, slot, out, known
        self._said = time.monotonic()
        self._rss = rss()
        self._begin()

    def _begin(self) -> None:
        self._outcomes: Counter[str] = Counter()
        self._new: list[tuple[str, str]] = []
        self._faults: list[dict[str, Any]] = []
        self._slowest = 0.0

    def run(self, number: int, data: bytes) -> None:
        """One input."""
        self._slot.put(number, data)
        allowed = self._case.base_s + self._case.byte_s * len(data)
        signal.setitimer(signal.ITIMER_PROF, allowed + HARD_S)
        outcome, fault, took = self._once(data)
        for _ in range(2):  # a machine's own pauses do not come twice
            if took > allowed and fault is None:
                _, _, again = self._once(data)
                took = min(took, again)
        signal.setitimer(signal.ITIMER_PROF, 0)
        self._slowest = max(self._slowest, took)
        if fault is None and took > allowed:
            fault = ("slow", f"{took:.2f} s of {allowed:.2f}: {outcome}")
        if fault is not None:
            kept = base64.b64encode(data[:LARGE_BYTES]).decode()
            self._faults.append({"number": number, "kind": fault[0], "what": fault[1], "data": kept})
            return
        self._outcomes[outcome] += 1
        if outcome not in self._known:
            self._known.add(outcome)
            if len(data) <= NEW_BYTES:
                self._new.append((outcome, base64.b64encode(data).decode()))

    def _once(self, data: bytes) -> tuple[str, tuple[str, str] | None, float]:
        """(outcome, (kind, what) of a fault, seconds of a processor)"""
        fault, outcome = None, ""
        begin = time.process_time()
        try:
            outcome = self._case.run(data)
        except (KeyboardInterrupt, SystemExit):
            raise
        except Wrong as error:
            fault = ("wrong", str(error))
        except MemoryError as error:
            fault = ("memory", where(error))
        except BaseException as error:  # panics of native code are no Exceptions
            fault = ("raised", where(error))
        return outcome, fault, time.process_time() - begin

    def say(self, number: int, end: bool = False) -> None:
        """What has come of the inputs before this number, from time to time."""
        if not end and time.monotonic() - self._said < SAY_S and not self._faults:
            return
        self._said = time.monotonic()
        line = {
            "upto": number, "outcomes": self._outcomes, "new": self._new, "faults": self._faults,
            "slowest_s": round(self._slowest, 4), "grown_mb": round((rss() - self._rss) / 2**20, 1),
            "end": end,
        }  # fmt: skip
        print(json.dumps(line), file=self._out, flush=True)
        self._begin()


def where(error: BaseException) -> str:
    """What was raised, and the last place of the package that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    inner = [frame for frame in frames if "octavo" in frame.filename and "support" not in frame.filename]
    last = (inner or frames)[-1]
    said = " ".join(str(error).split())[:200]
    return f"{type(error).__name__} in {Path(last.filename).name}:{last.name}: {said}"


def rss() -> int:
    """Bytes that are resident."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def limit(memory: int) -> None:
    """From here on, so much more address space, no cores."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + memory, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def made_input(case: Case, task: dict[str, Any], corpus: list[bytes], number: int) -> bytes:
    """The input of a number: the same for the same task."""
    rng = random.Random(f"{task['seed']}/{task['name']}/{number}")
    pool = [*case.seeds, *corpus]
    return case.change(rng, rng.choice(pool), [rng.choice(pool), rng.choice(pool)])


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what parsers print is not ours
    slot = Slot(Path(sys.argv[1]))
    task = json.loads(sys.stdin.readline())
    if data := task.get("contained"):
        print(json.dumps({"outcome": named(task["function"])(base64.b64decode(data))}), file=out, flush=True)
        return
    case: Case = named(task["case"])()
    for seed in case.seeds:  # imports and caches are nobody's time
        case.run(seed)
    limit(case.memory)
    corpus = [base64.b64decode(each) for each in task["corpus"]]
    runner = Runner(case, slot, out, set(task["known"]))
    given = [base64.b64decode(each) for each in task.get("inputs", ())]
    first, count = task["first"], len(given) or task["count"]
    for number in range(first, first + count):
        runner.run(number, given[number - first] if given else made_input(case, task, corpus, number))
        runner.say(number + 1)
    runner.say(first + count, end=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # threads of parsers are not waited for
