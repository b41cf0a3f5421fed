"""Where a decoding step's time goes: native kernels, drawing tokens, and everything else.

    .venv/bin/python benchmarks/host_time.py [--sampling '{"temperature": 0.8}'] [--json] [--write]

Kernel time is what the program's replay takes, drawing what the native sampler takes: neither holds
the interpreter. Both are measured inside the one call that a step of decoding is (csrc/decode.h), and
around their own calls elsewhere. The host's share is all the rest of a step: scheduling, gathering the
batch, handing out the tokens; of a step that verifies drafts also proposing them and choosing how many. Of a
lone stream workers compute meanwhile (decision 45), so that a step loses less than this share. Verifying
steps are taken from answers of one stream that copy what they were asked (--verify METHODS; "": none).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from asked import at_least_one, checked, json_object, several, tells, with_own
from harness import report, usable_cores, write

from octavo.bench.driver import Driver
from octavo.bench.speculate import EXAMPLES, Answering, Verified
from octavo.bench.workload import random_prompts, spread
from octavo.errors import OctavoError
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.cpu_program import CpuDecoder, CpuProgram
from octavo.kernels.ops import F32, RowDecoder
from octavo.params import SamplingParams

LIMIT, VERIFY_LIMIT = 0.05, 0.06
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
        self.verified: list[tuple[float, float]] = []  # (forward, drawing) of each step with drafts

    def step(self, rows: Sequence[int], starts: Sequence[int], *others: Any) -> list[int]:
        drawn = self._decoder.step(rows, starts, *others)
        native = self._decoder.native
        self.log.append((time.perf_counter(), native.forward_s, native.drawing_s))
        return drawn

    def verify(self, rows: Sequence[int], starts: Sequence[int], drafts: Any) -> list[list[int]]:
        drawn = self._decoder.verify(rows, starts, drafts)
        native = self._decoder.native
        _, forward, drawing = self.log[-1]
        self.verified.append((native.forward_s - forward, native.drawing_s - drawing))
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

        def watched_decoder(backend: CpuBackend, program: Any, timed: Any, *args: Any, **more: Any) -> Any:
            made = decoder(backend, program, timed.native, *args, **more)
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
    columns = list(zip(*runs[1:], strict=True))
    step, kernel, draw = (statistics.median(column) for column in columns)
    return {
        "step_ms": round(step, 4),
        "step_spread": round(spread(columns[0]), 3),
        "kernel_ms": round(kernel, 4),
        "drawing_ms": round(draw, 4),
        "drawing_share": round(draw / step, 4),
        "host_share": round(1 - (kernel + draw) / step, 4),
    }


def sampling(text: str) -> dict[str, Any]:
    """A type of argparse: fields of SamplingParams, but for those that the script gives."""
    found = json_object(text)
    try:
        SamplingParams(**found)
    except (TypeError, OctavoError) as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("SamplingParams.__init__() ")) from None
    if own := sorted(found.keys() & {"max_tokens", "ignore_eos", "detokenize"}):
        raise argparse.ArgumentTypeError(f"the script gives {', '.join(own)} itself")
    return found


def measure(options: argparse.Namespace, streams: int) -> dict[str, float]:
    """Milliseconds of a step while all streams decode: medians over the repetitions."""
    rows = []
    watch = Watch()
    with watch.patched():
        driver = Driver(
            options.model,
            **with_own(
                options.options, threads=options.threads, max_num_seqs=streams, enable_prefix_caching=False
            ),
        )
        for repetition in range(options.repeat + 1):
            prompts = random_prompts(streams, PROMPT, driver.vocab_size, repetition)
            run = driver.run(prompts, options.new_tokens, **options.sampling)
            began = time.perf_counter() - run.decode_s
            rows.append(per_step((run.decode_s, *watch.since(began)), len(run.decode)))
    return breakdown(rows)


def of_verifying(steps: Sequence[Verified], native: Sequence[tuple[float, float]]) -> dict[str, float]:
    """breakdown() of the steps that verified drafts: medians over these.

    Args:
        native: (seconds in kernels, drawing) of each of them.

    Raises:
        RuntimeError: their numbers differ, so that it is not known which step is whose.
    """
    verifying = [step for step in steps if step.drafted]
    if not verifying or len(verifying) != len(native):
        raise RuntimeError(f"{len(verifying)} steps verified drafts, {len(native)} of them natively")
    found = [per_step((step.seconds, *spent), 1) for step, spent in zip(verifying, native, strict=True)]
    drafted = statistics.mean(step.drafted for step in verifying)
    return {**breakdown([found[0], *found]), "steps": len(found), "drafted": round(drafted, 2)}


def measure_verifying(options: argparse.Namespace, method: str) -> dict[str, float]:
    """Of one stream whose answers copy: an engine with a proposer and a policy, as a user has it."""
    steps: list[Verified] = []
    native: list[tuple[float, float]] = []
    watch = Watch()
    with watch.patched():
        engine = Answering(
            options.model,
            **with_own(
                options.options, threads=options.threads, max_num_seqs=1, enable_prefix_caching=False,
                speculative_config={"method": method},
            ),
        )  # fmt: skip
        prompts = [engine.render_chat([{"role": "user", "content": text}]) for text in EXAMPLES]
        for repetition in range(options.repeat + 1):
            params = SamplingParams(
                **{"temperature": 0.0, "seed": repetition, **options.sampling},
                max_tokens=2 * options.new_tokens, ignore_eos=True, detokenize=False,
            )  # fmt: skip
            for prompt in prompts:
                known = len(watch.decoders[0].verified)
                answers = engine.answer([prompt], params)
                if repetition:  # the first one warms up
                    steps += answers.steps
                    native += watch.decoders[0].verified[known:]
    return of_verifying(steps, native)


@tells(OctavoError)
def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="host_time")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=checked(several(at_least_one)), default="1,32")
    parser.add_argument("--new-tokens", type=at_least_one, default=64)
    parser.add_argument("--repeat", type=at_least_one, default=5)
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
    parser.add_argument("--sampling", type=sampling, default={}, help='{"temperature": 0.8, "top_p": 0.95}')
    parser.add_argument("--verify", default="ngram,suffix", help="proposers, apart by commas")
    parser.add_argument("--options", type=json_object, default={}, help='such as {"isa": "avx2"}')
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/host_time-*.json")
    options = parser.parse_args(arguments)
    found = {streams: measure(options, int(streams)) for streams in options.streams.split(",")}
    verify = {
        method: measure_verifying(options, method) for method in filter(None, options.verify.split(","))
    }
    settings = {name: value for name, value in vars(options).items() if name not in ("json", "write")}
    facts = {"settings": settings, "limit": LIMIT, "verify_limit": VERIFY_LIMIT, "streams": found}
    result = report("host_time", sys.argv, {**facts, "verify": verify})
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        print("\n".join(lines("streams", found) + lines("verify", verify)))
        print(f"host_share should stay below {LIMIT}, of a step that verifies below {VERIFY_LIMIT}")
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 0


def lines(what: str, found: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A table of breakdowns; none where there are none."""
    heads = [f"{what:<8}" + "".join(f"{name:>15}" for name in each) for each in list(found.values())[:1]]
    return [*heads, *(f"{of:<8}" + "".join(f"{v:>15}" for v in each.values()) for of, each in found.items())]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
