"""What `octavo bench` prints: prefill and decode apart, by batch size."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.bench.driver import Driver, Run
from octavo.bench.resident import peak_bytes
from octavo.bench.workload import random_prompts


@dataclass(frozen=True, slots=True)
class BatchLine:
    """Figures at one batch size: medians over the runs; times in ms, rates in tokens a second.

    Attributes:
        prefill_ms: until all of the batch have their first token.
        prompt_rate: prompt tokens; decode_rate: new tokens while all decode.
        ttft: a request's time to its first token; tpot: a step's time while all decode. None, as decode_rate
            is: in no step did all decode, because the first had ended when the last began.
        latency: of the whole batch.
    """

    batch: int
    prefill_ms: float
    prompt_rate: float
    decode_rate: float | None
    ttft: float
    tpot: float | None
    latency: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """All batch sizes, and what is the same for all. GB are 10^9 bytes."""

    load_s: float
    weights_gb: float
    memory_gb: float
    prompt_tokens: int
    max_tokens: int
    batches: tuple[BatchLine, ...]


def sweep(
    driver: Driver,
    prompt_tokens: int,
    max_tokens: int,
    batch_sizes: Sequence[int],
    num_runs: int,
    begins: Callable[[int], None] = lambda batch: None,
) -> Sweep:
    """Run every batch size num_runs times after one run to warm up, prompts never the same.

    Args:
        begins: told of each batch size before it is run.

    Raises:
        InvalidRequestError: the prompts are too long for the engine.
    """
    lines = []
    for batch in batch_sizes:
        begins(batch)
        runs = [
            driver.run(random_prompts(batch, prompt_tokens, driver.vocab_size, seed), max_tokens)
            for seed in range(num_runs + 1)
        ]
        lines.append(_line(batch, runs[1:]))
    loaded = driver.loaded
    return Sweep(
        load_s=sum(loaded.phases.values()),
        weights_gb=loaded.memory.weights / 1e9,
        memory_gb=peak_bytes() / 1e9,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        batches=tuple(lines),
    )


def _line(batch: int, runs: Sequence[Run]) -> BatchLine:
    # A request that got its first token early also ends early: only full steps say what a batch costs.
    full = [step.seconds for run in runs for step in run.decode if step.tokens == batch]
    tpot = statistics.median(full) if full else None
    return BatchLine(
        batch=batch,
        prefill_ms=1e3 * statistics.median(run.prompt_s for run in runs),
        prompt_rate=statistics.median(run.prompt_rate for run in runs),
        decode_rate=None if tpot is None else batch / tpot,
        ttft=1e3 * statistics.median(t for run in runs for t in run.first_token_s),
        tpot=None if tpot is None else 1e3 * tpot,
        latency=1e3 * statistics.median(run.prompt_s + run.decode_s for run in runs),
    )
