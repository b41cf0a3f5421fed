"""How much of the KV memory that requests hold carries no token: pages beside contiguous slabs.

Simulated: the scheduler and the pages are real, no model runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.bench.trace import TraceRequest
from octavo.config import SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.engine.cost import CostModel
from octavo.engine.scheduler import Scheduler
from octavo.lab.baselines import ContiguousKV
from octavo.lab.simulate import Simulated, Simulation

COST = CostModel(step_s=3e-3, token_s=5e-4, pair_s=2e-8, sample_s=1e-4)
"""A 135M model on two cores, about. Only the mix of requests that run together depends on it."""


@dataclass(frozen=True, slots=True)
class Waste:
    """Of one kind of allocation, over the time of a trace.

    Attributes:
        waste: 1 - slots with a token / slots held, weighted by time.
        running: mean number of requests that ran together; output_rate: tokens a second.
    """

    name: str
    waste: float
    running: float
    output_rate: float


class _Meter:
    """Slots held and filled, after each step."""

    def __init__(self, page_size: int, slab_pages: int | None) -> None:
        self._page_size, self._slab_pages = page_size, slab_pages
        self.held = self.filled = self.rows = self.seconds = 0.0

    def __call__(self, core: EngineCore, seconds: float) -> None:
        running = core.scheduler.running
        pages = (
            sum(len(request.kv.page_table) for request in running)
            if self._slab_pages is None
            else len(running) * self._slab_pages
        )
        self.held += seconds * pages * self._page_size
        self.filled += seconds * sum(request.kv.num_computed_tokens for request in running)
        self.rows += seconds * len(running)
        self.seconds += seconds


def fragmentation(config: SchedulerConfig, trace: Sequence[TraceRequest]) -> tuple[Waste, Waste]:
    """The same trace on pages and on slabs of max_model_len, in memory of the same size.

    Nothing is shared: a shared page would count as filled twice.
    """
    if config.enable_prefix_caching:
        raise ValueError("pages that requests share would be counted twice")
    slabs = ContiguousKV(config)
    return (
        _measure("paged", config, trace, Scheduler(config), None),
        _measure("contiguous", config, trace, Scheduler(config, slabs), slabs.slab_pages),
    )


def _measure(
    name: str,
    config: SchedulerConfig,
    trace: Sequence[TraceRequest],
    scheduler: Scheduler,
    slab_pages: int | None,
) -> Waste:
    meter = _Meter(config.page_size, slab_pages)
    result: Simulated = Simulation(config, COST, scheduler=scheduler, watch=meter).run(trace)
    return Waste(name, 1 - meter.filled / meter.held, meter.rows / meter.seconds, result.output_rate)
