"""What `octavo bench latency` and `octavo bench throughput` measure: a model here, without a server.

latency      a batch of prompts, all at once, again and again: how long until all are answered
throughput   many prompts, as many at once as the engine takes: how much is done in a second

Both keep what was measured when they are interrupted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from octavo.bench.driver import Drawn, Driver
from octavo.bench.resident import peak_bytes, reset_peak
from octavo.bench.workload import percentile, random_prompts
from octavo.errors import InvalidRequestError

PERCENTILES = (10, 25, 50, 75, 90, 99)
"""Of latencies, as vLLM prints them."""
INTERRUPTED = "interrupted"
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Batch:
    """What latency measures. warmups: runs before those that count; iterations: those."""

    size: int
    input_len: int
    output_len: int
    warmups: int
    iterations: int


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of a batch, from its prompts to its last token. None: nothing was measured.

    Attributes:
        latencies: of each run. percentiles: of them.
        ttft: the median time to a request's first token; tpot: of a step in which all decode.
        memory: bytes, see peak_memory().
        cut: why there are fewer runs than asked for; None: there are not.
    """

    avg_latency: float | None
    latencies: tuple[float, ...]
    percentiles: Mapping[int, float]
    ttft: float | None
    tpot: float | None
    output_rate: float | None
    memory: int
    cut: str | None


def latency(driver: Driver, batch: Batch, progress: Progress = lambda _done, _all: None) -> Latency:
    """Run the batch, with other random prompts each time.

    Args:
        progress: called with (runs that ended, all), those that warm up too.

    Raises:
        InvalidRequestError: the prompts are too long for the engine, or too many.
    """
    if batch.size > driver.loaded.config.max_num_seqs:
        most = driver.loaded.config.max_num_seqs
        raise InvalidRequestError(f"--batch-size {batch.size} is above the {most} of --max-num-seqs")
    reset_peak()
    runs, cut, total = [], None, batch.warmups + batch.iterations
    try:
        for number in range(total):
            prompts = random_prompts(batch.size, batch.input_len, driver.vocab_size, seed=number)
            run = driver.run(prompts, batch.output_len)
            runs += [run] if number >= batch.warmups else []
            progress(number + 1, total)
    except KeyboardInterrupt:
        cut = INTERRUPTED
    times = tuple(run.prompt_s + run.decode_s for run in runs)
    steps = [step.seconds for run in runs for step in run.decode if step.tokens == batch.size]
    mean = statistics.fmean(times) if times else None
    return Latency(
        avg_latency=mean,
        latencies=times,
        percentiles={p: percentile(times, p / 100) for p in PERCENTILES} if times else {},
        ttft=statistics.median(t for run in runs for t in run.first_token_s) if runs else None,
        tpot=statistics.median(steps) if steps else None,
        output_rate=None if mean is None else batch.size * batch.output_len / mean,
        memory=peak_memory(driver),
        cut=cut,
    )


@dataclass(frozen=True, slots=True)
class Throughput:
    """How much was done. None: nothing was, because it was interrupted too early.

    Attributes:
        requests: that were answered in full, of `asked`.
        prompt_tokens, output_tokens: of these and of those that had begun when it was interrupted.
        over_time: (seconds, tokens of answers so far) after each step.
        memory: bytes, see peak_memory().
    """

    asked: int
    requests: int
    seconds: float
    prompt_tokens: int
    output_tokens: int
    over_time: tuple[tuple[float, int], ...]
    memory: int
    cut: str | None

    @property
    def request_rate(self) -> float | None:
        return self.requests / self.seconds if self.requests else None

    @property
    def output_rate(self) -> float | None:
        return self.output_tokens / self.seconds if self.output_tokens else None

    @property
    def total_rate(self) -> float | None:
        done = self.prompt_tokens + self.output_tokens
        return done / self.seconds if self.output_tokens else None


def throughput(
    driver: Driver,
    prompts: Sequence[Sequence[int]],
    output_lens: Sequence[int],
    progress: Progress = lambda _done, _all: None,
) -> Throughput:
    """Answer all prompts after a short run to warm up; each answer is as long as asked for.

    Args:
        progress: called with (requests answered, all).

    Raises:
        InvalidRequestError: a prompt is wrong or too long; nothing was measured.
    """
    driver.run(random_prompts(1, 8, driver.vocab_size, seed=-1), 2)
    reset_peak()
    count = Count(prompts)
    cut, begin = None, time.perf_counter()

    def watch(drawn: Sequence[Drawn]) -> None:
        if count.add(drawn, time.perf_counter() - begin):
            progress(count.ended, len(prompts))

    try:
        driver.run(prompts, output_lens, watch=watch)
    except KeyboardInterrupt:
        cut = INTERRUPTED
    seconds = count.over_time[-1][0] if count.over_time else 0.0
    return Throughput(
        asked=len(prompts),
        requests=count.ended,
        seconds=seconds,
        prompt_tokens=count.prompt_tokens,
        output_tokens=count.output_tokens,
        over_time=tuple(count.over_time),
        memory=peak_memory(driver),
        cut=cut,
    )


class Count:
    """What has been answered so far."""

    def __init__(self, prompts: Sequence[Sequence[int]]) -> None:
        self._lengths = [len(prompt) for prompt in prompts]
        self._begun: set[int] = set()
        self.ended = self.prompt_tokens = self.output_tokens = 0
        self.over_time: list[tuple[float, int]] = []

    def add(self, drawn: Sequence[Drawn], now: float) -> int:
        """Count a step; returns how many requests ended in it."""
        for each in drawn:
            if each.tokens and each.place not in self._begun:
                self._begun.add(each.place)
                self.prompt_tokens += self._lengths[each.place]
            self.output_tokens += each.tokens
        ended = sum(each.is_last for each in drawn)
        self.ended += ended
        self.over_time.append((now, self.output_tokens))
        return ended


def peak_memory(driver: Driver) -> int:
    """The most bytes since a measurement began: of the device, or where there is none of the process."""
    return int(driver.device_memory.get("peak", 0)) or peak_bytes()
