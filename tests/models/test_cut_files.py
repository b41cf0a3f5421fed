"""A model's file that is cut while the model serves: nothing of it is read any more, whatever its format."""

from __future__ import annotations

import mmap
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.tiny import TINY
from octavo.checkpoints import open_checkpoint
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.select import native_available
from octavo.models.loader import Loader
from support.cli import environment
from support.gguf_files import write_gguf

GENERATE = """
import os, sys
from octavo.checkpoints import open_checkpoint
from octavo.kernels.cpu import CpuBackend
from octavo.models.load import load_model
from support.forward import logits
from pathlib import Path
backend = CpuBackend(threads=1)
for name in sys.argv[1:]:
    path = Path(name)
    model, _ = load_model(open_checkpoint(path), backend)
    os.truncate(path if path.is_file() else path / "model.safetensors", 512)
    assert logits(model, backend, [3, 4, 5], [3]).shape[0]
print("all served")
"""
FORMATS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


@pytest.mark.skipif(not native_available(), reason="the reference reads weights where they lie")
def test_weights_are_in_memory_of_their_own(tiny_folder: Callable[[str, str], Path], tmp_path: Path) -> None:
    """In a process of its own: where one is not, the system ends it by SIGBUS."""
    folder = tiny_folder("llama", next(iter(TINY["llama"])))
    files = [
        write_gguf(folder, tmp_path / f"{kind}.gguf", "llama", {"": kind} if kind != "F32" else None)
        for kind in FORMATS
    ]
    copy = tmp_path / "folder"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    command = [sys.executable, "-c", GENERATE, *map(str, files), str(copy)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.stdout == "all served\n", (done.returncode, done.stderr[-2000:])


def test_vectors_are_no_views_of_the_file(tiny_folder: Callable[[str, str], Path]) -> None:
    checkpoint = open_checkpoint(tiny_folder("llama", next(iter(TINY["llama"]))))
    gain: Any = Loader(checkpoint, ReferenceBackend(), {}).vector("model.norm.weight", 64)
    while isinstance(gain, np.ndarray) and gain.base is not None:
        gain = gain.base
    assert not isinstance(gain, mmap.mmap)
    assert not isinstance(gain, memoryview)
