"""PageMoves: what a StepPlan saves, copies and loads, done to the pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.engine.step_plan import StepPlan
from octavo.kernels.ops import KVCache, PageBytes
from octavo.kernels.split_kv import SplitKVCache, parts_of
from octavo.runtime.page_file import PrefixFile

Pairs = Sequence[tuple[int, int]]


class PageMoves:
    """Knows where the swap space and the file are; what is saved or copied is read before it is overwritten.

    Args:
        first_block: the blocks of the swap space are the pages from here on.
        page_file: where the prefix cache outlives the process.

    Attributes:
        kv: the pages.
    """

    def __init__(self, kv: KVCache, first_block: int = 0, page_file: PrefixFile | None = None) -> None:
        self.kv, self._first_block, self._file = kv, first_block, page_file
        self._split = kv if isinstance(kv, SplitKVCache) else None

    def run(self, plan: StepPlan) -> None:
        """Save, copy, load."""
        if plan.saves:
            self._save(plan)
        if plan.copies or plan.swaps_out or plan.swaps_in:
            self._copy(plan)
        if plan.loads:
            self._load(plan)

    def move_slots(self, pairs: Pairs, sliding_pairs: Pairs) -> None:
        """Move tokens' keys and values (KVCache.move_slots), in sliding pages too where there are any."""
        self.kv.move_slots(pairs)
        if self._split is not None:
            self._split.sliding.move_slots(sliding_pairs)

    def _copy(self, plan: StepPlan) -> None:
        self.kv.copy_pages(pairs_of(plan, self._first_block))
        if self._split is not None:
            self._split.sliding.copy_pages(_sliding_pairs(plan, self._split.first_swap))

    def _save(self, plan: StepPlan) -> None:
        assert self._file is not None, "the engine was given the runner's page file"
        sources = plan.sliding_sources or {}
        for page, block, key in plan.saves:
            parts = [_bytes_of(self.kv).read_page(page)]
            if self._split is not None:
                parts.append(_bytes_of(self._split.sliding).read_page(sources[page]))
            self._file.save(key, block, parts[0] if len(parts) == 1 else np.concatenate(parts))

    def _load(self, plan: StepPlan) -> None:
        assert self._file is not None, "the engine was given the runner's page file"
        whole, targets = _bytes_of(self.kv), plan.sliding_targets or {}
        for block, page in plan.loads:
            data = self._file.page(block)
            whole.write_page(page, data[: whole.page_bytes])
            if self._split is not None and page in targets:
                sliding = _bytes_of(self._split.sliding)
                sliding.write_page(targets[page], data[whole.page_bytes :])


def page_bytes(kv: KVCache) -> int | None:
    """Of a page on disk, its sliding page included; None: pages cannot be taken out."""
    parts = parts_of(kv)
    return sum(_bytes_of(part).page_bytes for part in parts) if isinstance(parts[0], PageBytes) else None


def _bytes_of(kv: KVCache) -> PageBytes:
    part = parts_of(kv)[0]
    assert isinstance(part, PageBytes), "assembly makes no page file for other pages"
    return part


def pairs_of(plan: StepPlan, first: int) -> Pairs:
    """All page copies; the swap space begins at page `first`."""
    if not plan.swaps_out and not plan.swaps_in:
        return plan.copies
    out = [(page, first + block) for page, block in plan.swaps_out]
    back = [(first + block, page) for block, page in plan.swaps_in]
    return [*plan.copies, *out, *back]


def _sliding_pairs(plan: StepPlan, first: int) -> Pairs:
    """Likewise, of the sliding pages that there are."""
    sources, targets = plan.sliding_sources or {}, plan.sliding_targets or {}
    copies = [(sources[a], targets[b]) for a, b in plan.copies]
    out = [(sources[page], first + block) for page, block in plan.swaps_out if page in sources]
    back = [(first + block, targets[page]) for block, page in plan.swaps_in if page in targets]
    return [*copies, *out, *back]
