"""Triton kernels of the draw: what sampling/sampler.py specifies, over logits that stay on the device.

    peaks -> head -> top_k -> sums -> top_p -> sums -> race        a batch that only wants the likeliest
    (row, chunks)  (row)                                           token ends after head

Vocabularies are read in chunks of 256 ids, as the race and its sums are defined; sums are in float64,
in the order of sampling/distribution.py. Nothing is sorted: top_k and top_p look for a threshold by
bisecting the bits of the weights, over the few candidates that can matter. The kernels must be launched
with enable_fp_fusion=False: each line is one rounded operation, as in sampling/elementary.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

CHUNK = tl.constexpr(256)
LANES = tl.constexpr(16)
NO_TOKEN, NOT_A_NUMBER, INFINITE = tl.constexpr(-1), tl.constexpr(-2), tl.constexpr(-3)
"""Written in a token's place where a row allows no draw (sampling/native.py has their texts)."""

_LOWEST = tl.constexpr(-87.33)
_ROUNDING = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it leaves an integer in f32, rounded to even
_NOBODY = tl.constexpr(2**31 - 1)


@triton.jit
def exp_negative(x):
    """elementary.exp_negative."""
    bounded = tl.maximum(x, _LOWEST)
    n = (bounded * 1.44269504 + _ROUNDING) - _ROUNDING
    r = bounded - n * 0.693145752
    r = r - n * 1.42860677e-6
    p = r * 1.393366939e-3
    p = (p + 8.363192819e-3) * r
    p = (p + 4.166646474e-2) * r
    p = (p + 1.666657690e-1) * r
    p = p + 5.000000013e-1
    p = p * (r * r)
    p = p + r
    p = p + 1.0
    p = p * ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(x < _LOWEST, 0.0, p)


@triton.jit
def log(x):
    """elementary.log of float64."""
    bits = x.to(tl.int64, bitcast=True)
    m = ((bits & 0xFFFFFFFFFFFFF) | 0x3FE0000000000000).to(tl.float64, bitcast=True)
    small = m < 0.7071067811865476
    e = (((bits >> 52) & 0x7FF) - 1022 - small.to(tl.int64)).to(tl.float64)
    m = tl.where(small, m + m, m)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = z * (2 / 21)
    for i in tl.static_range(9):
        p = (p + 2 / (19 - 2 * i)) * z
    p = (p + 2.0) * s
    return e * 0.6931471803691238 + (p + e * 1.9082149292705877e-10)


@triton.jit
def exponential(seed, sample, position, level: tl.constexpr, place):
    """noise.race_noise: the Exp(1) variates of these places [N], at level 1 (chunks) or 2 (tokens)."""
    last = ((place // 2) * 256 + level * 16).to(tl.uint32)
    low = (last * 0) + (position & 0xFFFFFFFF).to(tl.uint32)
    high = (last * 0) + (position >> 32).to(tl.uint32)
    index = (last * 0) + sample.to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(seed, low, high, index, last)
    odd = place % 2 == 1
    upper = tl.where(odd, w2, w0) >> 5
    lower = tl.where(odd, w3, w1) >> 6
    u = (upper.to(tl.float64) * 67108864.0 + lower.to(tl.float64)) * 1.1102230246251565e-16
    return 0.0 - log(1.0 - u)


@triton.jit
def halve(x, HALF: tl.constexpr):
    """[G, 2 HALF] -> [G, HALF]: the first half plus the second."""
    a, b = tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, HALF)), (0, 2, 1)))
    return a + b


@triton.jit
def fold(x):
    """Add up 16 lanes [G, 16] by halves: 8, 4, 2, 1. [G]."""
    return tl.reshape(halve(halve(halve(halve(x, 8), 4), 2), 1), (x.shape[0],))


@triton.jit
def first(times, index):
    """(the index of the smallest, of equals the lowest)."""
    return tl.min(tl.where(times == tl.min(times, axis=0), index, _NOBODY), axis=0)


@triton.jit
def weigh(z, inside, peak, inverse):
    """Weights of tokens, 0 outside of the vocabulary."""
    v = tl.load(z, mask=inside, other=float("-inf"))
    return tl.where(inside, exp_negative((v - peak) * inverse), 0.0)


@triton.jit
def keeps(w, ids, threshold, last):
    """Whether a token is kept: above the threshold, or at it with an id up to last."""
    return (w > threshold) | ((w == threshold) & (ids <= last))


# --- edits ---------------------------------------------------------------------------------------------


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


