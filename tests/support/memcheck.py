"""Memory checks for kernels that Triton interprets: what lies outside the tensors of a launch, and races.

The first is what compute-sanitizer's memcheck finds on a GPU. The second it does not: an element that one
program of a launch writes and another one reads or writes, so that the result depends on which is faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

Addresses = npt.NDArray[np.uint64]


class MemoryCheckError(AssertionError):
    """A kernel touched what it must not."""


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same addresses in ranges that ascend and do not overlap."""
    apart: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if apart and start < apart[-1][1]:
            apart[-1] = apart[-1][0], max(end, apart[-1][1])
        else:
            apart.append((start, end))
    return apart


class Launch:
    """What one launch may touch, and what it has touched."""

    def __init__(self, kernel: str, tensors: Sequence[torch.Tensor], more: Sequence[tuple[int, int]]) -> None:
        storages = [t.untyped_storage() for t in tensors]
        ranges = joined({(s.data_ptr(), s.data_ptr() + s.nbytes()) for s in storages} | set(more))
        self._kernel = kernel
        self._starts, self._ends = np.array(ranges, np.uint64).reshape(-1, 2).T
        self._touched: dict[bool, list[tuple[Addresses, int]]] = {False: [], True: []}

    def touch(self, at: Addresses, size: int, writes: bool, program: int) -> None:
        """
        Raises:
            MemoryCheckError: a byte of these elements lies in none of the launch's tensors.
        """
        if at.size == 0:
            return
        owner = np.searchsorted(self._starts, at, "right").astype(np.int64) - 1
        inside = (owner >= 0) & (at + np.uint64(size) <= self._ends[np.maximum(owner, 0)])
        if not inside.all():
            verb = "writes" if writes else "reads"
            raise MemoryCheckError(
                f"{self._kernel}: program {program} {verb} {(~inside).sum()} elements outside its tensors"
            )
        self._touched[writes].append((at, program))

    def check_races(self) -> None:
        """
        Raises:
            MemoryCheckError: programs meet at an element that one of them writes.
        """
        (written, writers), (read, readers) = (self._all(writes) for writes in (True, False))
        order = np.lexsort((writers, written))
        written, writers = written[order], writers[order]
        if written.size == 0:
            return
        if ((written[1:] == written[:-1]) & (writers[1:] != writers[:-1])).any():
            raise MemoryCheckError(f"{self._kernel}: two programs write the same element")
        at = np.minimum(np.searchsorted(written, read), written.size - 1)
        if ((written[at] == read) & (writers[at] != readers)).any():
            raise MemoryCheckError(f"{self._kernel}: a program reads what another one writes")

    def _all(self, writes: bool) -> tuple[Addresses, npt.NDArray[np.int64]]:
        touched = self._touched[writes]
        if not touched:
            return np.empty(0, np.uint64), np.empty(0, np.int64)
        programs = np.repeat([program for _, program in touched], [at.size for at, _ in touched])
        return np.concatenate([at for at, _ in touched]), programs


@contextmanager
def checked() -> Iterator[None]:
    """Within it every interpreted launch is checked."""
    from triton.runtime import interpreter

    from octavo.kernels.cuda.pages import PageMover

    builder = interpreter.InterpreterBuilder
    executor: Any = interpreter.GridExecutor
    now: list[Launch] = []
    by_address: list[tuple[int, int]] = []

    def tensors_in(value: Any) -> Iterator[torch.Tensor]:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple | list):
            for part in value:
                yield from tensors_in(part)

    def program(of: Any) -> int:
        x, y, z = of.grid_idx
        return int((x * of.grid_dim[1] + y) * of.grid_dim[2] + z)

    def note(of: Any, pointers: Any, mask: Any, writes: bool) -> None:
        at, wanted = np.broadcast_arrays(pointers.data, mask.data)
        size = interpreter._get_np_dtype(pointers.get_element_ty())
        now[-1].touch(at[wanted.astype(bool)].astype(np.uint64), np.dtype(size).itemsize, writes, program(of))

    def load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        note(self, pointers, mask, False)
        return plain_load(self, pointers, mask, *rest)

    def store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        note(self, pointers, mask, True)
        return plain_store(self, pointers, value, mask, *rest)

    def no_atomics(*_: Any) -> Any:
        raise MemoryCheckError("the order of atomics is not that of the programs")

    def on_host(self: Any, given: Any, named: Any) -> Any:
        host = plain_host(self, given, named)
        name = self.fn.__name__
        more = by_address if name == "move_pages_kernel" else []
        now.append(Launch(name, list(tensors_in((*host[0], *host[1].values()))), more))
        return host

    def call(self: Any, *given: Any, **named: Any) -> Any:
        depth = len(now)
        try:
            result = plain_call(self, *given, **named)
            now[-1].check_races()
            return result
        finally:
            del now[depth:]

    def mover(self: Any, tensors: Sequence[torch.Tensor], device: torch.device) -> None:
        by_address.extend((t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors)
        plain_mover(self, tensors, device)

    plain_load, plain_store = builder.create_masked_load, builder.create_masked_store
    plain_host, plain_call, plain_mover = executor._init_args_hst, executor.__call__, PageMover.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "create_masked_load", load)
        patch.setattr(builder, "create_masked_store", store)
        patch.setattr(builder, "create_atomic_rmw", no_atomics)
        patch.setattr(builder, "create_atomic_cas", no_atomics)
        patch.setattr(executor, "_init_args_hst", on_host)
        patch.setattr(executor, "__call__", call)
        patch.setattr(PageMover, "__init__", mover)
        yield
