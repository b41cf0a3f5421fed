"""Triton kernels of the draw: what sampling/sampler.py specifies, over logits that stay on the device.

    peaks -> head -> top_k -> sums -> top_p -> sums [-> typical -> sums] -> race
    (row, chunks)  (row): a batch that only wants the likeliest token ends here

Vocabularies are read in chunks of 256 ids, as the race and its sums are defined; sums are in float64,
in the order of sampling/distribution.py. Nothing is sorted: top_k and top_p look for a threshold by
bisecting the bits of the weights, over the few candidates that can matter. The kernels must be launched
with enable_fp_fusion=False: each line is one rounded operation, as in sampling/elementary.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.kernels.cuda.draw_math import (
    CHUNK,
    INFINITE,
    LANES,
    NO_TOKEN,
    NOBODY,
    NOT_A_NUMBER,
    STREAM_AGAIN,
    exponential,
    first,
    fold,
    keeps,
    log,
    of_chunks,
    weigh,
)


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
    at = tl.min(tl.where((v == top[:, None]) & inside, ids, NOBODY), axis=1)
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
    raw_peak, peak, best, min_p, code, top, likeliest, threshold, last, upper, owner, tokens, latest, chunks,
    vocab,
    GREEDY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of each row: whether it can be drawn, its largest logit and who has it. GREEDY: that is the token."""
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    peaks = of_chunks(peak, row, c, chunks, float("-inf"))
    wrong = verdict(of_chunks(raw_peak, row, c, chunks, float("-inf")))
    wrong = tl.where(wrong < 0, wrong, verdict(peaks))
    peaks = tl.where(peaks != peaks, float("-inf"), peaks)
    highest = tl.max(peaks, axis=0)
    ids = of_chunks(best, row, c, chunks, NOBODY)
    token = tl.min(tl.where(peaks == highest, ids, NOBODY), axis=0)
    token = tl.where(wrong < 0, wrong, token)
    if GREEDY:
        leave(token, row, owner, tokens, latest)
    else:
        tl.store(code + row, wrong)
        tl.store(top + row, highest)
        tl.store(likeliest + row, token)
        tl.store(threshold + row, tl.load(min_p + row))
        tl.store(last + row, vocab)
        tl.store(upper + row, 1.0)  # (no weight is above it)


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
def id_of_tie(z, end, peak, inverse, value, ties, BLOCK: tl.constexpr):
    """The id of the ties-th token before the end whose weight is value."""
    seen, found = 0, -1
    for start in range(0, end, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        equal = (ids < end) & (weigh(z + ids, ids < end, peak, inverse) == value)
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
        if count >= k:  # else min_p has left fewer than k already
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
            if count_from(scratch, count, below, BLOCK) > k:  # of equal weights the lower ids are kept
                tl.store(last + row, id_of_tie(z, vocab, highest, inv, value, k - larger, BLOCK))


@triton.jit
def sums_kernel(
    z, sums, code, top, inverse, threshold, last, upper, stride, vocab, chunks, GROUP: tl.constexpr,
    LOGS: tl.constexpr,
):  # fmt: skip
    """The sum of each chunk's kept weights, LOGS: times their logs (distribution.chunk_sums)."""
    row = tl.program_id(0)
    inv = tl.load(inverse + row)
    if (inv > 0.0) & (tl.load(code + row) == 0):
        highest, low, end = tl.load(top + row), tl.load(threshold + row), tl.load(last + row)
        most = tl.load(upper + row)
        chunk = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
        lanes = tl.zeros((GROUP, LANES), tl.float64)
        for step in range(CHUNK // LANES):
            ids = chunk[:, None] * CHUNK + step * LANES + tl.arange(0, LANES)[None, :]
            w = weigh(z + row.to(tl.int64) * stride + ids, ids < vocab, highest, inv)
            kept = keeps(w, ids, low, end) & (w <= most)
            if LOGS:
                some = tl.where(kept & (w > 0.0), w, 1.0).to(tl.float64)
                lanes += tl.where(kept & (w > 0.0), some * log(some), 0.0)
            else:
                lanes += tl.where(kept, w, 0.0).to(tl.float64)
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
        if needed < ties:  # of equal weights the lower ids are kept
            end = id_of_tie(z, tl.minimum(end + 1, vocab), highest, inv, value, needed, BLOCK)
        tl.store(threshold + row, value)
        tl.store(last + row, end)


@triton.jit
def mass_within(z, scratch, vocab, peak, inverse, bits, BLOCK: tl.constexpr):
    """The sum of the weights whose distance is at most the float with these bits."""
    value = bits.to(tl.float32, bitcast=True)
    found = tl.zeros((), tl.float64)
    for start in range(0, vocab, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        near = tl.load(scratch + ids, mask=ids < vocab, other=float("inf")) <= value
        w = weigh(z + ids, ids < vocab, peak, inverse)
        found += tl.sum(tl.where(near, w, 0.0).to(tl.float64), axis=0)
    return found


@triton.jit
def typical_kernel(
    z, scratch, sums, logs, code, top, inverse, typical_p, threshold, last, upper, stride, vocab, chunks,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Bound the kept weights from both sides, around the mean of their logs (logits._typical)."""
    row = tl.program_id(0)
    share, inv = tl.load(typical_p + row), tl.load(inverse + row)
    if (share < 1.0) & (inv > 0.0) & (tl.load(code + row) == 0):
        wide = row.to(tl.int64)
        z += wide * stride
        scratch += wide * vocab
        highest, low, end = tl.load(top + row), tl.load(threshold + row), tl.load(last + row)
        whole, mean = tl.zeros((), tl.float64), tl.zeros((), tl.float64)
        for c in range(chunks):
            whole += tl.load(sums + wide * chunks + c)
            mean += tl.load(logs + wide * chunks + c)
        mean = mean / whole
        for start in range(0, vocab, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            w = weigh(z + ids, ids < vocab, highest, inv)
            kept = (ids < vocab) & keeps(w, ids, low, end) & (w > 0.0)
            far = tl.abs(log(tl.where(kept, w, 1.0).to(tl.float64)) - mean).to(tl.float32)
            tl.store(scratch + ids, tl.where(kept, far, float("inf")), mask=ids < vocab)
        tl.debug_barrier()
        below = tl.full((), -1, tl.int32)
        above = tl.full((), 0x7F7FFFFF, tl.int32)
        while above - below > 1:
            middle = below + (above - below) // 2
            if mass_within(z, scratch, vocab, highest, inv, middle, BLOCK) >= share * whole:
                above = middle
            else:
                below = middle
        farthest = above.to(tl.float32, bitcast=True)
        least, most = tl.full((), 1.0, tl.float32), tl.full((), 0.0, tl.float32)
        for start in range(0, vocab, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            near = tl.load(scratch + ids, mask=ids < vocab, other=float("inf")) <= farthest
            w = weigh(z + ids, ids < vocab, highest, inv)
            least = tl.minimum(least, tl.min(tl.where(near, w, 1.0), axis=0))
            most = tl.maximum(most, tl.max(tl.where(near, w, 0.0), axis=0))
        tl.store(last + row, tl.where(least > low, vocab, end))  # (the end was one among lighter weights)
        tl.store(threshold + row, tl.maximum(least, low))
        tl.store(upper + row, most)


@triton.jit
def race_kernel(
    z, sums, code, top, likeliest, inverse, threshold, last, upper, seed, sample, position, owner, tokens,
    latest, top_k, top_p, typical_p, min_p, stride, vocab, chunks, AGAIN: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """The race in two levels (distribution.draw); rows of temperature 0 take their likeliest token.

    AGAIN: rows that nothing narrows were drawn without their mask before (sampler.Sampler, step 7).
    """
    row = tl.program_id(0)
    wide = row.to(tl.int64)
    inv = tl.load(inverse + row)
    token = tl.load(likeliest + row)
    if (inv > 0.0) & (tl.load(code + row) == 0):
        key, which, where = tl.load(seed + row), tl.load(sample + row), tl.load(position + row).to(tl.int64)
        stream = 0
        if AGAIN:
            free = (tl.load(top_k + row) == 0) & (tl.load(top_p + row) == 1.0) & (tl.load(min_p + row) == 0.0)
            free = free & (tl.load(typical_p + row) == 1.0)
            stream = tl.where(free, STREAM_AGAIN, 0)
        c = tl.arange(0, CHUNKS)
        rate = of_chunks(sums, row, c, chunks, 0.0)
        noise = exponential(key, which, where, stream, 1, c)
        chunk = first(tl.where(rate > 0, noise / tl.where(rate > 0, rate, 1.0), float("inf")), c)
        place = tl.arange(0, CHUNK)
        ids = chunk * CHUNK + place
        w = weigh(z + wide * stride + ids, ids < vocab, tl.load(top + row), inv)
        kept = keeps(w, ids, tl.load(threshold + row), tl.load(last + row)) & (w > 0)
        kept = kept & (w <= tl.load(upper + row))
        noise = exponential(key, which, where, stream, 2, place)
        member = tl.where(kept, w, 1.0).to(tl.float64)
        token = chunk * CHUNK + first(tl.where(kept, noise / member, float("inf")), place)
    leave(token, row, owner, tokens, latest)


@triton.jit
def choose_kernel(free, mask, words, inverse, top_k, top_p, typical_p, min_p, owner, tokens, latest):
    """Rows that nothing narrows take what they drew without their mask, where it allows that."""
    row = tl.program_id(0)
    drawn = tl.load(free + row)
    plain = (tl.load(top_k + row) == 0) & (tl.load(top_p + row) == 1.0) & (tl.load(min_p + row) == 0.0)
    plain = plain & (tl.load(typical_p + row) == 1.0)
    if plain & (tl.load(inverse + row) > 0.0) & (drawn >= 0):
        word = tl.load(mask + row.to(tl.int64) * words + drawn // 32)
        if (word >> (drawn % 32)) & 1 == 1:
            leave(drawn, row, owner, tokens, latest)


@triton.jit
def feed_kernel(token_ids, sources, latest, count, BLOCK: tl.constexpr):
    """token_ids[t] = latest[sources[t]] where a source is named."""
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(sources + t, mask=t < count, other=-1)
    token = tl.load(latest + source, mask=source >= 0, other=0)
    tl.store(token_ids + t, token, mask=source >= 0)
