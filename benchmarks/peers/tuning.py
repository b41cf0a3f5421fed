"""The settings that suit an engine best, for each figure of a shape: tried in turn, and written down.

Coordinate descent: beginning with an engine's defaults, the file and then each option takes its other values
in turn and keeps the fastest, and the file once more at the end. What is tried is measured alone, so rows
compare the winners anew, not by these figures.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asked import ScriptError
from engines.base import Timing
from harness import Worker

from octavo.bench.workload import COMMON_IDS, random_prompts
from peers.entries import Q4_0, SHIPPED, Entry
from peers.rows import Shape

Settings = Mapping[str, Any]
Trial = Callable[[Entry, Shape], "Timing | None"]

TRIES = 3
"""Runs of a setting after one that warms up; of heavy shapes one, after a short one."""


def choices(entry: Entry, shape: Shape, threads: int) -> dict[str, list[Any]]:
    """option -> its values, the engine's default first, of which some may be faster in this shape."""
    match entry.engine:
        case "llama_cpp":
            found: dict[str, list[Any]] = {"flash_attn": [1, 0], "ubatch": [512, 128, 2048]}
            if "kv_type" in entry.fixed:  # its values are quantized, which it does with flash attention alone
                found["flash_attn"] = [1]
            else:
                found["kv_type"] = ["f16", "bf16"]
            if shape.streams > 1:
                found["kv_unified"] = [False, True]
            if not shape.heavy and threads > 1:
                found["threads"] = [threads, threads - 1]
            return found
        case "ik_llama_cpp":
            return {"repack": [False, True], "flash_attn": [1, 0], "ubatch": [512, 128, 2048]}
        case "transformers":
            return {
                "attention": ["sdpa", "eager"],
                "dtype": ["float32", "bfloat16"],
                "compile": [False, True],
            }
    return {}


def run_alone(entry: Entry, shape: Shape, threads: int) -> Timing | None:
    """One setting in a process of its own, the median of its runs; None: it fails, which is said."""

    def prompts(of: Shape, seed: int) -> list[list[int]]:
        return random_prompts(of.streams, of.prompt, COMMON_IDS, seed=-1 - seed)

    options = dict(entry.options)
    try:
        with Worker(
            entry.engine, str(entry.model), options.pop("threads", threads), entry.python, options
        ) as worker:
            warm = shape.quick() if shape.heavy else shape
            worker.run(prompts(warm, 0), warm.new)
            timings = [
                worker.run(prompts(shape, 1 + i), shape.new) for i in range(1 if shape.heavy else TRIES)
            ]
    except RuntimeError as error:
        print(f"{entry.name} fails at {shape.name}: {error}", file=sys.stderr)
        return None
    return Timing(
        timings[0].prompt_tokens,
        statistics.median(t.prompt_s for t in timings),
        timings[0].decode_tokens,
        statistics.median(t.decode_s for t in timings),
    )


def found_before(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """What an earlier result has found: shape -> group -> figure -> its form and settings.

    Raises:
        ScriptError: it holds none, or cannot be read.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
        tuned: dict[str, dict[str, dict[str, Any]]] = found["tuned"]
        for stored in (
            each for groups in tuned.values() for kinds in groups.values() for each in kinds.values()
        ):
            if stored["form"] not in (SHIPPED, Q4_0) or not isinstance(stored["settings"], dict):
                raise ScriptError(f"{json.dumps(stored)} are no form and settings")
    except OSError as error:
        raise ScriptError(str(error.strerror)) from None
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise ScriptError("it holds no settings that were found") from None
    return tuned


class Tuner:
    """Finds settings, and remembers what it has tried.

    Attributes:
        tried: shape's name -> entry's name -> (prompt, decode) tok/s, or None where it failed.
    """

    def __init__(self, threads: int, run: Callable[[Entry, Shape, int], Timing | None] = run_alone) -> None:
        self._threads, self._run = threads, run
        self.tried: dict[str, dict[str, tuple[float, float] | None]] = {}

    def rate(self, entry: Entry, shape: Shape, figure: str) -> float:
        """Tokens a second; 0 where it fails."""
        known = self.tried.setdefault(shape.name, {})
        if entry.name not in known:
            timing = self._run(entry, shape, self._threads)
            rates = None if timing is None else (round(timing.prompt_rate, 1), round(timing.decode_rate, 1))
            known[entry.name] = rates
            print(f"  tried {entry.name}: {known[entry.name]}", file=sys.stderr)
        found = known[entry.name]
        return 0.0 if found is None else found[("prompt", "decode").index(figure)]

    def best(self, forms: Sequence[Entry], shape: Shape, figure: str) -> Entry:
        """The fastest of one group's entries, of the file too."""
        options = {entry.form: choices(entry, shape, self._threads) for entry in forms}
        defaults = [
            entry.with_settings({name: each[0] for name, each in options[entry.form].items()})
            for entry in forms
        ]
        best = max(defaults, key=lambda entry: self.rate(entry, shape, figure))
        for name, values in options[best.form].items():
            others = [best.with_settings({**best.chosen, name: value}) for value in values]
            best = max(others, key=lambda entry: self.rate(entry, shape, figure))
        # The file was chosen under the defaults: under what has been found another may be the faster one.
        others = [best, *(e.with_settings(best.chosen) for e in forms if e.form != best.form)]
        return max(others, key=lambda entry: self.rate(entry, shape, figure))
