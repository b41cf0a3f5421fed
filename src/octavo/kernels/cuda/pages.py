"""Triton's copy of whole pages: all layers and both sides of any number of pages in one launch.

A page's bytes are strewn over the tensors of all layers; packed one after another they are a row of a
scratch [pages, units]. Rows are gathered from pages, or scattered to them; between device and host they
travel as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl

from octavo.kernels.cuda.launch import cdiv

BLOCK = 1024


@triton.jit
def move_pages_kernel(
    pointers, sizes, offsets, pages, rows, units, SCATTER: tl.constexpr, UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Row i of rows [n, units] from (SCATTER: to) page pages[i]: the part of one tensor, BLOCK units a
    program. A negative page is left out."""
    i, t = tl.program_id(0), tl.program_id(1)
    page = tl.load(pages + i).to(tl.int64)
    size = tl.load(sizes + t)
    at = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = (at < size) & (page >= 0)
    there = tl.load(pointers + t).to(tl.pointer_type(UNIT)) + page * size + at
    here = rows + i.to(tl.int64) * units + tl.load(offsets + t) + at
    if SCATTER:
        tl.store(there, tl.load(here, mask=inside, other=0), mask=inside)
    else:
        tl.store(here, tl.load(there, mask=inside, other=0), mask=inside)


class PageMover:
    """Moves pages of tensors [pages, ...] that stay where they are.

    Attributes:
        units: elements of a row; dtype: int64 where each tensor's page is made of whole ones, else bytes.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], device: torch.device) -> None:
        nbytes = [t[0].nbytes for t in tensors]
        wide = all(n % 8 == 0 for n in nbytes)
        self.dtype = torch.int64 if wide else torch.uint8
        sizes = [n // 8 if wide else n for n in nbytes]
        self.units = sum(sizes)
        self._device, self._most = device, max(sizes)
        offsets = np.cumsum([0, *sizes[:-1]])

        def table(values: Sequence[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        self._tables = table([t.data_ptr() for t in tensors]), table(sizes), table(offsets.tolist())
        self._count = len(tensors)

    def rows(self, count: int) -> torch.Tensor:
        """A scratch for so many pages."""
        return torch.empty((count, self.units), dtype=self.dtype, device=self._device)

    def move(self, pages: torch.Tensor, rows: torch.Tensor, scatter: bool) -> None:
        """Gather pages [n] int32 into rows, or scatter rows to them."""
        grid = len(pages), self._count, cdiv(self._most, BLOCK)
        unit = tl.int64 if self.dtype == torch.int64 else tl.uint8
        move_pages_kernel[grid](
            *self._tables, pages, rows, self.units, SCATTER=scatter, UNIT=unit, BLOCK=BLOCK
        )


def parts(pairs: Sequence[tuple[int, int]], most: int) -> list[Sequence[tuple[int, int]]]:
    """Pairs in lots of at most so many; all in one where a later one's source is an earlier one's target."""
    if {source for source, _ in pairs} & {target for _, target in pairs}:
        return [pairs]
    return [pairs[i : i + most] for i in range(0, len(pairs), most)]
