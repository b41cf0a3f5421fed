"""Triton, or its interpreter: which of the two is decided before the first kernel is defined."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from octavo.checkpoints.sources import default_cache_dir
from octavo.errors import InvalidRequestError


def cache_dir() -> str:
    """Where compiled kernels are kept: TRITON_CACHE_DIR, or a folder of Octavo's cache."""
    return os.environ.setdefault("TRITON_CACHE_DIR", str(default_cache_dir() / "triton"))


def prepare(interpret: bool) -> None:
    """Let kernels be defined for the interpreter (device "cpu") or for a GPU.

    Triton decides when it is imported, so one process has one of the two. What it compiles is kept on
    disk, in Octavo's cache unless TRITON_CACHE_DIR says where.

    Raises:
        InvalidRequestError: Triton was imported for the other one.
    """
    if interpret:
        os.environ.setdefault("TRITON_INTERPRET", "1")
    cache_dir()
    import triton.language
    from triton.runtime.interpreter import InterpretedFunction

    if isinstance(triton.language.sum, InterpretedFunction) is not interpret:
        raise InvalidRequestError(
            "one process runs Triton's kernels on a GPU or interpreted, not both: "
            f"TRITON_INTERPRET is {os.environ.get('TRITON_INTERPRET', 'unset')}",
            "device",
        )


def build() -> str:
    """A hash of the kernels' sources, and of who compiles them or brings kernels of its own."""
    import torch
    import triton

    made = hashlib.sha256(f"{torch.__version__} {triton.__version__} {torch.version.cuda}".encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        made.update(file.read_bytes())
    return made.hexdigest()


def next_power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def cdiv(a: int, b: int) -> int:
    return -(-a // b)
