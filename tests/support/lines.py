"""Counting the lines or calls that a piece of work executes: a cost that no busy machine changes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import octavo.spec

OCTAVO = str(Path(octavo.__file__).parent)
SPEC = str(Path(octavo.spec.__file__).parent)


def lines_of(call: Callable[[], object]) -> int:
    """How many lines of src/octavo/spec run, each as often as it runs."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(SPEC):
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def calls_of(call: Callable[[], object], built_in: bool = False) -> int:
    """How many functions of src/octavo are entered, and with `built_in` how many built in ones they call.

    The garbage collector rests meanwhile: what it runs when it happens to (finalizers, Hypothesis's own
    callback) is no cost of this call.
    """
    count = 0
    counted = ("call", "c_call") if built_in else ("call",)

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in counted and frame.f_code.co_filename.startswith(OCTAVO)

    before, collecting = sys.getprofile(), gc.isenabled()
    gc.disable()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
        if collecting:
            gc.enable()
    return count
