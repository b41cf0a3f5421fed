"""Prefixes on disk: how they get there from the tree, and to a request that waits for one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from octavo.engine.page_keys import page_keys, root_key
from octavo.engine.plan import StepPlan
from octavo.engine.request import Request

if TYPE_CHECKING:
    from octavo.engine.kv_manager import KVManager


def fetched(kv: KVManager, request: Request) -> bool:
    """Whether what the disk holds of the request's prefix, beyond the tree's, is at hand or is nothing.

    The first call begins to read it, and so does one that finds the tree holding less than before.
    """
    if kv.disk is None or request.scores_prompt:
        return True
    kv.disk.poll()
    first = kv.cached_tokens(request) // kv.page_size
    if request.fetch is not None:
        if first >= request.fetch.first:
            return request.fetch.ready
        drop_fetch(kv, request)
    keys = page_keys(root_key(request.cache_salt), request.token_ids[:-1], kv.page_size)
    request.fetch = kv.disk.look(keys, first)
    return request.fetch is not None and request.fetch.ready


def drop_fetch(kv: KVManager, request: Request) -> None:
    """The request does not need what the disk holds."""
    if kv.disk is not None:
        kv.disk.release(request.fetch)
        request.fetch = None


def save_evicted(kv: KVManager, keys: Sequence[bytes], pages: Sequence[int]) -> None:
    """The tree evicts these. Nobody would find what follows a page whose local page is gone."""
    assert kv.disk is not None
    if kv.locals is not None:
        pages = kv.locals.whole(pages)
        kv.locals.read(pages)
    kv.disk.save(keys[: len(pages)], pages)


def plans_to_keep(kv: KVManager) -> Iterator[StepPlan]:
    """See DiskTier.keep: plans that save all that is cached."""
    whole = None if kv.locals is None else kv.locals.whole
    for saves in () if kv.disk is None else kv.disk.keep(kv.cache.contents(whole)):
        if kv.locals is not None:
            kv.locals.read([page for page, _, _ in saves])
        yield StepPlan(-1, (), (), (), saves=saves, local_sources=kv.local_moves()[0])
