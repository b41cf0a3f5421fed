"""The GPU backend on Triton's interpreter: the kernels' arithmetic, on a machine without a GPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tiny matrices gain nothing from a second thread of torch."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def checked_memory() -> Iterator[None]:
    """No launch of any test touches anything but its tensors, or what another of its programs writes."""
    from support.memcheck import checked

    with checked():
        yield
