"""Pages of the native KV cache lie in runs: each page's bytes are its own, however many there are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kernels.cpu import CpuBackend
from octavo.kernels.ops import KVSpec

BACKEND = CpuBackend()
LAYERS = {
    "one": [KVSpec(1, 16, 16, "int16")],
    "different": [KVSpec(2, 16, 16, "int8"), KVSpec(3, 6, 10, "f16"), KVSpec(1, 40, 24, "f32")],
    "odd": [KVSpec(2, 7, 5, "int16"), KVSpec(1, 9, 9, "int8")],
    "large": [KVSpec(1, 512, 512, "f32")] * 2,
}


@given(
    st.sampled_from(list(LAYERS)),
    st.sampled_from([1, 3, 16]),
    st.sampled_from([1, 2, 15, 16, 17, 31, 40, 64, 100, 129]),  # the last run whole, and of a few pages
    st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_pages_are_written_read_and_copied(layers: str, page_size: int, num_pages: int, seed: int) -> None:
    cache = BACKEND.kv_cache(LAYERS[layers], num_pages, page_size)
    rng = np.random.default_rng(seed)
    pages = rng.integers(0, 256, (num_pages, cache.page_bytes), np.uint8)
    for page in rng.permutation(num_pages):
        cache.write_page(int(page), pages[page])
    assert cache.nbytes == pages.size

    def check() -> None:
        for page in range(num_pages):
            np.testing.assert_array_equal(cache.read_page(page), pages[page])

    check()
    # Some sources are targets: all are read before any is written.
    targets = rng.permutation(num_pages)[: num_pages // 2]
    sources = rng.integers(0, num_pages, len(targets))
    cache.copy_pages([(int(a), int(b)) for a, b in zip(sources, targets, strict=True)])
    pages[targets] = pages[sources]
    check()
    others = np.setdiff1d(np.arange(num_pages), targets)
    if len(others) and len(targets):
        cache.copy_pages([(int(others[0]), int(b)) for b in targets])
        pages[targets] = pages[others[0]]
        check()


def test_what_is_no_page_is_refused() -> None:
    cache = BACKEND.kv_cache(LAYERS["one"], 40, 16)
    data = cache.read_page(0)
    for page in (-1, 40):
        with pytest.raises(ValueError, match="a page to read lies outside the cache"):
            cache.read_page(page)
        with pytest.raises(ValueError, match="a page to write lies outside the cache"):
            cache.write_page(page, data)
    for wrong in (data[1:], data.view(np.int8), np.concatenate([data, data]), data.reshape(2, -1)):
        with pytest.raises(ValueError, match="a page's bytes is no array"):
            cache.write_page(0, wrong)
