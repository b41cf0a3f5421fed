"""Mistakes with shared pages that both the random engines and the exhaustive explorer must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo.engine.kv_manager import KVManager
from octavo.engine.page_pool import PagePool
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.request import Request

Patch = Callable[[pytest.MonkeyPatch], None]


def write_to_a_shared_page(patch: pytest.MonkeyPatch) -> None:
    grow = KVManager.grow

    def mutant(self: KVManager, request: Request, num_tokens: int) -> Any:
        request.kv.shares_tail = False
        return grow(self, request, num_tokens)

    patch.setattr(KVManager, "grow", mutant)


def keep_the_page_that_was_copied(patch: pytest.MonkeyPatch) -> None:
    grow = KVManager.grow

    def mutant(self: KVManager, request: Request, num_tokens: int) -> Any:
        growth = grow(self, request, num_tokens)
        if growth is not None and growth.copy is not None:
            self.pool.retain(growth.copy[:1])
        return growth

    patch.setattr(KVManager, "grow", mutant)


def fork_without_counting(patch: pytest.MonkeyPatch) -> None:
    regroup, retain = KVManager.regroup, PagePool.retain

    def mutant(self: KVManager, members: Any, parents: Any, gone: Any) -> None:
        patch.setattr(PagePool, "retain", lambda pool, pages: None)
        try:
            regroup(self, members, parents, gone)
        finally:
            patch.setattr(PagePool, "retain", retain)

    patch.setattr(KVManager, "regroup", mutant)


def fork_without_locking(patch: pytest.MonkeyPatch) -> None:
    regroup, lock = KVManager.regroup, PrefixCache.lock

    def mutant(self: KVManager, members: Any, parents: Any, gone: Any) -> None:
        patch.setattr(PrefixCache, "lock", lambda cache, node: None)
        try:
            regroup(self, members, parents, gone)
        finally:
            patch.setattr(PrefixCache, "lock", lock)

    patch.setattr(KVManager, "regroup", mutant)


def publish_what_a_sibling_holds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KVManager, "_publishable", KVManager._full_pages)


def evict_what_is_locked(patch: pytest.MonkeyPatch) -> None:
    def is_current(node: Any, stamp: int) -> bool:
        return node.last_used >= stamp and not node.children and node.parent is not None

    patch.setattr(PrefixCache, "_is_current", staticmethod(is_current))
