"""A model's steps, timed here with a stand-in: its program, shapes and formats, and arbitrary numbers.

Bounds (roofline.py) say what a machine allows, and a small model's steps take up to twice as long: norms,
rotation, drawing and the ends of each product take time too, and products wait for memory and compute in
turns. All of that is in a step of the stand-in, whatever numbers its weights hold, and so is where they lie,
since they are as large as the model's. What the engine does between steps is not (benchmarks/host_time.py).

Decoding is greedy, and as it is after the first texts: a head whose logits have bounds (decision 12) learns
from its first greedy rows what makes them narrow, and costs more meanwhile than ever after. So one runner
times all batches, after steps in which its head has learned. Draws at a temperature compute all logits.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence

from octavo.engine.step_plan import NewRow, RowStep, StepPlan
from octavo.kernels.ops import Backend, Limits
from octavo.models.registry import Model
from octavo.params import SamplingParams
from octavo.runtime.model_runner import ModelRunner
from octavo.runtime.overlap import make_runner
from octavo.runtime.page_moves import PageMoves
from octavo.runtime.states import RequestStates

PAGE = 16
SECONDS = 0.4
"""That each size is repeated for, after once to warm up."""
LEAST, MOST = 3, 32
"""Steps of decoding, and times that a prompt is computed."""
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
LEARNED_ROWS, LEARNING_STEPS = 32, 17
"""Greedy rows that a head with bounds learns from, and steps after them: the first looks at the last of
these, the others compute what follows (csrc/head_bounds.h)."""


class StandIn:
    """Times steps of one model.

    Args:
        model, backend: with numbers of any kind (assembly.planning.stand_in).
        kv_dtype: of its pages, as KVSpec names it.
        seconds: that each size is repeated for.
        learns: its head has bounds to learn (ModelCost.spared_bytes).
    """

    def __init__(
        self, model: Model, backend: Backend, kv_dtype: str, seconds: float = SECONDS, learns: bool = True
    ) -> None:
        self._model, self._backend, self._seconds, self._learns = model, backend, seconds, learns
        self._specs = model.kv_specs(kv_dtype)

    def decode(self, batches: Sequence[int], context: int) -> tuple[tuple[int, float], ...]:
        """(batch, seconds of a step that draws a token for each of so many sequences, the median) of each.

        Args:
            context: tokens that each of them has when the first of these steps has run; up to MOST - 1 more
                when the last has.
        """
        most, each = max(batches), _pages(context + MOST)
        runner = self._runner(most, most, each)
        if self._learns:
            _take(_decoding(runner, most, context, each), -(-LEARNED_ROWS // most))
            _take(_decoding(runner, 1, context, each), LEARNING_STEPS)
        return tuple((batch, self._median(_decoding(runner, batch, context, each))) for batch in batches)

    def _median(self, steps: Iterator[float]) -> float:
        """Of as many as fit into the time, at least LEAST."""
        times: list[float] = []
        end = time.perf_counter() + self._seconds
        next(steps)  # it starts the rows
        for seconds in steps:
            times.append(seconds)
            if len(times) >= LEAST and time.perf_counter() > end:
                break
        return statistics.median(times)

    def prompt(self, length: int, chunk: int) -> float:
        """Seconds of a prompt and its first token, computed chunk tokens at a time; the median."""
        each = _pages(length + 1)
        runner, pages = self._runner(1, min(chunk, length), each), tuple(range(each))
        new = NewRow(0, "prompt", tuple(n % 100 for n in range(length)), length, GREEDY, 0, 0)
        times: list[float] = []
        until = time.perf_counter() + self._seconds
        for number in range(MOST):
            plans = []
            for begin in range(0, length, chunk):
                end = min(begin + chunk, length)
                step = RowStep(0, begin, end - begin, pages[_pages(begin) : _pages(end)], end == length)
                plans.append(StepPlan(number, () if begin else (0,), () if begin else (new,), (step,)))
            times.append(sum(_seconds(runner, plan) for plan in plans))
            if number >= LEAST and time.perf_counter() > until:
                break
        return statistics.median(times[1:])

    def _runner(self, rows: int, tokens: int, pages: int) -> ModelRunner:
        """With pages that were written: the system has one page of zeros for all that were not."""
        kv = self._backend.kv_cache(self._specs, rows * pages, PAGE)
        kv.copy_pages([(0, page) for page in range(1, rows * pages)])
        limits = Limits(tokens, rows, rows, pages)
        states = RequestStates(rows, pages * PAGE, PAGE)
        return make_runner(self._model, self._backend, PageMoves(kv), limits, states)


def _decoding(runner: ModelRunner, batch: int, context: int, each: int) -> Iterator[float]:
    """Seconds of each of up to MOST steps of so many greedy rows, which take the places of earlier ones.

    Args:
        each: pages of a row, enough for context + MOST tokens.
    """
    rows = range(batch)
    pages = {row: tuple(range(row * each, (row + 1) * each)) for row in rows}
    new = tuple(NewRow(row, str(row), (row,) * context, context, GREEDY, row, 0) for row in rows)
    for number in range(MOST):
        start = context - 1 + number
        begin = _pages(start) if number else 0
        steps = tuple(RowStep(row, start, 1, pages[row][begin : _pages(start + 1)], True) for row in rows)
        yield _seconds(runner, StepPlan(number, () if number else tuple(rows), () if number else new, steps))


def _take(steps: Iterator[float], count: int) -> None:
    """Run so many of them."""
    for _ in range(count):
        next(steps)


def _pages(tokens: int) -> int:
    """That so many tokens take."""
    return -(-tokens // PAGE)


def _seconds(runner: ModelRunner, plan: StepPlan) -> float:
    begin = time.perf_counter()
    runner.submit(plan).result()
    return time.perf_counter() - begin


def between(known: Sequence[tuple[int, float]], at: int) -> float:
    """A step's seconds at another batch, on the line between its neighbours, or through the last two.

    Args:
        known: (batch, seconds), ascending; at least one, the first not above `at`.
    """
    if len(known) == 1:
        batch, seconds = known[0]
        return seconds * max(at / batch, 1.0)
    above = next((i for i, (batch, _) in enumerate(known) if batch >= at and i), len(known) - 1)
    (a, first), (b, second) = known[above - 1], known[above]
    return first + (second - first) * (at - a) / (b - a)
