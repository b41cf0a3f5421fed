"""CrossPages: the pages of encoder outputs, written once and shared while anybody reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.engine.page_group import Entry, PageGroup
from octavo.engine.page_pool import PagePool, ensure

if TYPE_CHECKING:
    from octavo.engine.request import Request
    from octavo.engine.step_builder import StepBuilder


@dataclass(slots=True, eq=False)
class CrossEntry:
    """Keys and values of one encoder input.

    Attributes:
        key: names the input (and whoever may share it).
        users: running requests that read it.
        written: a result has confirmed the step in which the encoder computed it. Until then only
            requests of that very step may share it: should the step fail, all of them end.
    """

    key: str | None
    pages: tuple[int, ...]
    users: int = 0
    written: bool = False


class CrossPages(PageGroup):
    """Encoder inputs in use, by key. An entry lives from its first user to its last one.

    What the n samples of a request and equal inputs that run together need is computed once. The
    pages of an entry have one reference, the entry's; nobody writes to them after its first step.
    """

    def __init__(self, pool: PagePool, page_size: int) -> None:
        self._pool, self._page_size = pool, page_size
        self._entries: dict[str | None, CrossEntry] = {}

    def find(self, key: str | None) -> CrossEntry | None:
        return self._entries.get(key)

    def entries(self) -> Sequence[CrossEntry]:
        return tuple(self._entries.values())

    def join_entry(self, key: str | None, pages: Sequence[int]) -> CrossEntry:
        """One user more of the entry with this key, which is made of these pages if there is none."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = CrossEntry(key, tuple(pages))
        entry.users += 1
        return entry

    def quit(self, entry: CrossEntry) -> None:
        """One user less; the last one frees the pages."""
        entry.users -= 1
        if entry.users == 0:
            del self._entries[entry.key]
            self._pool.release(entry.pages)

    # --- of the group -----------------------------------------------------------------------------

    def entry(self, request: Request, step: StepBuilder) -> Entry:
        """By the input, which is new, in use, or being written by a step in flight."""
        shared = self.find(request.cache_key)
        if shared is None:
            return Entry.NOW if step.can_encode(len(request.encoder_token_ids)) else Entry.NO_ROOM
        return Entry.NOW if shared.written or shared in step.entries else Entry.LATER

    def need(self, request: Request) -> int:
        """Pages of the encoder's output, unless an equal input is in use."""
        if self.find(request.cache_key) is not None:
            return 0
        return -(-len(request.encoder_token_ids) // self._page_size)

    def begin(self, request: Request, pages: Sequence[int] = ()) -> None:
        request.kv.cross = self.join_entry(request.cache_key, pages)

    def enter(self, request: Request, step: StepBuilder) -> None:
        """The encoder computes the input in this step, unless it has been or will be."""
        entry = self._entries[request.cache_key]
        if not entry.written and entry not in step.entries:
            step.encode(request, entry)

    def fork(self, parent: Request) -> None:
        self.join_entry(parent.cache_key, ())

    def leave(self, request: Request) -> None:
        if request.kv.cross is not None:  # (a new beam has not joined)
            self.quit(request.kv.cross)

    def owned(self) -> Mapping[int, int]:
        return {page: 1 for entry in self._entries.values() for page in entry.pages}

    def check(self, running: Sequence[Request]) -> None:
        counted = Counter(request.kv.cross for request in running)
        ensure(counted[None] == 0, "a running request reads no encoder output")
        ensure(set(counted) == set(self._entries.values()), "an encoder output is lost or nobody's")
        for key, entry in self._entries.items():
            ensure(entry.key == key and entry.users == counted[entry], "an encoder output is miscounted")
