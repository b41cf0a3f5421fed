"""The permutation behind a watermark's green lists: torch's on a CPU, without torch.

torch.randperm(n, generator=g) with g.manual_seed(seed), on a CPU, is the shuffle of Fisher and Yates with the
32-bit numbers of mt19937 (Matsumoto and Nishimura 1998), seeded with the seed's low 32 bits:

    order = 0 .. n-1;  for i = 0 .. n-2: swap order[i] with order[i + random() mod (n - i)]

So the first c places are known after c swaps. csrc/green_list.cpp does the same.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from octavo.kernels.draws import U32
from octavo.kernels.select import native_available


def green_list(seed: int, vocab_size: int, count: int) -> U32:
    """Bits [ceil(V / 32)]: that of t, t % 32 in word t // 32, is set where t is among the first `count`.

    Args:
        seed: its low 32 bits count.
        count: 0 <= count <= vocab_size.
    """
    bits = np.zeros(-(-vocab_size // 32), np.uint32)
    if native_available():
        native: Any = importlib.import_module("octavo.kernels._native")
        native.green_list(seed & 0xFFFFFFFF, vocab_size, count, bits)
        return bits
    return reference_green_list(seed, vocab_size, count)


def reference_green_list(seed: int, vocab_size: int, count: int) -> U32:
    """The same in Python."""
    generator: Any = np.random.MT19937()
    generator._legacy_seeding(seed & 0xFFFFFFFF)  # one number as the seed, as init_genrand takes it
    swaps = min(count, vocab_size - 1)
    done = np.arange(swaps, dtype=np.uint64)
    places = done + generator.random_raw(swaps) % (np.uint64(vocab_size) - done)
    order = list(range(vocab_size))
    for i, place in enumerate(places.tolist()):
        order[i], order[place] = order[place], order[i]
    chosen = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    chosen[order[:count]] = 1
    return np.packbits(chosen, bitorder="little").view("<u4").astype(np.uint32)