# --- the draw ------------------------------------------------------------------------------------------


@triton.jit
def peaks_kernel(z, peak, best, stride, vocab, chunks, GROUP: tl.constexpr):
    """Of each chunk: its largest logit (NaN if it holds one) and the lowest id that has it."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
    ids = chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    inside = ids < vocab
    v = tl.load(z + row * stride + ids, mask=inside, other=float("-inf"))
    broken = tl.max((v != v).to(tl.int32), axis=1)
    v = tl.where(v != v, float("-inf"), v)
    top = tl.max(v, axis=1)
    at = tl.min(tl.where((v == top[:, None]) & inside, ids, _NOBODY), axis=1)
    tl.store(peak + row * chunks + chunk, tl.where(broken > 0, float("nan"), top), mask=chunk < chunks)
    tl.store(best + row * chunks + chunk, at, mask=chunk < chunks)


@triton.jit
def verdict(peaks):
    """0 where the largest of these can be drawn, else what is wrong."""
    broken = tl.max((peaks != peaks).to(tl.int32), axis=0)
    top = tl.max(tl.where(peaks != peaks, float("-inf"), peaks), axis=0)
    code = tl.where(top == float("inf"), INFINITE, tl.where(top == float("-inf"), NO_TOKEN, 0))
    return tl.where(broken > 0, NOT_A_NUMBER, code)


@triton.jit
def leave(token, row, owner, tokens, latest):
    """A drawn token: where the host reads it, and where its row's next step finds it."""
    tl.store(tokens + row, token)
    mine = tl.load(owner + row)
    if mine >= 0:
        tl.store(latest + mine, tl.maximum(token, 0))  # (a code is no token; the row ends anyway)


