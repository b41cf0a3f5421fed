"""EngineStats: what the engine has done since its start, and what it does now."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.engine.scheduler import Scheduler


@dataclass(slots=True)
class DraftCounts:
    """Counts since start, by vLLM's names.

    Attributes:
        drafts: verified, each of one row in one step. draft_tokens: of these drafts.
        accepted_tokens: of those, drawn by the row itself.
        accepted_at: by place in what was accepted, from 0; of a tree a token's place is its depth.
    """

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_at: list[int] = field(default_factory=list)

    def add(self, drafted: int, accepted: int) -> None:
        """A row's step has verified so many tokens, of which so many are the row's."""
        self.drafts += 1
        self.draft_tokens += drafted
        self.accepted_tokens += accepted
        self.accepted_at += [0] * (accepted - len(self.accepted_at))
        for place in range(accepted):
            self.accepted_at[place] += 1

    def copy(self) -> DraftCounts:
        """The counts of now. Any thread may ask."""
        return replace(self, accepted_at=list(self.accepted_at))


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts since start, and the state of now.

    Attributes:
        running, waiting: sequences (each of n counts).
        kv_usage: share of the page pool held by running requests, 0..1; of sliding pages, if that is more.
        prefix_queries, prefix_hits: tokens looked up in the prefix cache, and found.
        external_prefix_queries, external_prefix_hits: of those that were not, tokens looked up in its
            tier on disk, and found.
        prompt_tokens: of prompts that got a first token, once a prompt.
        drafts: what was verified of drafts.
    """

    running: int
    waiting: int
    kv_usage: float
    preemptions: int
    prefix_queries: int
    prefix_hits: int
    prompt_tokens: int
    generated_tokens: int
    steps: int
    external_prefix_queries: int = 0
    external_prefix_hits: int = 0
    drafts: DraftCounts = field(default_factory=DraftCounts)


def stats_of(scheduler: Scheduler, steps: int) -> EngineStats:
    """After so many steps."""
    cache, disk = scheduler.kv.cache, scheduler.kv.disk
    return EngineStats(
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        kv_usage=scheduler.kv.usage(),
        preemptions=scheduler.num_preemptions,
        prefix_queries=cache.query_tokens,
        prefix_hits=cache.hit_tokens,
        prompt_tokens=scheduler.num_prompt_tokens,
        generated_tokens=scheduler.num_generated_tokens,
        steps=steps,
        external_prefix_queries=disk.query_tokens,
        external_prefix_hits=disk.hit_tokens,
        drafts=scheduler.drafts.counts.copy(),
    )
