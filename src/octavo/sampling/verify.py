"""Exact verification of drafted tokens: from drafts and the target's say at each node, what to emit.

    node 0: last known token        Drafts form a tree (a chain is one). The forward computes a row
     ├─ node 1: draft 0             of logits per node, for the token that follows it; `batch` of
     │   └─ node 3: draft 2         SamplingRows with Draft.paths() as `ahead` lets penalties and
     └─ node 2: draft 1             min_tokens advance along each branch.

Two modes. `same_draw`, the default: draw at every node what plain decoding would draw there; the
output equals plain decoding bit for bit, whatever was drafted. `rejection`: the textbook p/q test
(Leviathan et al. 2023, Chen et al. 2023; siblings: SpecInfer, Miao et al. 2024); the output has the
target's distribution, but other bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.params import SampledToken
from octavo.params.drafts import Draft as Draft  # proposers and step plans speak of them, too
from octavo.sampling.elementary import F64
from octavo.sampling.noise import Stream, uniform
from octavo.sampling.sampler import RowError

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Verified:
    """What verification of one row emits.

    Attributes:
        tokens: accepted drafts, then one token more that was drawn after them.
        nodes: the nodes whose KV is right and stays: 0, then the accepted drafts'.
        error: set if nothing could be drawn after node 0; tokens is then empty.
    """

    tokens: tuple[SampledToken, ...]
    nodes: tuple[int, ...]
    error: RowError | None = None


def same_draw(draft: Draft, drawn: Sequence[SampledToken | RowError]) -> Verified:
    """Go from node 0 to the child that equals the token drawn at the node, while there is one.

    1. At node 0, take the token that the sampler drew there.
    2. If a child of the node is this token, go on from the child. Otherwise stop.
    The last token taken is the bonus: five accepted drafts give six tokens.

    Each token was drawn from the logits, noise and processor state that plain decoding has at its
    position, so the tokens are those of plain decoding. A RowError further down ends the walk
    before it: the next step meets it at its node 0.

    Args:
        drawn [N + 1]: Sampler.sample at every node.
    """
    children = {key: i for i, key in enumerate(zip(draft.parents, draft.tokens, strict=True))}
    tokens: list[SampledToken] = []
    nodes: list[int] = []
    node: int | None = 0
    while node is not None:
        nodes.append(node)
        token = drawn[node]
        if isinstance(token, RowError):
            if not tokens:
                return Verified((), (0,), token)
            nodes.pop()  # its token is emitted, but its KV is computed again with the error
            break
        tokens.append(token)
        child = children.get((node - 1, token.token_id))
        node = None if child is None else child + 1
    return Verified(tuple(tokens), tuple(nodes))


def rejection(
    parents: Sequence[int], tokens: I64, p: F64, q: F64 | None, accept: F64, last: F64
) -> tuple[I64, I64]:
    """The p/q test for R rows of equally shaped drafts.

    At a node with target distribution p and drafter's distribution q, for its children in order:

    1. Accept child x and go on from it if u < p(x) / q(x), strictly: p(x) = 0 never passes.
    2. Otherwise p becomes norm(max(0, p - q)), or stays if that is zero; q loses x and is
       renormalized, because the next sibling was drawn without x.
    If no child is left, draw from p: the residual after a rejection, the bonus at a leaf.

    Args:
        parents [N]: as Draft.parents, the same for all rows.
        tokens [R, N]: drafted; siblings differ (Draft checks it).
        p [R, N + 1, V]: the target's distribution after each node (Sampler.probabilities).
        q [R, N + 1, V]: the distribution from which the node's children were drawn, the first from
            q itself, each further one without its elder siblings. None: children were not drawn but
            chosen (n-gram, argmax), so q is one-hot at each.
        accept [R, N], last [R, N + 1]: uniforms, independent of each other and of the drafter's
            (rejection_noise).

    Returns:
        emitted tokens [R, D + 2], -1 after the last, D being the largest depth of a draft's node
        counted from 0; and the last accepted node [R].
    """
    rows, size = tokens.shape
    depths = [0] * (size + 1)
    for child, parent in enumerate(parents):
        depths[child + 1] = depths[parent + 1] + 1
    emitted = np.full((rows, max(depths) + 1), -1, np.int64)
    at = np.zeros(rows, np.int64)
    for node in range(size + 1):  # parents come before their children
        here = np.flatnonzero(at == node)
        left = p[here, node]
        drafted = None if q is None else q[here, node]
        for child in (c for c in range(size) if parents[c] + 1 == node):
            token = tokens[here, child]
            weights = _one_hot(token, p.shape[-1]) if drafted is None else drafted
            row = np.arange(len(here))
            passed = accepts(accept[here, child], left[row, token], weights[row, token])
            at[here[passed]] = child + 1
            emitted[here[passed], depths[node]] = token[passed]
            failed = ~passed
            here = here[failed]
            left = residual(left[failed], weights[failed])
            drafted = None if drafted is None else without(weights[failed], token[failed])
        emitted[here, depths[node]] = categorical(left, last[here, node])
    return emitted, at


def accepts(u: F64, p: F64, q: F64) -> npt.NDArray[np.bool_]:
    """u < p / q, written so that q = 0 divides nothing."""
    return u * q < p


def residual(p: F64, q: F64) -> F64:
    """norm(max(0, p - q)) [R, V]; rows where nothing is left keep p."""
    rest = np.maximum(p - q, 0)
    mass = rest.sum(axis=-1, keepdims=True)
    shares: F64 = np.where(mass > 0, rest / np.where(mass > 0, mass, 1), p)
    return shares


def without(q: F64, token: I64) -> F64:
    """q [R, V] without one token [R] per row, renormalized (zero where it was the only one)."""
    rest = q.copy()
    rest[np.arange(len(rest)), token] = 0
    mass = rest.sum(axis=-1, keepdims=True)
    rest /= np.where(mass > 0, mass, 1)
    return rest


def categorical(p: F64, u: F64) -> I64:
    """Inverse CDF of each row of p [R, V] at u [R]; a token of probability 0 is never drawn."""
    sums = np.cumsum(p, axis=-1)
    index = (sums <= (u * sums[:, -1])[:, None]).sum(axis=-1)
    last_positive = p.shape[-1] - 1 - (p[:, ::-1] > 0).argmax(axis=-1)
    token: I64 = np.minimum(index, last_positive).astype(np.int64)
    return token


def _one_hot(token: I64, vocab: int) -> F64:
    hot: F64 = (token[:, None] == np.arange(vocab)).astype(np.float64)
    return hot


def rejection_noise(
    parents: Sequence[int], seeds: npt.ArrayLike, sample_indices: npt.ArrayLike, positions: npt.ArrayLike
) -> tuple[F64, F64]:
    """accept [R, N] and last [R, N + 1] for R rows whose next tokens are at `positions` [R].

    Keyed by position as all noise is; siblings are told apart by their order. The drafter must
    draw from Stream.DRAFT.
    """
    depths, orders = [0], []
    for child, parent in enumerate(parents):
        depths.append(depths[parent + 1] + 1)
        orders.append(sum(earlier == parent for earlier in parents[:child]))
    at = np.asarray(positions, np.int64)[:, None] + np.array(depths)
    seed, sample = np.asarray(seeds, np.uint64)[:, None], np.asarray(sample_indices)[:, None]
    last = uniform(seed, sample, at, Stream.TARGET)
    accept = uniform(seed, sample, at[:, 1:] - 1, Stream.ACCEPT, np.array(orders, np.uint64))
    return accept, last