@triton.jit
def head_kernel(
    raw_peak, peak, best, min_p, code, top, likeliest, threshold, last, owner, tokens, latest, chunks, vocab,
    GREEDY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of each row: whether it can be drawn, its largest logit and who has it. GREEDY: that is the token."""
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    at = row.to(tl.int64) * chunks + c
    peaks = tl.load(peak + at, mask=c < chunks, other=float("-inf"))
    wrong = verdict(tl.load(raw_peak + at, mask=c < chunks, other=float("-inf")))
    wrong = tl.where(wrong < 0, wrong, verdict(peaks))
    peaks = tl.where(peaks != peaks, float("-inf"), peaks)
    highest = tl.max(peaks, axis=0)
    ids = tl.load(best + at, mask=c < chunks, other=_NOBODY)
    token = tl.min(tl.where(peaks == highest, ids, _NOBODY), axis=0)
    token = tl.where(wrong < 0, wrong, token)
    if GREEDY:
        leave(token, row, owner, tokens, latest)
    else:
        tl.store(code + row, wrong)
        tl.store(top + row, highest)
        tl.store(likeliest + row, token)
        tl.store(threshold + row, tl.load(min_p + row))
        tl.store(last + row, vocab)


@triton.jit
def gather(z, scratch, vocab, peak, inverse, threshold, last, bound, BLOCK: tl.constexpr):
    """Write the kept weights that reach bound, one after another. Returns how many there are."""
    count = 0
    for start in range(0, vocab, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        w = weigh(z + ids, ids < vocab, peak, inverse)
        wanted = (ids < vocab) & keeps(w, ids, threshold, last) & (w >= bound)
        place = tl.cumsum(wanted.to(tl.int32), axis=0)
        tl.store(scratch + count + place - 1, w, mask=wanted)
        count += tl.sum(wanted.to(tl.int32), axis=0)
    tl.debug_barrier()
    return count


@triton.jit
def count_from(scratch, count, bits, BLOCK: tl.constexpr):
    """How many candidates are at least the float with these bits."""
    value = bits.to(tl.float32, bitcast=True)
    found = 0
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        w = tl.load(scratch + i, mask=i < count, other=-1.0)
        found += tl.sum((w >= value).to(tl.int32), axis=0)
    return found


@triton.jit
def mass_from(scratch, count, bits, BLOCK: tl.constexpr):
    """Their sum."""
    value = bits.to(tl.float32, bitcast=True)
    found = tl.zeros((), tl.float64)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        w = tl.load(scratch + i, mask=i < count, other=-1.0)
        found += tl.sum(tl.where(w >= value, w, 0.0).to(tl.float64), axis=0)
    return found


@triton.jit
def id_of_tie(z, vocab, peak, inverse, value, last, ties, BLOCK: tl.constexpr):
    """The id of the ties-th kept token whose weight is value."""
    seen, found = 0, -1
    for start in range(0, vocab, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        equal = (ids <= last) & (ids < vocab) & (weigh(z + ids, ids < vocab, peak, inverse) == value)
        place = seen + tl.cumsum(equal.to(tl.int32), axis=0)
        found = tl.maximum(found, tl.max(tl.where(equal & (place <= ties), ids, -1), axis=0))
        seen += tl.sum(equal.to(tl.int32), axis=0)
    return found


@triton.jit
def top_k_kernel(
    z, scratch, peak, code, top, inverse, top_k, threshold, last, stride, vocab, chunks,
    BLOCK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Raise the threshold to the k-th largest weight, if min_p left more."""
    row = tl.program_id(0)
    k, inv = tl.load(top_k + row), tl.load(inverse + row)
    if (k > 0) & (k < vocab) & (inv > 0.0) & (tl.load(code + row) == 0):
        wide = row.to(tl.int64)
        z += wide * stride
        scratch += wide * vocab
        highest, low = tl.load(top + row), tl.load(threshold + row)
        # At least k weights reach the k-th largest of the chunks' maxima: the rest is not looked at.
        c = tl.arange(0, CHUNKS)
        maxima = weigh(peak + wide * chunks + c, c < chunks, highest, inv)
        below = tl.full((), 0, tl.int32)
        above = tl.full((), 0x3F800001, tl.int32)
        while above - below > 1:
            middle = below + (above - below) // 2
            value = middle.to(tl.float32, bitcast=True)
            if tl.sum(((maxima >= value) & (c < chunks)).to(tl.int32), axis=0) >= k:
                below = middle
            else:
                above = middle
        bound = tl.maximum(below.to(tl.float32, bitcast=True), low)
        count = gather(z, scratch, vocab, highest, inv, low, vocab, bound, BLOCK)
        if count >= k:
            below = bound.to(tl.int32, bitcast=True)
            above = tl.full((), 0x3F800001, tl.int32)
            while above - below > 1:
                middle = below + (above - below) // 2
                if count_from(scratch, count, middle, BLOCK) >= k:
                    below = middle
                else:
                    above = middle
            larger = count_from(scratch, count, below + 1, BLOCK)
            value = below.to(tl.float32, bitcast=True)
            tl.store(threshold + row, value)
            if count_from(scratch, count, below, BLOCK) > k:
                tl.store(last + row, id_of_tie(z, vocab, highest, inv, value, vocab, k - larger, BLOCK))


@triton.jit
def sums_kernel(
    z, sums, code, top, inverse, threshold, last, stride, vocab, chunks, GROUP: tl.constexpr
):  # fmt: skip
    """The sum of each chunk's kept weights (distribution.chunk_sums)."""
    row = tl.program_id(0)
    inv = tl.load(inverse + row)
    if (inv > 0.0) & (tl.load(code + row) == 0):
        highest, low, end = tl.load(top + row), tl.load(threshold + row), tl.load(last + row)
        chunk = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
        lanes = tl.zeros((GROUP, LANES), tl.float64)
        for step in range(CHUNK // LANES):
            ids = chunk[:, None] * CHUNK + step * LANES + tl.arange(0, LANES)[None, :]
            w = weigh(z + row.to(tl.int64) * stride + ids, ids < vocab, highest, inv)
            lanes += tl.where(keeps(w, ids, low, end), w, 0.0).to(tl.float64)
        tl.store(sums + row.to(tl.int64) * chunks + chunk, fold(lanes), mask=chunk < chunks)


@triton.jit
def top_p_kernel(
    z, scratch, sums, code, top, inverse, top_p, threshold, last, stride, vocab, chunks, BLOCK: tl.constexpr
):  # fmt: skip
    """Raise the threshold to the smallest of the fewest weights that reach top_p of what is kept."""
    row = tl.program_id(0)
    share, inv = tl.load(top_p + row), tl.load(inverse + row)
    if (share < 1.0) & (inv > 0.0) & (tl.load(code + row) == 0):
        wide = row.to(tl.int64)
        z += wide * stride
        scratch += wide * vocab
        highest, low, end = tl.load(top + row), tl.load(threshold + row), tl.load(last + row)
        whole = tl.zeros((), tl.float64)
        for c in range(chunks):
            whole += tl.load(sums + wide * chunks + c)
        # What lies below the floor adds up to less than may be missing (logits._top_p).
        floor = ((1.0 - share) * whole / vocab * (1.0 - 1e-6)).to(tl.float32)
        count = gather(z, scratch, vocab, highest, inv, low, end, floor, BLOCK)
        below = floor.to(tl.int32, bitcast=True)
        above = tl.full((), 0x3F800001, tl.int32)
        mass = tl.minimum(share * whole, mass_from(scratch, count, below, BLOCK))
        while above - below > 1:
            middle = below + (above - below) // 2
            if mass_from(scratch, count, middle, BLOCK) >= mass:
                below = middle
            else:
                above = middle
        value = below.to(tl.float32, bitcast=True)
        missing = mass - mass_from(scratch, count, below + 1, BLOCK)
        larger = count_from(scratch, count, below + 1, BLOCK)
        ties = count_from(scratch, count, below, BLOCK) - larger
        needed = tl.maximum(tl.ceil(missing / tl.maximum(value, 1e-38).to(tl.float64)), 1.0).to(tl.int32)
        end = tl.where(value > low, vocab, end)  # it was an end among weights that are dropped now
        if needed < ties:
            end = id_of_tie(z, vocab, highest, inv, value, end, needed, BLOCK)
        tl.store(threshold + row, value)
        tl.store(last + row, end)


@triton.jit
def race_kernel(
    z, sums, code, top, likeliest, inverse, threshold, last, seed, sample, position, owner, tokens, latest,
    stride, vocab, chunks, CHUNKS: tl.constexpr,
):  # fmt: skip
    """The race in two levels (distribution.draw); rows of temperature 0 take their likeliest token."""
    row = tl.program_id(0)
    wide = row.to(tl.int64)
    inv = tl.load(inverse + row)
    token = tl.load(likeliest + row)
    if (inv > 0.0) & (tl.load(code + row) == 0):
        key, which, where = tl.load(seed + row), tl.load(sample + row), tl.load(position + row).to(tl.int64)
        c = tl.arange(0, CHUNKS)
        rate = tl.load(sums + wide * chunks + c, mask=c < chunks, other=0.0)
        noise = exponential(key, which, where, 1, c)
        chunk = first(tl.where(rate > 0, noise / tl.where(rate > 0, rate, 1.0), float("inf")), c)
        place = tl.arange(0, CHUNK)
        ids = chunk * CHUNK + place
        w = weigh(z + wide * stride + ids, ids < vocab, tl.load(top + row), inv)
        kept = keeps(w, ids, tl.load(threshold + row), tl.load(last + row)) & (w > 0)
        noise = exponential(key, which, where, 2, place)
        member = tl.where(kept, w, 1.0).to(tl.float64)
        token = chunk * CHUNK + first(tl.where(kept, noise / member, float("inf")), place)
    leave(token, row, owner, tokens, latest)


# --- log-probabilities ---------------------------------------------------------------------------------


@triton.jit
def chunk_exp_kernel(z, peak, sums, asked, stride, vocab, chunks, GROUP: tl.constexpr):
    """The sum of each chunk's exp(z - its largest), for rows that ask for log-probabilities."""
    row = tl.program_id(0)
    if tl.load(asked + row) >= 0:
        wide = row.to(tl.int64)
        chunk = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
        highest = tl.load(peak + wide * chunks + chunk, mask=chunk < chunks, other=float("-inf"))
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
        heads = tl.load(peak + wide * chunks + c, mask=c < chunks, other=float("-inf"))
        ids = tl.load(best + wide * chunks + c, mask=c < chunks, other=_NOBODY)
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
                found = tl.min(tl.where(c == chunk, ids, _NOBODY), axis=0)
                tl.store(top_token + wide * most + n, found)
                tl.store(top_logprob + wide * most + n, v.to(tl.float64) - normalizer)
                i = chunk * CHUNK + tl.arange(0, CHUNK)
                others = tl.load(z + i, mask=i < vocab, other=float("-inf"))
                others = tl.where((others < v) | ((others == v) & (i > found)), others, float("-inf"))
                following = tl.max(others, axis=0)
                at = tl.min(tl.where(others == following, i, _NOBODY), axis=0)
                heads = tl.where(c == chunk, following, heads)
                ids = tl.where(c == chunk, at, ids)


@triton.jit
def feed_kernel(token_ids, sources, latest, count, BLOCK: tl.constexpr):
    """token_ids[t] = latest[sources[t]] where a source is named."""
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(sources + t, mask=t < count, other=-1)
    token = tl.load(latest + source, mask=source >= 0, other=0)
    tl.store(token_ids + t, token, mask=source >= 0)
