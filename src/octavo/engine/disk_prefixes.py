"""Prefixes on disk: how they get there from the tree, and to a request that waits for one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from octavo.engine.books import Books
from octavo.engine.page_keys import page_keys, root_key
from octavo.engine.plan import StepPlan
from octavo.engine.request import Request


def fetched(books: Books, request: Request) -> bool:
    """Whether what the disk holds of the request's prefix, beyond the tree's, is at hand or is nothing.

    The first call begins to read it, and so does one that finds the tree holding less than before.
    """
    if books.disk is None or request.scores_prompt:
        return True
    books.disk.poll()
    first = books.cached_tokens(request) // books.page_size
    if request.kv.fetch is not None:
        if first >= request.kv.fetch.first:
            return request.kv.fetch.ready
        drop_fetch(books, request)
    keys = page_keys(root_key(request.cache_salt), request.token_ids[:-1], books.page_size)
    request.kv.fetch = books.disk.look(keys, first)
    return request.kv.fetch is not None and request.kv.fetch.ready


def drop_fetch(books: Books, request: Request) -> None:
    """The request does not need what the disk holds."""
    if books.disk is not None:
        books.disk.release(request.kv.fetch)
        request.kv.fetch = None


def save_evicted(books: Books, keys: Sequence[bytes], pages: Sequence[int]) -> None:
    """The tree evicts these. Nobody would find what follows a page whose local page is gone."""
    assert books.disk is not None
    if books.locals is not None:
        pages = books.locals.whole(pages)
        books.locals.read(pages)
    books.disk.save(keys[: len(pages)], pages)


def plans_to_keep(books: Books) -> Iterator[StepPlan]:
    """See DiskTier.keep: plans that save all that is cached."""
    whole = None if books.locals is None else books.locals.whole
    for saves in () if books.disk is None else books.disk.keep(books.cache.contents(whole)):
        if books.locals is not None:
            books.locals.read([page for page, _, _ in saves])
        yield StepPlan(-1, (), (), (), saves=saves, local_sources=books.local_moves()[0])
