"""Prefixes on disk: how they get there from the tree, and to a request that waits for one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from octavo.config.scheduler import SchedulerConfig
from octavo.engine.disk_tier import DiskTier, Fetch, PageFile
from octavo.engine.kv_manager import KVManager
from octavo.engine.page_keys import page_keys, root_key
from octavo.engine.page_pool import ensure
from octavo.engine.request import Request
from octavo.engine.step_plan import StepPlan


class DiskPrefixes(DiskTier):
    """The disk tier of a KVManager: saves what the prefix cache evicts, reads it for waiting requests.

    A fetch is held for a waiting request (`waiting`), and from its entry on for the step that reads it.
    """

    saves = True

    def __init__(self, file: PageFile, kv: KVManager) -> None:
        super().__init__(file)
        self._kv = kv
        self.waiting: dict[Request, Fetch] = {}
        self._in_flight: dict[int, list[Fetch]] = {}
        kv.cache.spill = self._evicted

    def ready(self, request: Request) -> bool:
        """The first call begins to read; so does a later one if the tree has lost pages since."""
        if request.needs_whole_prompt:
            return True
        self.poll()
        first = self._kv.cached_tokens(request) // self._kv.page_size
        fetch = self.waiting.get(request)
        if fetch is not None:
            if first >= fetch.first:
                return fetch.ready
            self.forget(request)
        keys = page_keys(root_key(request.cache_key), request.token_ids[:-1], self._kv.page_size)
        found = self.look(keys, first)
        if found is not None:
            self.waiting[request] = found
        return found is not None and found.ready

    def find(self, request: Request, cached: int) -> Sequence[int]:
        fetch = self.waiting.get(request)
        return () if fetch is None else fetch.blocks(cached)

    def forget(self, request: Request) -> None:
        if (fetch := self.waiting.pop(request, None)) is not None:
            self.release(fetch)

    def enter(self, step_id: int, requests: Iterable[Request]) -> None:
        self._in_flight[step_id] = [self.waiting.pop(r) for r in requests if r in self.waiting]

    def executed(self, step_id: int) -> None:
        for fetch in self._in_flight.pop(step_id, ()):
            self.release(fetch)

    def check_waiting(self, waiting: Sequence[Request], steps: Collection[int]) -> None:
        ensure(self.waiting.keys() <= set(waiting), "a fetch is held for nobody who waits")
        ensure(self._in_flight.keys() <= set(steps), "a fetch is held for no step in flight")
        in_flight = [fetch for held in self._in_flight.values() for fetch in held]
        self.check_integrity([*self.waiting.values(), *in_flight])

    def plans_to_keep(self) -> Iterator[StepPlan]:
        for saves in self.keep(self._kv.cache.contents(self._kv.whole)):
            plan = StepPlan(-1, (), (), (), saves=saves)
            for group in self._kv.groups:
                group.read([page for page, _, _ in saves])
                group.moves(plan)
            yield plan

    def _evicted(self, keys: Sequence[bytes], pages: Sequence[int]) -> None:
        """Save pages that the tree evicts, up to the first that is not worth it: none after it is found."""
        pages = self._kv.whole(pages)
        for group in self._kv.groups:
            group.read(pages)
        self.save(keys[: len(pages)], pages)


def manager_of(config: SchedulerConfig, file: PageFile | None) -> KVManager:
    """The manager of a model with these numbers; what its tree evicts goes to the file, if there is one."""
    return KVManager(config) if file is None else KVManager(config, lambda kv: DiskPrefixes(file, kv))
