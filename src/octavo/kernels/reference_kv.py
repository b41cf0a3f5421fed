"""KV pages of the reference backend: [page, head, offset, dim], one array a side and layer."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import numpy.typing as npt

from octavo.kernels.ops import F32, U8, KVSpec

I32 = npt.NDArray[np.int32]

_DTYPES: dict[str, np.dtype[np.generic]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "int8": np.dtype(np.int8),
    "int16": np.dtype(np.int16),
}


def _scales(x: F32, dtype: np.dtype[np.generic], key: bool) -> F32:
    """What an integer of each row x [..., dim] stands for (Ops.rotary_append)."""
    largest: F32 = np.abs(x).max(axis=-1)
    unit: F32 = largest / np.float32(127 if dtype == np.int8 else 32767 if key else 16383)
    if dtype == np.int8 or not key:
        return unit
    with np.errstate(invalid="ignore", divide="ignore"):
        norm = largest * np.linalg.norm(x / largest[..., None], axis=-1).astype(np.float32)
    return np.asarray(np.where(largest > 0, np.maximum(unit, norm / np.float32(46000)), unit), np.float32)


class _Side:
    """K (key) or V of one layer. Integers keep one f32 scale per (page, head, offset)."""

    def __init__(
        self, num_pages: int, heads: int, page_size: int, dim: int, dtype: str, key: bool = False
    ) -> None:
        self.pages = np.zeros((num_pages, heads, page_size, dim), _DTYPES[dtype])
        integers = dtype in ("int8", "int16")
        self.scales = np.zeros((num_pages, heads, page_size), np.float32) if integers else None
        self._key = key

    def store(self, pages: I32, offsets: I32, x: F32) -> None:
        """x [T, heads, dim] to (pages[t], offsets[t])."""
        if self.scales is not None:
            d = _scales(x, self.pages.dtype, self._key)
            self.scales[pages, :, offsets] = d
            x = np.rint(np.divide(x, d[:, :, None], out=np.zeros_like(x), where=d[:, :, None] != 0))
        self.pages[pages, :, offsets] = x.astype(self.pages.dtype)

    def load(self, table: I32, length: int) -> F32:
        """[length, heads, dim] of the pages in table order."""
        x = self.pages[table].astype(np.float32)
        if self.scales is not None:
            x = x * self.scales[table][:, :, :, None]
        x = np.moveaxis(x, 1, 2)
        return x.reshape(-1, x.shape[2], x.shape[3])[:length]


class ReferenceKVLayer:
    """Both sides of one layer; a latent layer's V is the beginning of its K."""

    def __init__(self, spec: KVSpec, num_pages: int, page_size: int, sliding: bool = False) -> None:
        self.page_size, self.sliding = page_size, sliding
        self.k = _Side(num_pages, spec.num_kv_heads, page_size, spec.head_dim, spec.dtype, key=True)
        self.v_head_dim = spec.v_head_dim
        self.v: _Side | None = None
        if not spec.latent:
            self.v = _Side(num_pages, spec.num_kv_heads, page_size, spec.v_head_dim, spec.dtype)

    @property
    def sides(self) -> list[_Side]:
        return [self.k] if self.v is None else [self.k, self.v]

    def store(self, slots: I32, k: F32, v: F32 | None) -> None:
        """v is None where the layer is latent."""
        pages, offsets = np.divmod(slots, np.int32(self.page_size))
        self.k.store(pages, offsets, k)
        if self.v is not None and v is not None:
            self.v.store(pages, offsets, v)

    def load(self, table: I32, length: int) -> tuple[F32, F32]:
        used = table[: -(-length // self.page_size)]
        k = self.k.load(used, length)
        return k, k[:, :, : self.v_head_dim] if self.v is None else self.v.load(used, length)


class ReferenceKVCache:
    """All layers' pages. np.zeros maps memory lazily, so untouched pages cost nothing."""

    def __init__(
        self, layers: Sequence[KVSpec], num_pages: int, page_size: int, sliding: bool = False
    ) -> None:
        self._layers = [ReferenceKVLayer(spec, num_pages, page_size, sliding) for spec in layers]

    @property
    def nbytes(self) -> int:
        arrays = [a for la in self._layers for s in la.sides for a in (s.pages, s.scales) if a is not None]
        return sum(a.nbytes for a in arrays)

    def layer(self, index: int) -> ReferenceKVLayer:
        return self._layers[index]

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        if not pairs:
            return
        source, target = (list(side) for side in zip(*pairs, strict=True))
        for layer in self._layers:
            for side in layer.sides:
                side.pages[target] = side.pages[source]
                if side.scales is not None:
                    side.scales[target] = side.scales[source]

    def move_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        for layer in self._layers:
            source, target = (np.divmod(side, layer.page_size) for side in np.array(pairs).T)
            for side in layer.sides:
                side.pages[target[0], :, target[1]] = side.pages[source[0], :, source[1]]
                if side.scales is not None:
                    side.scales[target[0], :, target[1]] = side.scales[source[0], :, source[1]]

    @property
    def page_bytes(self) -> int:
        return sum(part.nbytes for part in self._parts(0))

    def read_page(self, page: int) -> U8:
        return np.concatenate([part.reshape(-1).view(np.uint8) for part in self._parts(page)])

    def write_page(self, page: int, data: U8) -> None:
        at = 0
        for part in self._parts(page):
            part.reshape(-1).view(np.uint8)[:] = data[at : at + part.nbytes]
            at += part.nbytes

    def _parts(self, page: int) -> list[npt.NDArray[np.generic]]:
        """Views of what makes up a page, in order."""
        sides = [side for layer in self._layers for side in layer.sides]
        return [a[page] for side in sides for a in (side.pages, side.scales) if a is not None]
