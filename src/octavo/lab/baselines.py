"""What the engine is compared with, behind its own interfaces: static batching and contiguous KV.

Nothing else uses them. Each leaves everything but the one idea as it is: same runner, same kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from octavo.config import SchedulerConfig
from octavo.engine.kv_manager import Growth, KVManager
from octavo.engine.page_pool import ensure
from octavo.engine.request import Request, RequestUpdate
from octavo.engine.scheduler import Scheduler
from octavo.engine.step_builder import StepBuilder
from octavo.engine.step_plan import StepResult
from octavo.errors import UnsupportedError


class StaticScheduler(Scheduler):
    """Batches as they were before continuous batching: a batch enters together and leaves together.

    1.  The first max_num_seqs waiting requests make a batch. Nobody else enters before all of it have
        ended.
    2.  A row whose request has what it wanted goes on computing tokens that nobody wants until the
        longest of the batch has ended: the padding of a rectangular batch. Only then is it reported as
        ended. Prompts are not padded, which flatters this baseline.

    Requests end by their length (ignore_eos, no stop tokens).
    """

    def __init__(self, config: SchedulerConfig, kv: KVManager | None = None) -> None:
        super().__init__(config, kv)
        self._batch: dict[Request, int] = {}  # and how long each should have become

    def _admit(self, step: StepBuilder, now: float) -> None:
        if not self._batch:
            self._batch = {r: r.max_total_tokens for r in self.waiting[: self.config.max_num_seqs]}
            longest = max(total - r.num_prompt_tokens for r, total in self._batch.items())
            for request in self._batch:
                request.max_total_tokens = min(request.num_prompt_tokens + longest, self.config.max_model_len)
        others = [request for request in self.waiting if request not in self._batch]
        self.waiting = [request for request in self.waiting if request in self._batch]
        if self.waiting:
            super()._admit(step, now)
        self.waiting = sorted([*self.waiting, *others], key=lambda request: request.order)

    def update(self, result: StepResult, now: float = 0.0, duration_s: float = 0.0) -> list[RequestUpdate]:
        wanted = {(r.request_id, r.index): (r, total) for r, total in self._batch.items()}
        found = super().update(result, now, duration_s)
        for update in found:
            request, total = wanted[update.request_id, update.index]
            padding = min(max(len(request.token_ids) - total, 0), len(update.tokens))
            update.tokens = update.tokens[: len(update.tokens) - padding]
            self.num_generated_tokens -= padding
        return found

    def finish(self, request: Request, now: float, publish: bool = True) -> None:
        super().finish(request, now, publish)
        self._batch.pop(request, None)


class ContiguousKV(KVManager):
    """KV as it was before paging: a slab for the longest possible sequence, taken at admission.

        pool  [ slab 0: max_model_len slots | slab 1 | slab 2 | ... ]

    A request has its slab from its beginning to its end, so there is nothing to share or to cache, and
    as many run at once as there are slabs.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        if config.sliding_window is not None:
            raise UnsupportedError("slabs are for models whose layers share pages", "model")
        super().__init__(replace(config, enable_prefix_caching=False))
        self.slab_pages = -(-config.max_model_len // config.page_size)
        count = config.num_pages // self.slab_pages
        self._every = self.pool.allocate(config.num_pages)
        self._free = [
            self._every[i * self.slab_pages : (i + 1) * self.slab_pages] for i in reversed(range(count))
        ]
        self._slabs: dict[Request, list[int]] = {}
        self._count = count

    @property
    def num_available(self) -> int:
        return len(self._free) * self.slab_pages

    def usage(self) -> float:
        return len(self._slabs) / self._count

    def begin(self, request: Request, reserve: int) -> bool:
        if not self._free:
            return False
        self._slabs[request] = self._free.pop()
        return True

    def grow(self, request: Request, num_tokens: int) -> Growth | None:
        have = len(request.kv.page_table)
        pages = self._slabs[request][have : self.pages_for(num_tokens)]
        request.kv.page_table += pages
        return Growth(tuple(pages))

    def release(self, request: Request, publish: bool = True) -> None:
        self._free.append(self._slabs.pop(request))
        request.kv.page_table = []
        request.kv.num_computed_tokens = request.kv.num_scheduled_tokens = 0

    def check_integrity(self, running: Iterable[Request]) -> None:
        held = [page for slab in self._slabs.values() for page in slab]
        free = [page for slab in self._free for page in slab]
        ensure(set(self._slabs) == set(running), "a slab belongs to nobody who runs")
        ensure(len({*held, *free}) == len(held) + len(free) == self._count * self.slab_pages, "slabs overlap")
