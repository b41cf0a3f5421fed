"""Pages copied on the device, and to and from the host's: by one kernel, in the order of the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.step_plan import StepPlan
from octavo.kernels.ops import KVSpec, LateCopies, PageBytes
from octavo.kernels.select import kernels_hash
from support.cuda import interpreted

POOL, SWAP = 7, 3
PAGES = st.integers(0, POOL + SWAP - 1)


def filled(dtype: str, page_size: int = 4, head_dim: int = 8) -> Any:
    """Two layers of pages, each element a number of its own as far as its type can say."""
    cache = interpreted().kv_cache([KVSpec(1, head_dim, 6, dtype)] * 2, POOL, page_size, SWAP)
    rng = np.random.default_rng(0)
    for tensor in cache.tensors:
        tensor.copy_(tensor.new_tensor(rng.integers(-100, 100, tensor.shape)))
    return cache


def pages_of(cache: Any) -> list[bytes]:
    """The bytes of every page, the host's last."""
    device = [b"".join(t[page].numpy().tobytes() for t in cache.tensors) for page in range(POOL)]
    return device + [row.numpy().tobytes() for row in cache._host]


def plan(**moves: Any) -> StepPlan:
    """A step that only moves pages."""
    return StepPlan(0, (), (), (), **moves)


@settings(max_examples=25, deadline=None)
@given(
    pairs=st.lists(st.tuples(PAGES, PAGES), max_size=6, unique_by=lambda pair: pair[1]),
    dtype=st.sampled_from(["f32", "f16", "int8"]),
    shape=st.sampled_from([(4, 8), (1, 3), (3, 10)]),
    lot=st.sampled_from([1, 2, 64]),
)
def test_all_are_read_before_any_is_written(
    pairs: list[tuple[int, int]], dtype: str, shape: tuple[int, int], lot: int
) -> None:
    """Chains, swaps out and in, pages that stay; pages of odd sizes, moved byte by byte."""
    from octavo.kernels.cuda import kv

    cache = filled(dtype, *shape)
    cache.copy_pages([(page, POOL + page) for page in range(SWAP)])
    before = pages_of(cache)
    want = list(before)
    for source, target in pairs:
        want[target] = before[source]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv, "LOT", lot)
        cache.copy_pages(pairs)
    assert pages_of(cache) == want


@pytest.mark.parametrize("dtype", ["f32", "f16", "int8"])
def test_slots_are_moved_in_every_layer(dtype: str) -> None:
    """One after another: a target may have been a source."""
    moved, want = filled(dtype), filled(dtype)
    pairs = [(9, 2), (14, 9), (3, 3)]
    moved.move_slots(pairs)
    for tensor in want.tensors:
        for source, target in pairs:
            tensor[target // 4, :, target % 4] = tensor[source // 4, :, source % 4].clone()
    assert pages_of(moved)[:POOL] == pages_of(want)[:POOL]
    with pytest.raises(ValueError, match="a slot to move lies outside the cache"):
        moved.move_slots([(0, 4 * POOL)])


@pytest.mark.parametrize("dtype", ["f32", "f16", "int8"])
@pytest.mark.parametrize("shape", [(4, 8), (3, 10)])
def test_a_page_is_its_bytes(dtype: str, shape: tuple[int, int]) -> None:
    """Taken out it changes no more; put back, in whichever place, it is all of what it was."""
    cache = filled(dtype, *shape)
    assert isinstance(cache, PageBytes)
    before = pages_of(cache)
    taken = [cache.read_page(page) for page in range(POOL)]
    assert {len(data) for data in taken} == {cache.page_bytes} == {len(before[0])}
    cache.write_page(3, taken[5])
    assert pages_of(cache)[:POOL] == [before[5] if page == 3 else before[page] for page in range(POOL)]
    for page, data in enumerate(taken):
        cache.write_page(page, data)
    assert pages_of(cache)[:POOL] == before[:POOL]


def test_a_page_is_kept_in_a_file_over_a_restart(tmp_path: Path) -> None:
    """As the engine has it saved and loaded; another build of the kernels takes no other's pages."""
    from octavo.runtime.page_file import PrefixFile
    from octavo.runtime.page_moves import PageMoves, page_bytes

    cache, keys = filled("f16"), [bytes([number]) * 32 for number in range(2)]
    size = page_bytes(cache)
    assert size is not None
    made_by = {"kernels": kernels_hash("cuda")}
    file = PrefixFile.open(str(tmp_path), made_by, size, 1 << 20)
    assert file is not None
    saved = plan(saves=((5, 0, keys[0]), (2, 1, keys[1])))
    PageMoves(cache, POOL, file).run(saved)
    want = pages_of(cache)
    file.wait()
    file.close([(keys[0], 0), (keys[1], 1)])
    again = PrefixFile.open(str(tmp_path), made_by, size, 1 << 20)
    assert again is not None
    assert [key for key, _ in again.stored()] == keys
    cache = filled("f16")
    cache.copy_pages([(0, page) for page in range(1, POOL)])
    for key, block in again.stored():
        again.fetch(key, block)
    again.wait()
    PageMoves(cache, POOL, again).run(plan(loads=((0, 6), (1, 1))))
    assert (pages_of(cache)[6], pages_of(cache)[1]) == (want[5], want[2])
    again.close([])


def test_the_build_of_the_kernels_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other sources, another torch: another one. The C++ extension's file is not it."""
    import torch

    first = kernels_hash("cuda")
    assert first == kernels_hash("cuda") != kernels_hash("cpu")
    monkeypatch.setattr(torch, "__version__", "0")
    assert kernels_hash("cuda") != first


def test_a_page_outside_is_refused() -> None:
    cache = filled("f16")
    assert isinstance(cache, LateCopies)
    for pair in ((0, POOL + SWAP), (-1, 0)):
        with pytest.raises(ValueError, match="outside the cache"):
            cache.copy_pages([pair])
    cache.copy_pages([])
    assert cache.nbytes == 2 * POOL * 4 * KVSpec(1, 8, 6, "f16").bytes_per_token


def test_what_has_no_memory_may_be_tried_in_smaller_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from octavo.errors import StepTooLargeError

    cache = filled("f16")

    def full(count: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB")

    monkeypatch.setattr(cache._mover, "rows", full)
    with pytest.raises(StepTooLargeError, match="no memory for this step"):
        cache.copy_pages([(0, 1)])


def test_a_gpus_swap_space_lies_in_the_systems_memory() -> None:
    """It takes nothing from the pages, and must fit there."""
    from octavo.assembly.memory import FreeMemory, Pages, plan_pages
    from octavo.errors import CapacityError

    specs, gib = [KVSpec(2, 64, 64, "f16")], 2**30
    alone = plan_pages(Pages(specs, 1 << 30, 8, 16), FreeMemory(4 * gib, 1.0))
    beside = plan_pages(Pages(specs, 1 << 30, 8, 16, swap_gib=6.0), FreeMemory(4 * gib, 1.0, 8 * gib))
    assert beside.num_pages == alone.num_pages
    assert beside.swap_space == 6 * gib
    with pytest.raises(CapacityError, match=r"swap_space 6 GiB is more than the 5\.0 GiB"):
        plan_pages(Pages(specs, 1 << 30, 8, 16, swap_gib=6.0), FreeMemory(4 * gib, 1.0, 5 * gib))
