"""Counting the lines of src/octavo/spec that a call executes: a cost that no busy machine changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import octavo.spec

SPEC = str(Path(octavo.spec.__file__).parent)


def lines_of(call: Callable[[], object]) -> int:
    """How many lines of the proposers run, each as often as it runs."""
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
