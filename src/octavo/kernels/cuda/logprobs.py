"""Triton kernels of log-probabilities and ranks (sampling/sampler.score), after the draw."""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.kernels.cuda.draw_math import CHUNK, LANES, NOBODY, exp_negative, first, fold, log, of_chunks


@triton.jit
def chunk_exp_kernel(z, peak, sums, asked, stride, vocab, chunks, GROUP: tl.constexpr):
    """The sum of each chunk's exp(z - its largest), for rows that ask for log-probabilities."""
    row = tl.program_id(0)
    if tl.load(asked + row) >= 0:
        wide = row.to(tl.int64)
        chunk = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
        highest = of_chunks(peak, row, chunk, chunks, float("-inf"))
        highest = tl.where(highest == float("-inf"), 0.0, highest)
        lanes = tl.zeros((GROUP, LANES), tl.float64)
        for step in range(CHUNK // LANES):
            ids = chunk[:, None] * CHUNK + step * LANES + tl.arange(0, LANES)[None, :]
            v = tl.load(z + wide * stride + ids, mask=ids < vocab, other=float("-inf"))
            lanes += exp_negative(v - highest[:, None]).to(tl.float64)
        tl.store(sums + wide * chunks + chunk, fold(lanes), mask=chunk < chunks)


@triton.jit
def score_kernel(
    z, peak, best, sums, asked, tokens, logprob, rank, top_token, top_logprob, most, stride, vocab, chunks,
    BLOCK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """The drawn token's log-probability and rank, and the likeliest ones (sampler.score)."""
    row = tl.program_id(0)
    count, token = tl.load(asked + row), tl.load(tokens + row)
    if (count >= 0) & (token >= 0):
        wide = row.to(tl.int64)
        z += wide * stride
        c = tl.arange(0, CHUNKS)
        heads = of_chunks(peak, row, c, chunks, float("-inf"))
        ids = of_chunks(best, row, c, chunks, NOBODY)
        highest = tl.max(heads, axis=0)
        total = tl.zeros((), tl.float64)
        for chunk in range(chunks):
            factor = exp_negative(tl.load(peak + wide * chunks + chunk) - highest)
            total += tl.load(sums + wide * chunks + chunk) * factor.to(tl.float64)
        normalizer = highest.to(tl.float64) + log(total)
        value = tl.load(z + token)
        place = 1
        for start in range(0, vocab, BLOCK):
            i = start + tl.arange(0, BLOCK)
            v = tl.load(z + i, mask=i < vocab, other=float("-inf"))
            place += tl.sum((((v > value) | ((v == value) & (i < token))) & (i < vocab)).to(tl.int32), axis=0)
        tl.store(logprob + row, value.to(tl.float64) - normalizer)
        tl.store(rank + row, place)
        for n in range(tl.minimum(count, vocab)):
            v = tl.max(heads, axis=0)
            if v > float("-inf"):
                chunk = first(0.0 - heads, c)
                found = tl.min(tl.where(c == chunk, ids, NOBODY), axis=0)
                tl.store(top_token + wide * most + n, found)
                tl.store(top_logprob + wide * most + n, v.to(tl.float64) - normalizer)
                i = chunk * CHUNK + tl.arange(0, CHUNK)
                others = tl.load(z + i, mask=i < vocab, other=float("-inf"))
                others = tl.where((others < v) | ((others == v) & (i > found)), others, float("-inf"))
                following = tl.max(others, axis=0)
                at = tl.min(tl.where(others == following, i, NOBODY), axis=0)
                heads = tl.where(c == chunk, following, heads)
                ids = tl.where(c == chunk, at, ids)
