"""Snapshot: what the engine's pages and rows hold right now."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.engine.core import EngineCore


@dataclass(frozen=True, slots=True)
class RowState:
    """A running sequence.

    Attributes:
        row: which of max_num_seqs it has.
        num_tokens: known ones, prompt and answer; num_computed: those whose keys and values are in pages.
        in_last_step: tokens that the step confirmed last computed for it; 0: it was not part of that one.
    """

    row: int
    request_id: str
    index: int
    num_tokens: int
    num_computed: int
    in_last_step: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The engine between two steps. Each page counts once.

    Attributes:
        free: pages that hold nothing of use.
        cached: pages that the prefix cache alone holds; they are given up when others are needed.
        used: pages that one running sequence holds (and the prefix cache, perhaps); shared: several.
    """

    free: int
    cached: int
    used: int
    shared: int
    rows: tuple[RowState, ...]


def snapshot_of(core: EngineCore) -> Snapshot:
    """What pages and rows hold. O(pages), so on request only; on the engine's thread, between two steps."""
    scheduler = core.scheduler
    kv, last = scheduler.kv, scheduler.counts_of_last_step()
    in_tree = {page for node in kv.cache.nodes() for page in node.pages}
    pages = Counter(
        min(references - (page in in_tree), 2) if references else -1
        for page, references in enumerate(map(kv.pool.references, range(kv.pool.num_pages)))
    )
    rows = [
        RowState(r.row, r.request_id, r.index, len(r.token_ids), r.kv.num_computed_tokens, last.get(r, 0))
        for r in scheduler.running
    ]
    return Snapshot(pages[-1], pages[0], pages[1], pages[2], tuple(rows))
