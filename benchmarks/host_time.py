"""Where a decoding step's time goes: native kernels, drawing tokens, and everything else.

    .venv/bin/python benchmarks/host_time.py [--sampling '{"temperature": 0.8}'] [--json] [--write]

Kernel time is what the program's replay takes, drawing what the native sampler takes: neither holds
the interpreter. Both are measured inside the one call that a step of decoding is (csrc/decode.h), and
around their own calls elsewhere. The host's share is all the rest of a step: scheduling, gathering the
batch, handing out the tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from harness import report, usable_cores, write

from octavo.bench.driver import Driver
from octavo.bench.workload import random_prompts
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.cpu_program import CpuDecoder, CpuProgram
from octavo.kernels.ops import F32, RowDecoder

LIMIT = 0.05
PROMPT = 16


class Stopwatch:
    """Logs (end, seconds) of every call of what it times."""

    def __init__(self) -> None:
        self.log: list[tuple[float, float]] = []

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                end = time.perf_counter()
                self.log.append((end, end - start))

        return call

    def since(self, moment: float) -> float:
        """Seconds spent in calls that ended after this moment."""
        return sum(seconds for end, seconds in self.log if end > moment)


class WatchedDecoder:
    """A decoder that logs (end, seconds of all forwards, seconds of all draws) of every step."""

    def __init__(self, decoder: CpuDecoder) -> None:
        self._decoder = decoder
        self.log = [(0.0, 0.0, 0.0)]

    def step(self, rows: Sequence[int], starts: Sequence[int], *others: Any) -> list[int]:
        drawn = self._decoder.step(rows, starts, *others)
        native = self._decoder.native
        self.log.append((time.perf_counter(), native.forward_s, native.drawing_s))
        return drawn

    def verify(self, rows: Sequence[int], starts: Sequence[int], drafts: Any) -> list[list[int]]:
        drawn = self._decoder.verify(rows, starts, drafts)
        native = self._decoder.native
        self.log.append((time.perf_counter(), native.forward_s, native.drawing_s))
        return drawn

    def logits(self) -> F32:
        return self._decoder.logits()

    def redraw(self, indices: Sequence[int], mask: Any) -> list[int]:
        return self._decoder.redraw(indices, mask)

    def since(self, moment: float) -> tuple[float, float]:
        """Seconds spent in (forwards, draws) of steps that ended after this moment."""
        _, *before = [entry for entry in self.log if entry[0] <= moment][-1]
        _, *total = self.log[-1]
        return total[0] - before[0], total[1] - before[1]


WATCHED: type[RowDecoder] = WatchedDecoder
"""It goes where a decoder goes."""


class TimedSampler:
    """A native sampler whose draws are timed."""

    def __init__(self, native: Any, watch: Stopwatch) -> None:
        self.native = native
        self.sample = watch.timed(native.sample)


class Watch:
    """What the engines that are made under it spend in native code.

    Attributes:
        decoders: theirs, in the order in which they were made.
    """

    def __init__(self) -> None:
        self._kernels, self._drawing = Stopwatch(), Stopwatch()
        self.decoders: list[WatchedDecoder] = []

    def since(self, moment: float) -> tuple[float, float]:
        """Seconds in (kernels, drawing)."""
        forwards, draws = zip((0.0, 0.0), *[each.since(moment) for each in self.decoders], strict=True)
        return self._kernels.since(moment) + sum(forwards), self._drawing.since(moment) + sum(draws)

    @contextmanager
    def patched(self) -> Iterator[None]:
        sampler, decoder = CpuBackend.sampler, CpuBackend.decoder

        def timed_sampler(backend: CpuBackend, vocab_size: int) -> Any:
            return TimedSampler(sampler(backend, vocab_size), self._drawing)

        def watched_decoder(backend: CpuBackend, program: Any, timed: Any, *args: Any) -> Any:
            made = decoder(backend, program, timed.native, *args)
            assert isinstance(made, CpuDecoder)
            self.decoders.append(WatchedDecoder(made))
            return self.decoders[-1]

        with (
            mock.patch.object(CpuProgram, "replay", self._kernels.timed(CpuProgram.replay)),
            mock.patch.object(CpuBackend, "sampler", timed_sampler),
            mock.patch.object(CpuBackend, "decoder", watched_decoder),
        ):
            yield


def per_step(spent: Sequence[float], steps: int) -> list[float]:
    """Milliseconds of a step, of seconds of a run."""
    return [1e3 * seconds / steps for seconds in spent]


def breakdown(runs: Sequence[Sequence[float]]) -> dict[str, float]:
    """Medians over the runs of milliseconds of a step (whole, in kernels, drawing), and shares of the whole.

    The first run warms up and is not counted.
    """
    step, kernel, draw = (statistics.median(column) for column in zip(*runs[1:], strict=True))
    return {
        "step_ms": round(step, 4),
        "kernel_ms": round(kernel, 4),
        "drawing_ms": round(draw, 4),
        "drawing_share": round(draw / step, 4),
        "host_share": round(1 - (kernel + draw) / step, 4),
    }


def measure(options: argparse.Namespace, streams: int) -> dict[str, float]:
    """Milliseconds of a step while all streams decode: medians over the repetitions."""
    rows = []
    watch = Watch()
    with watch.patched():
        driver = Driver(
            options.model, threads=options.threads, max_num_seqs=streams, enable_prefix_caching=False,
            **options.options,
        )  # fmt: skip
        for repetition in range(options.repeat + 1):
            prompts = random_prompts(streams, PROMPT, driver.vocab_size, repetition)
            run = driver.run(prompts, options.new_tokens, **options.sampling)
            began = time.perf_counter() - run.decode_s
            rows.append(per_step((run.decode_s, *watch.since(began)), len(run.decode)))
    return breakdown(rows)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="host_time")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", default="1,32")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--sampling", type=json.loads, default={}, help='{"temperature": 0.8, "top_p": 0.95}')
    parser.add_argument("--options", type=json.loads, default={}, help='such as {"isa": "avx2"}')
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/host_time-*.json")
    options = parser.parse_args(arguments)
    found = {streams: measure(options, int(streams)) for streams in options.streams.split(",")}
    settings = {name: value for name, value in vars(options).items() if name not in ("json", "write")}
    result = report("host_time", sys.argv, {"settings": settings, "limit": LIMIT, "streams": found})
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        print("streams " + "".join(f"{name:>24}" for name in found[options.streams.split(",")[0]]))
        for streams, each in found.items():
            print(f"{streams:<8}" + "".join(f"{value:>24}" for value in each.values()))
        print(f"host_share should stay below {LIMIT}")
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
