"""The arithmetic of the reference ops: plain functions of arrays."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from octavo.kernels.ops import (
    F32,
    Activation,
    AttentionSpec,
    Routing,
    Sight,
)
from octavo.kernels.weight import BLOCK

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


ROWS = 8


def round_to_int8(x: F32, order: I32 | None = None) -> F32:
    """x [..., K] rounded to int8 per block of 32 (in Weight.order) and widened: d q, d = max|x| / 127."""
    if order is not None:
        return round_to_int8(x[..., order])[..., np.argsort(order)]
    blocks = x.reshape(-1, BLOCK)
    with np.errstate(invalid="ignore"):
        d = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
        q = np.rint(np.divide(blocks, d, out=np.zeros_like(blocks), where=d != 0))
        return np.asarray(q * d, np.float32).reshape(x.shape)


def product(x: F32, weight: F32, exact: bool = True) -> F32:
    """x W^T in tiles of ROWS rows, the last one padded with zeros; without `exact` as fast as BLAS can.

    BLAS chooses its order of additions by shape, and in tiles of 12 and more by the row's place in them;
    small tiles of one shape keep a row's bits (nearly) its own.
    """
    if not exact:
        return np.asarray(x @ weight.T, np.float32)
    y = np.empty((x.shape[0], weight.shape[0]), np.float32)
    for first in range(0, x.shape[0], ROWS):
        tile = x[first : first + ROWS]
        full = np.zeros_like(x, shape=(ROWS, x.shape[1]))
        full[: len(tile)] = tile
        y[first : first + ROWS] = (full @ weight.T)[: len(tile)]
    return y


def sigmoid(x: F32) -> F32:
    e = np.exp(-np.abs(x))
    y = np.where(x >= 0, np.float32(1), e)
    e += 1
    y /= e
    return y


def erf(x: F32) -> F32:
    """The C library's erf, element by element: the usual polynomials are only good to 1.5e-7."""
    return np.array([math.erf(v) for v in x.ravel()], np.float32).reshape(x.shape)


def activate(x: F32, activation: Activation) -> F32:
    match activation:
        case Activation.NONE:
            return x
        case Activation.SILU:
            return x * sigmoid(x)
        case Activation.GELU:
            return np.asarray(x * (0.5 * (1 + erf(x / np.float32(np.sqrt(2))))), np.float32)
        case Activation.GELU_TANH:
            inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
            return np.asarray(np.float32(0.5) * x * (1 + np.tanh(inner)), np.float32)
        case Activation.RELU:
            return np.maximum(x, 0)


def rms_norm(x: F32, gain: F32, eps: float) -> F32:
    mean_square = np.square(x).mean(axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(mean_square + np.float32(eps)) * gain, np.float32)


def best(scores: F32, k: int) -> I64:
    """Indices of the k largest of each row, [T, n] -> [T, k], ascending. NaN is greater than all else."""
    order = np.lexsort((-scores, ~np.isnan(scores)), axis=1)  # stable: of equals the lower come first
    return np.sort(order[:, :k], axis=1)


