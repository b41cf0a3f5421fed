"""Triton kernels that change logits before the draw, as sampling/logits.py does: biases, bans, penalties."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def list_kernel(
    z, starts, tokens, values, repetition, frequency, presence, stride,
    MODE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row's listed tokens: MODE 0 adds values, 1 bans, 2 applies the penalties (logits.edit)."""
    row = tl.program_id(0)
    begin, end = tl.load(starts + row), tl.load(starts + row + 1)
    for start in range(begin, end, BLOCK):
        e = start + tl.arange(0, BLOCK)
        inside = e < end
        at = z + row.to(tl.int64) * stride + tl.load(tokens + e, mask=inside, other=0)
        v = tl.load(at, mask=inside, other=0.0)
        count = tl.load(values + e, mask=inside, other=0.0)
        if MODE == 0:
            v = v + count
        elif MODE == 1:
            v = tl.full((BLOCK,), float("-inf"), tl.float32)
        else:
            r = tl.load(repetition + row)
            v = tl.where(v > 0, tl.div_rn(v, tl.full((BLOCK,), 0.0, tl.float32) + r), v * r)
            v = v - tl.load(frequency + row) * count
            v = v - tl.where(count > 0, tl.load(presence + row), 0.0)
        tl.store(at, v, mask=inside)


@triton.jit
def mask_kernel(z, mask, stride, words, vocab, BLOCK: tl.constexpr):
    """Tokens whose bit is not set become -inf."""
    row = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = ids < vocab
    word = tl.load(mask + row * words + ids // 32, mask=inside, other=-1)
    banned = ((word >> (ids % 32)) & 1) == 0
    tl.store(z + row * stride + ids, tl.full((BLOCK,), float("-inf"), tl.float32), mask=inside & banned)


@triton.jit
def boost_kernel(z, bits, deltas, stride, words, vocab, BLOCK: tl.constexpr):
    """Tokens whose bit is set get the row's delta; a row of delta 0 stays as it is."""
    row = tl.program_id(0).to(tl.int64)
    delta = tl.load(deltas + row)
    if delta != 0.0:
        ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = ids < vocab
        word = tl.load(bits + row * words + ids // 32, mask=inside, other=0)
        chosen = inside & (((word >> (ids % 32)) & 1) == 1)
        at = z + row * stride + ids
        tl.store(at, tl.load(at, mask=chosen, other=0.0) + delta, mask=chosen)
