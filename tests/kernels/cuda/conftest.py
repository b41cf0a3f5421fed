"""The GPU backend on Triton's interpreter: the kernels' arithmetic, on a machine without a GPU."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tiny matrices gain nothing from a second thread of torch."""
    import torch

    torch.set_num_threads(1)
