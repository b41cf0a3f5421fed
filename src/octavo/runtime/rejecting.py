"""RejectingDraws: what a walk draws where its drafts are put to the p/q test (sampling/verify.py).

A walk goes on where its token is a drafted child, as in drafted.py. What differs is how the token is found:
at a node with drafted children the test says which of them is taken, or draws from what is left. At a node
without any the row draws as in plain decoding: behind the last accepted draft that is the bonus token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.kernels.ops import F32
from octavo.params import SampledToken
from octavo.runtime.drafted import Walk
from octavo.sampling.elementary import F64
from octavo.sampling.sampler import RowError, Sampler
from octavo.sampling.sampling_batch import SamplingBatch
from octavo.sampling.sampling_rows import SamplingRows
from octavo.sampling.verify import Children, tokens_by_rejection


class RejectingDraws:
    """A drafted.Draw, of one step.

    Args:
        logits [L, V]: of all nodes of the step.
        drawn_from: row -> what each token of its draft was drawn from (Draft.q). Rows whose drafts were
            chosen are not in it.
    """

    def __init__(
        self, logits: F32, sampler: Sampler, samplings: SamplingRows, drawn_from: Mapping[int, F64]
    ) -> None:
        self._logits, self._sampler, self._samplings = logits, sampler, samplings
        self._drawn_from = drawn_from

    def __call__(self, walks: Sequence[Walk]) -> list[SampledToken | RowError]:
        drafted = [walk for walk in walks if walk.drafted]
        others = [walk for walk in walks if not walk.drafted]
        drawn: dict[int, SampledToken | RowError] = {}
        if drafted:
            logits, children = (
                self._logits[[walk.logits for walk in drafted]],
                [*map(self._children, drafted)],
            )
            found = tokens_by_rejection(self._sampler, logits, self._wanted(drafted), children)
            drawn |= zip((walk.row for walk in drafted), found, strict=True)
        if others:
            found = self._sampler.sample(self._logits, self._wanted(others), [walk.logits for walk in others])
            drawn |= zip((walk.row for walk in others), found, strict=True)
        return [drawn[walk.row] for walk in walks]

    def _wanted(self, walks: Sequence[Walk]) -> SamplingBatch:
        return self._samplings.batch([walk.row for walk in walks], [walk.position for walk in walks])

    def _children(self, walk: Walk) -> Children:
        """Where the walk is: the children's tokens, and what they were drawn from."""
        q = self._drawn_from.get(walk.row)
        tokens = [token for token, _ in walk.drafted]
        # Draft i is node i + 1.
        return tokens, None if q is None else [q[node - 1] for _, node in walk.drafted]
