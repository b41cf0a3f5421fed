"""Jobs that arrive at an engine of any scheduler, driven step by step: what their callers see."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from octavo.assembly import Loaded
from octavo.config import SchedulerConfig
from octavo.engine.admission import Admission
from octavo.engine.core import EngineCore
from octavo.engine.scheduler import Scheduler
from octavo.errors import OctavoError
from octavo.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Job:
    """One request: it arrives so many seconds after the run's beginning."""

    prompt: Sequence[int]
    new_tokens: int
    arrival_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run's callers saw, by job, in seconds; prompts count from their arrival."""

    seconds: float
    tokens: int
    first: tuple[float, ...]
    gaps: tuple[tuple[float, ...], ...]

    @property
    def rate(self) -> float:
        """Wanted output tokens a second."""
        return self.tokens / self.seconds


def drive(loaded: Loaded, scheduler: Scheduler, jobs: Sequence[Job]) -> Seen:
    """Run jobs on an engine with this scheduler, greedy, end of text ignored, to their end.

    The runner is the same for all schedulers, and so are its pages: one scheduler at a time.

    Raises:
        OctavoError: a request failed.
    """
    core = EngineCore(Admission(scheduler.config), loaded.runner, scheduler=scheduler)
    first, last = [0.0] * len(jobs), [0.0] * len(jobs)
    gaps: list[list[float]] = [[] for _ in jobs]
    queue = sorted(range(len(jobs)), key=lambda number: jobs[number].arrival_s)
    tokens, place = 0, 0
    begin = time.perf_counter()
    while place < len(queue) or core.has_unfinished():
        now = time.perf_counter() - begin
        while place < len(queue) and jobs[queue[place]].arrival_s <= now:
            job = jobs[queue[place]]
            params = SamplingParams(temperature=0.0, max_tokens=job.new_tokens, ignore_eos=True, seed=0)
            core.add_request(str(queue[place]), job.prompt, params)
            place += 1
        if not core.has_unfinished():  # the next job has not arrived
            time.sleep(min(jobs[queue[place]].arrival_s - now, 0.001))
            continue
        updates = core.step()
        now = time.perf_counter() - begin
        for update in updates:
            if update.finish_reason == "error":
                raise OctavoError(f"a request failed: {update.stop_reason}")
            if not update.tokens:
                continue
            number = int(update.request_id)
            tokens += len(update.tokens)
            if last[number]:  # a prompt's time counts from its arrival, and is no gap
                gaps[number].append(now - last[number])
            else:
                first[number] = now - jobs[number].arrival_s
            last[number] = now
    return Seen(max(last), tokens, tuple(first), tuple(map(tuple, gaps)))


def config_of(loaded: Loaded, **changes: object) -> SchedulerConfig:
    """The loaded engine's numbers, some of them changed; the program's limits bound them."""
    config = loaded.config
    sliding = min(config.num_sliding_pages, int(str(changes.get("num_pages", config.num_pages))))
    return replace(config, **{"num_sliding_pages": sliding, **changes})  # type: ignore[arg-type]  # types differ
