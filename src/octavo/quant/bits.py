"""How GGML splits numbers of 4, 5 and 6 bits over bytes, and the two-level scales of its K-quants."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.kernels.weight import F32Array

U8 = npt.NDArray[np.uint8]


def packed(q: U8) -> U8:
    """[..., 32] numbers below 16 -> [..., 16] bytes as U4 has them: the first half low, the second high."""
    return q[..., :16] | q[..., 16:] << np.uint8(4)


def k_scales(blocks: npt.NDArray[Any]) -> tuple[F32Array, F32Array]:
    """Scales and minima [N, K / 32] of Q4_K and Q5_K: d s and -(dmin m), s and m being of 6 bits.

    The 12 bytes hold eight of each: s and m of groups 0-3 in the low 6 bits of bytes 0-3 and 4-7;
    of groups 4-7 the low nibbles and the high ones of bytes 8-11, with two more bits atop bytes
    0-3 and 4-7. Source: ggml-quants.c, get_scale_min_k4.
    """
    n, count = blocks.shape
    first, second, third = np.split(blocks["scales"], 3, axis=-1)
    six, four, top = np.uint8(63), np.uint8(15), np.uint8(6)
    s = [first & six, third & four | first >> top << np.uint8(4)]
    m = [second & six, third >> np.uint8(4) | second >> top << np.uint8(4)]
    d, dmin = (blocks[name].astype(np.float32)[:, :, None] for name in ("d", "dmin"))
    scale = d * np.concatenate(s, axis=-1).astype(np.float32)
    minimum = dmin * np.concatenate(m, axis=-1).astype(np.float32)
    return scale.reshape(n, count * 8), -minimum.reshape(n, count * 8)


def k_nibbles(q: npt.NDArray[Any]) -> U8:
    """[N, B, 128] bytes of Q4_K or Q5_K -> [N, B, 8, 32]: of each 32, the low nibbles, then the high."""
    chunks = q.reshape(*q.shape[:2], 4, 1, 32)
    both = np.concatenate([chunks & np.uint8(15), chunks >> np.uint8(4)], axis=3)
    return both.reshape(*q.shape[:2], 8, 32)