def route(logits: F32, k: int, renormalize: bool, routing: Routing) -> tuple[I64, F32]:
    """Chosen experts [T, k], ascending, and their shares."""
    if routing.sigmoid:
        p = sigmoid(logits)
    else:
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        p = shifted / shifted.sum(axis=1, keepdims=True)
    score = p if routing.bias is None else p + routing.bias
    if routing.top_groups < routing.groups:
        grouped = score.reshape(len(score), routing.groups, score.shape[1] // routing.groups)
        worth = np.sort(grouped, axis=2)[:, :, ::-1][:, :, : routing.group_top].sum(axis=2)
        allowed = np.zeros(worth.shape, bool)
        np.put_along_axis(allowed, best(worth, routing.top_groups), True, axis=1)
        inside = np.repeat(allowed, grouped.shape[2], axis=1)
        score = np.where(inside, score, np.float32(-np.inf if routing.sigmoid else 0))
        p = p if routing.sigmoid else np.where(inside, p, np.float32(0))
    chosen = best(score, k)
    share = np.take_along_axis(p, chosen, axis=1)
    if renormalize:
        share = share / (share.sum(axis=1, keepdims=True) + np.float32(1e-20))
    return chosen, share * np.float32(routing.scale)


def norm_heads(x: F32, gain: F32, eps: float) -> F32:
    """x [T, heads, D]: each head by itself for a gain [D], all together for a gain [heads * D]."""
    together = x.reshape(len(x), -1, gain.shape[0])
    return rms_norm(together, gain, eps).reshape(x.shape)


def rotate(x: F32, cos: F32, sin: F32, interleaved: bool) -> F32:
    """x [T, heads, D] rotated over its first 2 * cos.shape[1] elements; cos, sin [T, dim / 2]."""
    half = cos.shape[1]
    y = x.copy()
    first, second = (
        (np.s_[..., 0 : 2 * half : 2], np.s_[..., 1 : 2 * half : 2])
        if interleaved
        else (np.s_[..., :half], np.s_[..., half : 2 * half])
    )
    a, b, c, s = x[first], x[second], cos[:, None, :], sin[:, None, :]
    y[first], y[second] = a * c - b * s, b * c + a * s
    return y


def attend(
    q: F32,
    k: F32,
    v: F32,
    positions: I32,
    spec: AttentionSpec,
    tree: npt.NDArray[np.bool_] | None = None,
    exact: bool = True,
) -> F32:
    """q [T, Hq, D] at positions [T] over k, v [L, Hkv, D] at positions 0..L-1: [T, Hq, Dv].

    tree [T, T]: the last T of k and v are the queries' own, at their positions, and seen as it says.
    exact: a row's bits are its own; without, BLAS is many times faster over a long text.
    """
    group = spec.num_heads // spec.num_kv_heads
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    if exact:
        scores = np.einsum("thd,lhd->htl", q, k) * np.float32(spec.scale)
    else:
        scores = (q.transpose(1, 0, 2) @ k.transpose(1, 2, 0)) * np.float32(spec.scale)
    if spec.softcap is not None:
        scores = np.float32(spec.softcap) * np.tanh(scores / np.float32(spec.softcap))
    at = np.arange(k.shape[0])
    if tree is not None:  # its tokens are stored in the step's order, whatever their positions
        at[len(at) - len(positions) :] = positions
    distance = at[None, :] - positions[:, None]
    if spec.alibi_slopes is not None:
        scores = scores + spec.alibi_slopes[:, None, None] * distance[None].astype(np.float32)
    if spec.relative_bias is not None:
        reach = spec.relative_bias.shape[1] // 2
        scores = scores + spec.relative_bias[:, np.clip(distance, -reach, reach) + reach]
    hidden = (distance > 0) & (spec.sight is Sight.CAUSAL)
    if spec.window is not None:
        hidden = hidden | (distance <= -spec.window)
    if tree is not None:  # siblings share a position, which therefore hides none from another
        hidden[:, len(at) - len(positions) :] |= ~tree
    scores = np.where(hidden[None], np.float32(-np.inf), scores)
    top = scores.max(axis=2, keepdims=True)
    if spec.sinks is not None:  # one more score, which may be the largest, of a value that is zero
        top = np.maximum(top, spec.sinks[:, None, None])
    weights = np.exp(scores - top)
    total = weights.sum(axis=2, keepdims=True)
    if spec.sinks is not None:
        total = total + np.exp(spec.sinks[:, None, None] - top)
    weights /= total
    if exact:
        return np.asarray(np.einsum("htl,lhd->thd", weights, v), np.float32)
    return np.asarray((weights @ v.transpose(1, 0, 2)).transpose(1, 0, 2), np.float32)
