"""KV pages on a device: [page, head, offset, dim], one tensor a side and layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from octavo.kernels.ops import KVSpec

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

    def __init__(self, spec: KVSpec, num_pages: int, page_size: int, device: torch.device) -> None:
        self.page_size, self.spec = page_size, spec
        shape = (num_pages, spec.num_kv_heads, page_size)
        self.k = CudaSide(*shape, spec.head_dim, spec.dtype, device)
        self.v = self.k if spec.latent else CudaSide(*shape, spec.v_head_dim, spec.dtype, device)

    @property
    def tensors(self) -> list[torch.Tensor]:
        return self.k.tensors if self.v is self.k else self.k.tensors + self.v.tensors


class CudaKVCache:
    """All layers' pages, taken at once: the plan that counted them holds from then on."""

    def __init__(
        self, layers: Sequence[KVSpec], num_pages: int, page_size: int, device: torch.device
    ) -> None:
        self._layers = [CudaKVLayer(spec, num_pages, page_size, device) for spec in layers]
        self._num_pages, self._device = num_pages, device

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [t for layer in self._layers for t in layer.tensors]

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors)

    def layer(self, index: int) -> CudaKVLayer:
        return self._layers[index]

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy page src to page dst in every layer; all sources are read before a target is written.

        Raises:
            ValueError: a page lies outside the cache.
        """
        if not pairs:
            return
        if not all(0 <= page < self._num_pages for pair in pairs for page in pair):
            raise ValueError("a page to copy lies outside the cache")
        source, target = (torch.tensor(side, device=self._device) for side in zip(*pairs, strict=True))
        for tensor in self.tensors:
            tensor.index_copy_(0, target, tensor.index_select(0, source))

    def swap_out(self, pages: Sequence[int]) -> list[torch.Tensor]:
        """Host copies (pinned, where there is a GPU) of these pages, one tensor for each of ours."""
        index = torch.tensor(list(pages), dtype=torch.long, device=self._device)
        pin = self._device.type == "cuda"
        copies = []
        for tensor in self.tensors:
            copy = torch.empty((len(pages), *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=pin)
            copies.append(copy.copy_(tensor.index_select(0, index), non_blocking=pin))
        if pin:
            torch.cuda.current_stream(self._device).synchronize()
        return copies

    def swap_in(self, copies: Sequence[torch.Tensor], pages: Sequence[int]) -> None:
        """Write what swap_out kept to other pages, in the same order."""
        index = torch.tensor(list(pages), dtype=torch.long, device=self._device)
        for tensor, copy in zip(self.tensors, copies, strict=True):
            tensor.index_copy_(0, index, copy.to(self._device, non_blocking=True))
