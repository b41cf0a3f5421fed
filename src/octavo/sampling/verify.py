"""The p/q test of drafted tokens: a node's next token from the target's distribution and the drafter's.

Leviathan et al. 2023, Chen et al. 2023; siblings: SpecInfer, Miao et al. 2024. What is drawn has the target's
distribution, and other bits than plain decoding, which draws by the noise of a position whatever was drafted
(runtime/drafted.py). So this is a mode for comparison: how often is a draft accepted by the field's test?

    p  what the row's next token is drawn from: temperature, penalties, masks and top_p are part of it
    q  what its drafted children were drawn from; of one that was chosen (a lookup, an argmax) 1 at itself
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from octavo.params import SampledToken
from octavo.sampling.elementary import F64
from octavo.sampling.noise import Stream, uniform
from octavo.sampling.sampler import RowError, Sampler
from octavo.sampling.sampling_batch import F32, SamplingBatch

I64 = npt.NDArray[np.int64]
Children = tuple[Sequence[int], Sequence[F64] | None]
"""Drafted children of a node, the eldest first: their tokens, and what each was drawn from; None: chosen."""


def next_tokens(p: F64, children: I64, q: F64 | None, accept: F64, last: F64) -> I64:
    """The next tokens [R] of R rows, each at a node with C drafted children.

    For a node's children in order:

    1. Child x is the next token if u < p(x) / q(x), strictly: p(x) = 0 never passes.
    2. Otherwise p becomes norm(max(0, p - q)), or stays if nothing is left of it.
    If no child has passed, the token is drawn from p: the residual, or without children the bonus.

    A token that is drawn from a residual is no child that was refused: there p(x) < q(x).

    Args:
        p [R, V]: the target's distribution after the node.
        children [R, C]: drafted tokens; those of one row differ (Draft checks it).
        q [R, C, V]: the distribution that each child was drawn from, without its elder siblings. None: they
            were not drawn but chosen, so q is 1 at each.
        accept [R, C], last [R]: uniforms, independent of each other and of the drafter's (noise_of).
    """
    left, found = p, np.full(len(p), -1, np.int64)
    row = np.arange(len(p))
    for order in range(children.shape[1]):
        token = children[:, order]
        weights = one_hot(token, p.shape[1]) if q is None else q[:, order]
        passed = accepts(accept[:, order], left[row, token], weights[row, token]) & (found < 0)
        found[passed] = token[passed]
        left = residual(left, weights)
    drawn = categorical(left, last)
    return np.where(found < 0, drawn, found)


def accepts(u: F64, p: F64, q: F64) -> npt.NDArray[np.bool_]:
    """u < p / q, written so that q = 0 divides nothing."""
    return u * q < p


def residual(p: F64, q: F64) -> F64:
    """norm(max(0, p - q)) [R, V]; rows where nothing is left keep p."""
    rest = np.maximum(p - q, 0)
    mass = rest.sum(axis=-1, keepdims=True)
    shares: F64 = np.where(mass > 0, rest / np.where(mass > 0, mass, 1), p)
    return shares


def categorical(p: F64, u: F64) -> I64:
    """Inverse CDF of each row of p [R, V] at u [R]; a token of probability 0 is never drawn."""
    sums = np.cumsum(p, axis=-1)
    index = (sums <= (u * sums[:, -1])[:, None]).sum(axis=-1)
    last_positive = p.shape[-1] - 1 - (p[:, ::-1] > 0).argmax(axis=-1)
    token: I64 = np.minimum(index, last_positive).astype(np.int64)
    return token


def one_hot(token: I64, vocab: int) -> F64:
    """[R, V]: 1 at each row's token [R]."""
    hot: F64 = (token[:, None] == np.arange(vocab)).astype(np.float64)
    return hot


def noise_of(
    seeds: npt.ArrayLike, sample_indices: npt.ArrayLike, positions: npt.ArrayLike, count: int
) -> tuple[F64, F64]:
    """accept [R, count] and last [R] for rows whose next tokens are at `positions` [R].

    Keyed by position as all noise is; siblings are told apart by their order. Independent of what plain
    decoding draws by (noise.race_noise) and of Stream.DRAFT, which a drafter that draws must draw from.
    """
    seed, sample = np.asarray(seeds, np.uint64), np.asarray(sample_indices)
    at = np.asarray(positions, np.int64)
    accept = uniform(seed[:, None], sample[:, None], at[:, None], Stream.ACCEPT, np.arange(count)[None])
    return accept, uniform(seed, sample, at, Stream.TARGET)


def tokens_by_rejection(
    sampler: Sampler, logits: F32, batch: SamplingBatch, children: Sequence[Children]
) -> list[SampledToken | RowError]:
    """The next token of each row of the batch, at a node with drafted children.

    Args:
        logits [R, V]: after the nodes.
        children [R]: of each node one or more.
    """
    p, errors = sampler.probabilities(logits, batch)
    errors |= {row: RowError(message) for row, message in batch.errors.items()}
    alike: dict[tuple[int, bool], list[int]] = {}  # rows that are worked out together
    for row, (drafted, q) in enumerate(children):
        if row not in errors:
            alike.setdefault((len(drafted), q is None), []).append(row)
    tokens = np.full(len(children), -1, np.int64)
    for rows in alike.values():
        tokens[rows] = _tokens_of(rows, p, batch, [children[row] for row in rows])
    drawn: list[SampledToken | RowError] = []
    for row, token in enumerate(tokens.tolist()):
        if row in errors:
            drawn.append(errors[row])
        elif (count := int(batch.rows["num_logprobs"][row])) < 0:
            drawn.append(SampledToken(token))
        else:
            drawn += sampler.score(logits[row : row + 1], [token], count)
    return drawn


def _tokens_of(rows: list[int], p: F64, batch: SamplingBatch, children: Sequence[Children]) -> I64:
    """Of rows of tokens_by_rejection() whose nodes have equally many children, all drawn or all chosen."""
    drafted = np.array([tokens for tokens, _ in children], np.int64)
    told = [np.stack(q) for _, q in children if q is not None]
    records, positions = batch.rows[rows], batch.positions[rows]
    accept, last = noise_of(records["seed"], records["sample_index"], positions, drafted.shape[1])
    return next_tokens(p[rows], drafted, np.stack(told) if told else None, accept, last)
