"""A case with every kind of fault in it, for the tests of the fuzzer itself."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence

from octavo.errors import CheckpointError
from support.fuzz.target import guarded


class Planted:
    """Numbers: most are refused, some end the process, spin, fill the memory or raise."""

    base_s, byte_s, memory = 0.2, 0.0, 128 << 20
    faults = {7: "crash", 17: "spin", 27: "fill", 37: "raise", 47: "panic", 57: "two lines", 67: "endless"}  # noqa: RUF012

    def __init__(self) -> None:
        self.seeds = [b"0", b"1"]

    def change(self, rng: random.Random, seed: bytes, others: Sequence[bytes]) -> bytes:
        return b"%d" % rng.randrange(70)

    def run(self, data: bytes) -> str:
        return guarded(self._parse, int(data))

    def _parse(self, number: int) -> str:
        match self.faults.get(number):
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "spin":
                sum(range(30_000_000))
            case "endless":
                signal.setitimer(signal.ITIMER_PROF, 0.05)  # in the place of the worker's ten seconds
                sum(range(10**12))
            case "fill":
                bytearray(1 << 30)
            case "raise":
                raise KeyError(number)
            case "panic":
                raise BaseException("rust")
            case "two lines":
                raise CheckpointError("a\nb")
        if number % 2:
            raise CheckpointError(f"{number} is odd")
        return "even"


def contained(data: bytes) -> str:
    """Where it harms nobody."""
    return "killed on trial"
