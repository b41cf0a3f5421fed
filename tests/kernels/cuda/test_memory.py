"""Kernels touch only their tensors, and programs of a launch do not meet: conftest.py checks all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from support.memcheck import MemoryCheckError


@triton.jit
def copy_kernel(x, y, n, MASKED: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n if MASKED else at >= 0
    tl.store(y + at, tl.load(x + at, mask=inside, other=0.0), mask=inside)


@triton.jit
def sum_kernel(x, y, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y, tl.load(y) + tl.sum(tl.load(x + at)))


class TestChecker:
    """Mutants of a copy: what the checker is there for."""

    def test_a_sound_kernel_passes(self) -> None:
        x, y = torch.randn(13), torch.zeros(13)
        copy_kernel[(2,)](x, y, 13, MASKED=True, BLOCK=8)
        assert torch.equal(x, y)

    def test_reads_beyond_a_tensor(self) -> None:
        with pytest.raises(InterpreterError, match="copy_kernel: program 1 reads 3 elements outside"):
            copy_kernel[(2,)](torch.randn(13), torch.zeros(16), 13, MASKED=False, BLOCK=8)

    def test_writes_beyond_a_tensor(self) -> None:
        with pytest.raises(InterpreterError, match="copy_kernel: program 1 writes 3 elements outside"):
            copy_kernel[(2,)](torch.randn(16), torch.zeros(13), 13, MASKED=False, BLOCK=8)

    def test_programs_that_write_the_same_element(self) -> None:
        with pytest.raises(MemoryCheckError, match="sum_kernel: two programs write"):
            sum_kernel[(2,)](torch.randn(16), torch.zeros(1), BLOCK=8)

    def test_programs_that_read_what_another_writes(self) -> None:
        x = torch.randn(17)
        with pytest.raises(MemoryCheckError, match="copy_kernel: a program reads"):
            copy_kernel[(2,)](x, x[1:], 16, MASKED=True, BLOCK=8)


@pytest.mark.slow  # each kernel has tests of its own, and conftest.py checks these
def test_all_checks_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3] / "benchmarks"))
    from gpu.checks import all_checks

    wrong = [check for check in all_checks("cpu", "float32", small=True) if not check[1] <= check[2]]
    assert wrong == []
