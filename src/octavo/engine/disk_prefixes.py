"""Prefixes on disk: how they get there from the tree, and to a request that waits for one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from octavo.engine.disk_tier import DiskTier, PageFile
from octavo.engine.page_keys import page_keys, root_key
from octavo.engine.request import Request
from octavo.engine.step_plan import StepPlan

if TYPE_CHECKING:
    from octavo.engine.kv_manager import KVManager


class DiskPrefixes(DiskTier):
    """The disk tier of a KVManager: saves what the prefix cache evicts, reads it for waiting requests."""

    def __init__(self, file: PageFile, kv: KVManager) -> None:
        super().__init__(file)
        self._kv = kv
        kv.cache.spill = self._evicted

    def ready(self, request: Request) -> bool:
        """The first call begins to read; so does a later one if the tree has lost pages since."""
        if request.needs_whole_prompt:
            return True
        self.poll()
        first = self._kv.cached_tokens(request) // self._kv.page_size
        fetch = request.kv.fetch
        if fetch is not None:
            if first >= fetch.first:
                return fetch.ready
            self.forget(request)
        keys = page_keys(root_key(request.cache_key), request.token_ids[:-1], self._kv.page_size)
        request.kv.fetch = found = self.look(keys, first)
        return found is not None and found.ready

    def find(self, request: Request, cached: int) -> Sequence[int]:
        return () if request.kv.fetch is None else request.kv.fetch.blocks(cached)

    def forget(self, request: Request) -> None:
        self.release(request.kv.fetch)
        request.kv.fetch = None

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
