"""What `octavo bench sweep` measures: decoding by batch and context, where it bends, where memory ends.

The knee is where a curve bends most: of the points scaled to a unit square, the one farthest above the line
from the first to the last (Satopaa et al. 2011, Kneedle, section 3). Below it a larger batch buys much
throughput for little latency, above it little for much.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.bench.driver import Driver, Run
from octavo.bench.resident import peak_bytes, reset_peak
from octavo.bench.workload import random_prompts, spread
from octavo.errors import InvalidRequestError

BENT = 0.1
"""Distance of a knee from the line, at least: a curve that is nearly straight has none."""
NO_MEMORY, NO_ROWS, INTERRUPTED = "memory ends", "max_num_seqs", "interrupted"
NEVER_ALL = "the first ended before the last began"


@dataclass(frozen=True, slots=True)
class Cell:
    """One batch at one context. Times in ms, rates in tokens a second; None: not measured, and why.

    Attributes:
        tpot: of a step in which all decode, the median. spread: of the runs, slowest over fastest.
        ttft: the median over requests; prompts of a batch are computed together, so it grows with the batch.
    """

    batch: int
    context: int
    tpot: float | None
    rate: float | None
    ttft: float | None
    spread: float | None
    not_measured: str | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """All batches at one context.

    Attributes:
        knee: the batch where throughput over latency bends; None: it does not, or too little was measured.
        memory_ends: the most sequences of this context, with their answers, that the KV pages hold.
    """

    context: int
    cells: tuple[Cell, ...]
    knee: int | None
    memory_ends: int


@dataclass(frozen=True, slots=True)
class Grid:
    """What was swept. memory: bytes at the peak. cut: why there is less than was asked for."""

    new_tokens: int
    curves: tuple[Curve, ...]
    memory: int
    cut: str | None


def knee(points: Sequence[tuple[float, float]]) -> int | None:
    """Which point is the knee of a curve that rises and flattens.

    Args:
        points: (latency, throughput) in the order of growing load.
    """
    if len(points) < 3:
        return None
    (x0, y0), x1 = points[0], max(x for x, _ in points)
    top = max(y for _, y in points)
    if x1 <= x0 or top <= y0:
        return None
    above = [(y - y0) / (top - y0) - (x - x0) / (x1 - x0) for x, y in points]
    best = max(range(len(points)), key=above.__getitem__)
    return best if above[best] >= BENT else None


def sweep_grid(
    driver: Driver,
    batches: Sequence[int],
    contexts: Sequence[int],
    new_tokens: int,
    runs: int,
    begins: Callable[[int, int], None] = lambda batch, context: None,
) -> Grid:
    """Measure every batch at every context that memory holds, smallest first; Ctrl-C keeps what is done.

    Args:
        new_tokens: of each answer, at least 2. runs: of each cell, after one that warms up.
        begins: called with (batch, context) before a cell is run.

    Raises:
        InvalidRequestError: a context is longer than the engine's.
    """
    config = driver.loaded.config
    for context in contexts:
        if context + new_tokens > config.max_model_len:
            raise InvalidRequestError(
                f"a context of {context} and {new_tokens} new tokens are more than the "
                f"{config.max_model_len} of --max-model-len"
            )
    reset_peak()
    held = {context: _held(config.num_pages, config.page_size, context + new_tokens) for context in contexts}
    cells: dict[int, list[Cell]] = {context: [] for context in contexts}
    cut = None
    for context in contexts:
        for batch in sorted(batches):
            why = INTERRUPTED if cut else _lacks(batch, held[context], config.max_num_seqs)
            if why is None:
                begins(batch, context)
                try:
                    cells[context].append(_cell(driver, batch, context, new_tokens, runs))
                    continue
                except KeyboardInterrupt:
                    cut = why = INTERRUPTED
            cells[context].append(Cell(batch, context, None, None, None, None, why))
    curves = tuple(curve(context, cells[context], held[context]) for context in contexts)
    return Grid(new_tokens, curves, int(driver.device_memory.get("peak", 0)) or peak_bytes(), cut)


def curve(context: int, cells: Sequence[Cell], memory_ends: int) -> Curve:
    """The cells of one context, with their knee."""
    done = [(cell.tpot, cell.rate, cell.batch) for cell in cells if cell.tpot and cell.rate]
    place = knee([(tpot, rate) for tpot, rate, _ in done])
    return Curve(context, tuple(cells), None if place is None else done[place][2], memory_ends)


def _held(num_pages: int, page_size: int, tokens: int) -> int:
    """Sequences of so many tokens that the pages hold; each has its own last page."""
    return num_pages // -(-tokens // page_size)


def _lacks(batch: int, held: int, rows: int) -> str | None:
    if batch > held:
        return NO_MEMORY
    return NO_ROWS if batch > rows else None


def _cell(driver: Driver, batch: int, context: int, new_tokens: int, runs: int) -> Cell:
    def run(seed: int, length: int) -> Run:
        return driver.run(random_prompts(batch, context, driver.vocab_size, seed), length)

    # Whoever has its first token early draws on while the others' prompts are computed, so all get as many
    # tokens more as that took steps in a first run, which warms up.
    length = min(new_tokens + len(run(0, new_tokens).prompt), _tokens_left(driver, batch, context))
    every = [run(seed, max(length, new_tokens)) for seed in range(1, runs + 1)]
    # A request that got its first token early also ends early: only full steps say what a batch costs.
    full = [[step.seconds for step in each.decode if step.tokens == batch] for each in every]
    medians = [statistics.median(steps) for steps in full if steps]
    ttft = 1e3 * statistics.median(t for each in every for t in each.first_token_s)
    if not medians:
        return Cell(batch, context, None, None, ttft, None, NEVER_ALL)
    tpot = statistics.median(medians)
    return Cell(batch, context, 1e3 * tpot, batch / tpot, ttft, spread(medians))


def _tokens_left(driver: Driver, batch: int, context: int) -> int:
    """New tokens that each of a batch may have, by the engine's longest sequence and by its pages."""
    config = driver.loaded.config
    pages = config.num_pages // batch * config.page_size
    return min(config.max_model_len, pages) - context
