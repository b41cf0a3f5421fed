"""A step whose rows have drafts: its batch, the walk that draws each row's own tokens, and what stays of it.

    node 0: last known token     Draft i is node i + 1. The forward computes logits after every node. A row
     ├─ node 1: draft 0          draws at node 0. Where a drafted child is the token that it has drawn, it
     │   └─ node 3: draft 2      draws at that child next, with the noise of its position.
     └─ node 2: draft 1

Each token is drawn from the logits, noise, penalties and masks that it has without drafts, and appended
before the next one is drawn. So the tokens and their log-probabilities are those of plain decoding, and no
state has to be taken back. A node's keys and values lie in the slot of its index; those of the nodes that
the walk has passed are moved to the slots of their positions (decision 0022).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from octavo.engine.step_plan import RowStep, SampledToken
from octavo.kernels.forward_batch import I32, ForwardBatch
from octavo.kernels.trees import U64, masks_of
from octavo.runtime.states import I64, RequestStates
from octavo.sampling.sampler import RowError
from octavo.sampling.sampling_rows import SamplingRows

Draw = Callable[[Sequence["Walk"]], Sequence[SampledToken | RowError]]
"""Draws the next token of each of these rows, at the node where its walk is."""


@dataclass(slots=True, eq=False)
class Walk:
    """A row that draws in the step, and where its walk is.

    Attributes:
        start: position of node 0. at: place of its logits among the step's.
        children: (node, token) -> the node's child with this token.
        node: where it is. trail: the nodes that it has come by, node 0 first.
        drawn: tokens so far. error: why it could not draw its first one.
    """

    row: int
    start: int
    at: int
    children: dict[tuple[int, int], int]
    node: int = 0
    trail: list[int] = field(default_factory=lambda: [0])
    drawn: list[SampledToken] = field(default_factory=list)
    error: str | None = None

    @property
    def position(self) -> int:
        """Of the token that it draws next."""
        return self.start + 1 + len(self.drawn)

    @property
    def drafted(self) -> list[tuple[int, int]]:
        """(token, node) of the children where the walk is, the eldest first."""
        return [(token, child) for (node, token), child in self.children.items() if node == self.node]

    @property
    def logits(self) -> int:
        """Place of the logits that it draws from next."""
        return self.at + self.node

    def take(self, token: SampledToken | RowError) -> bool:
        """Append what was drawn at the node. True: it goes on at a child."""
        if isinstance(token, RowError):
            # Further down, the next step meets the error where nothing was drafted.
            self.error = None if self.drawn else token.message
            return False
        self.drawn.append(token)
        child = self.children.get((self.node, token.token_id))
        if child is None:
            return False
        self.node = child
        self.trail.append(child)
        return True


def walks_of(steps: Sequence[RowStep]) -> list[Walk]:
    """The rows of a step that draw, each at its node 0."""
    walks: list[Walk] = []
    at = 0
    for step in steps:
        if not step.sample:
            continue
        parents = step.parents or range(-1, len(step.drafts) - 1)
        pairs = zip(parents, step.drafts, strict=True)
        children = {(parent + 1, token): child for child, (parent, token) in enumerate(pairs, 1)}
        walks.append(Walk(step.row, step.start + step.count - len(step.drafts) - 1, at, children))
        at += len(step.drafts) + 1
    return walks


def walk(walks: Sequence[Walk], draw: Draw, states: RequestStates, samplings: SamplingRows) -> None:
    """Draw for all rows, level by level, until each has a token that nobody drafted."""
    going = list(walks)
    while going:
        next_level = []
        for one, drawn in zip(going, draw(going), strict=True):
            if isinstance(drawn, SampledToken):
                states.append(one.row, drawn.token_id)
                samplings.append(one.row, (drawn.token_id,))
            if one.take(drawn):
                next_level.append(one)
        going = next_level


def slots_to_move(walks: Sequence[Walk], pages: I32, page_size: int) -> list[tuple[int, int]]:
    """(slot where a passed node of a tree lies, slot of its position), nearest to node 0 first.

    Args:
        pages: the rows' page tables, or those of sliding pages.
    """

    def slot(row: int, place: int) -> int:
        return int(pages[row, place // page_size]) * page_size + place % page_size

    return [
        (slot(one.row, one.start + node), slot(one.row, one.start + depth))
        for one in walks
        for depth, node in enumerate(one.trail)
        if node != depth
    ]


def gather_drafted(steps: Sequence[RowStep], states: RequestStates) -> ForwardBatch:
    """The batch of steps of which some have drafts. Sampled are the last known tokens and all drafts.

    Raises:
        ValueError: a step computes tokens that nobody knows.
    """
    words = max((-(-s.count // 64) for s in steps if s.parents), default=0)
    masks: list[U64] = []
    ids, positions, places, sampled = [], [], [], []
    row_of, first = np.repeat([s.row for s in steps], [s.count for s in steps]), 0
    for step in steps:
        own = step.count - len(step.drafts)
        end = step.start + own
        known = states.length.item(step.row)
        if end > known or (
            step.drafts and (end != known or not step.sample)
        ):  # drafts follow all that is known
            raise ValueError(f"row {step.row}: positions [{step.start}, {end}) go beyond its {known} tokens")
        place = np.arange(step.start, step.start + step.count)
        ids += [states.tokens[step.row, step.start : end], np.array(step.drafts, np.int32)]
        places.append(place)
        positions.append(place)
        if step.parents:
            positions[-1] = np.concatenate([place[:own], end + np.array(depths_of(step.parents))])
        if step.sample:
            sampled.append(np.arange(first + own - 1, first + step.count))
        if words:
            masks.append(_masks(step, own, words))
        first += step.count
    context = np.array([s.start + s.count for s in steps], np.int32)
    width, at = -(-int(context.max(initial=1)) // states.page_size), np.concatenate(places)
    rows = [s.row for s in steps]
    sliding_slots, sliding_tables = _sliding(states, rows, row_of, at, width)
    return ForwardBatch(
        token_ids=np.concatenate(ids),
        positions=np.concatenate(positions).astype(np.int32),
        slots=_slots(states.pages, row_of, at, states.page_size),
        query_start=np.cumsum([0, *(s.count for s in steps)], dtype=np.int32),
        context_lens=context,
        page_tables=np.ascontiguousarray(states.pages[rows, :width]),
        sampled=np.concatenate(sampled).astype(np.int32) if sampled else np.zeros(0, np.int32),
        tree_masks=np.concatenate(masks) if masks else None,
        sliding_slots=sliding_slots,
        sliding_tables=sliding_tables,
    )


def depths_of(parents: Sequence[int]) -> list[int]:
    """How many drafts stand above each draft of a tree."""
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return depths


def _masks(step: RowStep, own: int, words: int) -> U64:
    """Tree masks of a row's tokens; zeros where its drafts are a chain."""
    if not step.parents:
        return np.zeros((step.count, words), np.uint64)
    return masks_of([*range(-1, own - 1), *(own + parent for parent in step.parents)], words)


def _slots(tables: I32, rows: I64, places: object, size: int) -> I32:
    at = np.asarray(places)
    slots: I32 = (tables[rows, at // size] * size + at % size).astype(np.int32)
    return slots


def _sliding(
    states: RequestStates, rows: Sequence[int], row_of: I64, places: object, width: int
) -> tuple[I32, I32] | tuple[None, None]:
    """Slots and tables of layers with a window; None: they have those of the others."""
    pages = states.sliding_pages
    if pages is None:
        return None, None
    return _slots(pages, row_of, places, states.page_size), np.ascontiguousarray(pages[rows, :width])
