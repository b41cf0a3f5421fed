"""KV pages on a device: [page, head, offset, dim], one tensor a side and layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from octavo.errors import UnsupportedError
from octavo.kernels.cuda.errors import step_errors
from octavo.kernels.cuda.pages import PageMover, parts
from octavo.kernels.ops import U8, KVSpec

LOT = 64
"""Pages that are on their way at once, as a rule."""
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8}


class CudaSide:
    """K or V of one layer. int8 keeps one f32 scale per (page, head, offset)."""

    def __init__(
        self, num_pages: int, heads: int, page_size: int, dim: int, dtype: str, device: torch.device
    ) -> None:
        shape = (num_pages, heads, page_size)
        self.pages = torch.zeros((*shape, dim), dtype=DTYPES[dtype], device=device)
        self.scales = torch.zeros(shape, device=device) if dtype == "int8" else None

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [self.pages] if self.scales is None else [self.pages, self.scales]


class CudaKVLayer:
    """Both sides of one layer; a latent layer's V is the beginning of its K."""

    def __init__(
        self, spec: KVSpec, num_pages: int, page_size: int, device: torch.device, sliding: bool = False
    ) -> None:
        self.page_size, self.spec, self.sliding = page_size, spec, sliding
        shape = (num_pages, spec.num_kv_heads, page_size)
        self.k = CudaSide(*shape, spec.head_dim, spec.dtype, device)
        self.v = self.k if spec.latent else CudaSide(*shape, spec.v_head_dim, spec.dtype, device)

    @property
    def tensors(self) -> list[torch.Tensor]:
        return self.k.tensors if self.v is self.k else self.k.tensors + self.v.tensors


class CudaKVCache:
    """All layers' pages, taken at once: the plan that counted them holds from then on.

    Args:
        swap_pages: pages after the others, in the host's memory (pinned, where there is a GPU): for those
            of preempted requests. Only copy_pages reaches them.

    Raises:
        UnsupportedError: pages of a type that only a CPU has.
    """

    def __init__(
        self,
        layers: Sequence[KVSpec],
        num_pages: int,
        page_size: int,
        device: torch.device,
        swap_pages: int = 0,
        sliding: bool = False,
    ) -> None:
        for spec in layers:
            if spec.dtype not in DTYPES:
                raise UnsupportedError(f"{spec.dtype} pages are for a CPU", "kv_cache_dtype")
        self._layers = [CudaKVLayer(spec, num_pages, page_size, device, sliding) for spec in layers]
        self._num_pages, self._device = num_pages, device
        self._pinned = device.type == "cuda"
        self._mover = PageMover(self.tensors, device)
        shape = swap_pages, self._mover.units
        self._host = torch.empty(shape, dtype=self._mover.dtype, pin_memory=self._pinned)

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [t for layer in self._layers for t in layer.tensors]

    @property
    def nbytes(self) -> int:
        """On the device."""
        return sum(t.nbytes for t in self.tensors)

    def layer(self, index: int) -> CudaKVLayer:
        return self._layers[index]

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy page src to page dst in every layer; all sources are read before a target is written.

        Nothing waits: copies are done in the order of the stream, those from and to the host too.

        Raises:
            ValueError: a page lies outside the cache.
            StepTooLargeError: the device has no memory for what is on its way.
        """
        if not pairs:
            return
        count = self._num_pages + len(self._host)
        if not all(0 <= page < count for pair in pairs for page in pair):
            raise ValueError("a page to copy lies outside the cache")
        with step_errors():
            for part in parts(pairs, LOT):
                self._copy(part)

    def move_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy slot src to slot dst, in the order of the stream; all sources are read before.

        Raises:
            ValueError: a slot lies outside the cache.
        """
        size = self._layers[0].page_size
        if not all(0 <= slot < self._num_pages * size for pair in pairs for slot in pair):
            raise ValueError("a slot to move lies outside the cache")
        slots = torch.tensor(list(pairs), dtype=torch.int64, pin_memory=self._pinned).T
        source, target = slots.to(self._device, non_blocking=True)
        for tensor in self.tensors:
            tensor[target // size, :, target % size] = tensor[source // size, :, source % size]

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, all layers together."""
        return self._mover.units * self._mover.dtype.itemsize

    def read_page(self, page: int) -> U8:
        """A copy of a page's bytes, [page_bytes], which waits for all steps launched before.

        Raises:
            StepTooLargeError: the device has no memory for it.
        """
        with step_errors():
            rows = self._mover.rows(1)
            self._mover.move(self._indices((page,)), rows, scatter=False)
            found: U8 = rows[0].view(torch.uint8).cpu().numpy()
        return found

    def write_page(self, page: int, data: U8) -> None:
        """Make a page what read_page gave; `data` may be changed afterwards.

        Raises:
            StepTooLargeError: the device has no memory for it.
        """
        with step_errors():
            rows = self._mover.rows(1)
            rows[0].view(torch.uint8).copy_(torch.from_numpy(np.ascontiguousarray(data)))
            self._mover.move(self._indices((page,)), rows, scatter=True)

    def _copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        rows = self._mover.rows(len(pairs))
        sources, targets = zip(*pairs, strict=True)
        self._mover.move(self._indices(sources), rows, scatter=False)
        for row, page in enumerate(sources):
            if page >= self._num_pages:
                rows[row].copy_(self._host[page - self._num_pages], non_blocking=True)
        self._mover.move(self._indices(targets), rows, scatter=True)
        for row, page in enumerate(targets):
            if page >= self._num_pages:
                self._host[page - self._num_pages].copy_(rows[row], non_blocking=True)

    def _indices(self, pages: Sequence[int]) -> torch.Tensor:
        """[n] int32 on the device; -1: the page is the host's. Its pinned memory is torch's to keep."""
        here = [page if page < self._num_pages else -1 for page in pages]
        made = torch.tensor(here, dtype=torch.int32, pin_memory=self._pinned)
        return made.to(self._device, non_blocking=True)

    def wait(self) -> None:
        """Until all copies have ended (to time them)."""
        if self._pinned:
            torch.cuda.current_stream(self._device).synchronize()
