"""KVCache.move_slots: what lies in the target is, byte for byte, what would have been stored there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import AttentionSpec, Inputs, KVSpec, Rows, Tensor
from octavo.kernels.program import Buffer
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.select import native_available
from octavo.kernels.split_kv import SplitKVCache
from support.kernels import limits_of, normal

BACKENDS: dict[str, Any] = {"reference": ReferenceBackend()}
if native_available():
    from octavo.kernels.cpu import CpuBackend

    BACKENDS["cpu"] = CpuBackend()
PAGES = 3


def stored(name: str, spec: KVSpec, page_size: int, slots: list[int], qkv: Any) -> Any:
    """A cache in which these tokens lie in these slots."""
    backend, count = BACKENDS[name], len(slots)
    cache = backend.kv_cache([spec, spec], PAGES, page_size)
    attention = AttentionSpec(spec.num_kv_heads, spec.num_kv_heads, spec.head_dim, spec.v_head_dim, 1.0)
    each = np.arange(count + 1, dtype=np.int32)
    batch = ForwardBatch(
        token_ids=each[:-1], positions=each[:-1] * 0, slots=np.array(slots, np.int32), query_start=each,
        context_lens=each[:-1] * 0 + 1, page_tables=np.zeros((count, 1), np.int32), sampled=each[:0],
    )  # fmt: skip
    ops = backend.eager(batch, limits_of(batch)) if name == "cpu" else backend.ops
    x = Tensor(Rows.TOKENS, qkv.shape[1], qkv)
    if name == "cpu":
        x = ops.tensor(qkv, Buffer(Rows.TOKENS, qkv.shape[1]))
    for index in range(2):
        ops.rotary_append(Inputs(batch), x, cache.layer(index), attention, None)
    return cache


def contents(cache: Any) -> list[bytes]:
    return [cache.read_page(page).tobytes() for page in range(PAGES)]


@given(
    st.sampled_from(list(BACKENDS)),
    st.sampled_from(["f32", "f16", "bf16", "int8", "int16"]),
    st.sampled_from([1, 3, 4, 16]),
    st.sampled_from([(16, 16), (8, 24), (6, 10)]),
    st.integers(0, 2**32),
)
@settings(max_examples=80, deadline=None)
def test_a_moved_token_lies_as_if_it_had_been_stored_there(
    name: str, dtype: str, page_size: int, dims: tuple[int, int], seed: int
) -> None:
    """One after another, so that a target may have been a source; other tokens stay as they are."""
    rng = np.random.default_rng(seed)
    spec = KVSpec(2, *dims, dtype)
    slots = rng.permutation(PAGES * page_size)[: min(5, PAGES * page_size)].tolist()
    qkv = normal(rng, len(slots), 4 * dims[0] + 2 * dims[1])
    pairs = list(zip(slots[1:], slots[:-1], strict=True))  # each to where the one before it lay
    moved = stored(name, spec, page_size, slots, qkv)
    moved.move_slots(pairs)
    order = [*range(1, len(slots)), len(slots) - 1]
    assert contents(moved) == contents(stored(name, spec, page_size, slots, qkv[order]))


def test_a_slot_outside_is_refused() -> None:
    for name, backend in BACKENDS.items():
        cache = backend.kv_cache([KVSpec(1, 16, 16, "f32")], PAGES, 4)
        with pytest.raises((ValueError, IndexError)):
            cache.move_slots([(0, 4 * PAGES)])
        assert name


def test_two_memories_move_their_own() -> None:
    whole, windowed = KVSpec(1, 16, 16, "f32"), KVSpec(1, 16, 16, "f32", window=8)
    cache: Any = SplitKVCache(ReferenceBackend(), [whole, windowed], 2, 2, 4)
    for index in range(2):
        cache.layer(index).k.pages[0, 0, 3] = index + 1
    cache.move_slots([(3, 4)])
    assert cache.layer(0).k.pages[1, 0, 0, 0] == 1
    assert cache.layer(1).k.pages[1, 0, 0, 0] == 0
