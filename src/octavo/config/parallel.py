"""How many devices share a model: EngineConfig.tensor_parallel_size."""

from __future__ import annotations

from octavo.errors import UnsupportedError


def check_parallel(tensor_parallel_size: int) -> None:
    """One device computes everything so far.

    Raises:
        UnsupportedError: more than one is asked for.
    """
    if tensor_parallel_size != 1:
        raise UnsupportedError("tensor_parallel_size above 1 is not supported yet", "tensor_parallel_size")
