"""Mistakes of verifying drafts, made on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo.engine.drafts import Drafts
from octavo.engine.request import Request
from octavo.runtime import drafted, speculation
from octavo.runtime.drafted import Walk
from octavo.runtime.page_moves import PageMoves
from octavo.runtime.speculation import SpeculatingRunner
from octavo.sampling import SamplingRows

Patch = Callable[[pytest.MonkeyPatch], None]


def leave_nodes_where_they_are(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PageMoves, "move_slots", lambda *_: None)


def keep_what_was_rejected(patch: pytest.MonkeyPatch) -> None:
    """Keys and values of rejected drafts count, and enter the prefix cache."""
    confirm = Drafts.confirm

    def mutant(self: Drafts, request: Request, step: Any, emitted: int, kv: Any) -> None:
        confirm(self, request, step, emitted, kv)
        end = min(step.start + step.count, len(request.kv.page_table) * kv.page_size)
        request.kv.num_computed_tokens = request.kv.num_scheduled_tokens = end

    patch.setattr(Drafts, "confirm", mutant)


def noise_of_the_node(patch: pytest.MonkeyPatch) -> None:
    """Not of its position."""
    patch.setattr(Walk, "position", property(lambda self: self.start + 1 + self.node))


def advance_along_rejected_drafts(patch: pytest.MonkeyPatch) -> None:
    """Grammars and penalties see all that was drafted."""
    walk = drafted.walk

    def mutant(walks: Any, draw: Any, states: Any, samplings: SamplingRows) -> None:
        walk(walks, draw, states, samplings)
        for one in walks:
            samplings.append(one.row, [token for _, token in one.children])

    patch.setattr(speculation, "walk", mutant)


def go_on_after_any_child(patch: pytest.MonkeyPatch) -> None:
    """A drafted token is taken where another was drawn."""
    take = Walk.take

    def mutant(self: Walk, drawn: Any) -> bool:
        first = next((child for (node, _), child in self.children.items() if node == self.node), None)
        taken = take(self, drawn)
        if not taken and first is not None and self.drawn:
            self.node = first
            self.trail.append(first)
            return True
        return taken

    patch.setattr(Walk, "take", mutant)


def forget_the_token_after_the_last_accepted(patch: pytest.MonkeyPatch) -> None:
    """Of accepted drafts nothing is drawn behind the last one."""
    walk = drafted.walk

    def mutant(walks: Any, draw: Any, states: Any, samplings: SamplingRows) -> None:
        walk(walks, draw, states, samplings)
        for one in walks:
            if len(one.drawn) > 1:
                one.drawn.pop()

    patch.setattr(speculation, "walk", mutant)


def positions_by_index(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(drafted, "depths_of", lambda parents: list(range(len(parents))))


def the_long_way(patch: pytest.MonkeyPatch) -> None:
    """No mistake: every row is walked in Python. The decoder has its own walk, compared with this one."""
    patch.setattr(SpeculatingRunner, "_verified", lambda *_: None)


ALL: list[Patch] = [
    leave_nodes_where_they_are,
    keep_what_was_rejected,
    noise_of_the_node,
    advance_along_rejected_drafts,
    go_on_after_any_child,
    positions_by_index,
    forget_the_token_after_the_last_accepted,
]
