"""PrefixesInProgress: prefixes that running requests compute, and waiting ones could share soon."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.engine.kv_manager import KVManager
from octavo.engine.request import Request, RequestState, Wait

Key = tuple[str | None, tuple[int, ...]]


class PrefixesInProgress:
    """The running requests whose prompt is not in the prefix cache yet, found by their first page.

    Made anew for each step; a request that found someone to wait for remembers it, so that waiting
    costs O(1) a step.
    """

    def __init__(self, kv: KVManager, running: Iterable[Request]) -> None:
        self._kv = kv
        self._size = kv.page_size
        self._by_first_page: dict[Key, list[Request]] = {}
        for request in running:
            # (Who has given back what is behind its window publishes no more.)
            state = request.kv
            if state.num_computed_tokens < request.num_prompt_tokens and not state.num_released_pages:
                self.add(request)

    def add(self, request: Request) -> None:
        """A request begins to compute its prompt."""
        if self._kv.caching and len(request.token_ids) >= self._size:
            self._by_first_page.setdefault(self._key(request), []).append(request)

    def worth_waiting(self, request: Request) -> bool:
        """Whether the request should wait for one that is computing a prefix of its tokens."""
        if request.needs_whole_prompt:
            return False  # it computes all of its prompt itself
        sibling = request.leader
        if sibling is not None and sibling.state is RequestState.RUNNING:
            # When it has the prompt, everything but the last token comes from its pages.
            return 1 < sibling.num_prompt_tokens > sibling.kv.num_computed_tokens
        if request.waits_for is not None:  # it waits already: for whom, and is that worth it still?
            leader, until = request.waits_for
            at_work = leader.state is RequestState.RUNNING and not leader.kv.num_released_pages
            if at_work and _ready(leader) < until:
                return True
            request.waits_for = None
        if not self._by_first_page or len(request.token_ids) <= self._size:  # no whole page to share
            return False
        candidates = self._by_first_page.get(self._key(request))
        if candidates is None:
            return False
        shared, leader = max(
            ((self._shared_tokens(request, other), other) for other in candidates), key=lambda pair: pair[0]
        )
        if shared <= max(_ready(leader), self._kv.cached_tokens(request)):  # it can begin with as much now
            return False
        request.waits_for = Wait(leader, shared)
        return True

    def _key(self, request: Request) -> Key:
        return request.cache_key, tuple(request.token_ids[: self._size])

    def _shared_tokens(self, request: Request, other: Request) -> int:
        """Length of the common prefix in tokens, whole pages, the request's last token excluded."""
        size, mine, theirs = self._size, request.token_ids, other.token_ids
        limit = min(len(mine) - 1, other.num_prompt_tokens) // size * size
        if mine[:limit] == theirs[:limit]:
            return limit
        end = 0
        while end < limit and mine[end : end + size] == theirs[end : end + size]:
            end += size
        return end


def _ready(leader: Request) -> int:
    """Tokens of the leader that the cache has; those that are being copied in are not there yet."""
    return 0 if leader.kv.arriving else leader.kv.num_computed_tokens
