"""What a step keeps of a draft, where all its nodes were drawn before."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.engine.step_plan import RowStep, SampledToken
from octavo.params.drafts import Draft
from octavo.runtime.drafted import Walk, walks_of
from octavo.sampling.sampler import RowError


def walked(draft: Draft, drawn: Sequence[SampledToken | RowError]) -> Walk:
    """The walk along what was drawn at each node [N + 1], until a token is nobody's draft."""
    step = RowStep(0, 0, 1 + len(draft.tokens), (), True, draft.tokens, parents=draft.parents)
    (walk,) = walks_of([step])
    while walk.take(drawn[walk.node]):
        pass
    return walk
