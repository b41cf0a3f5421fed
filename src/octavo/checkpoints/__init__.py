"""Model files: GGUF and Hugging Face folders, mapped, never copied; and where they come from (sources)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from octavo.checkpoints.base import Checkpoint


def open_checkpoint(path: str | Path, headers: bool = False) -> Checkpoint:
    """Open what sources.resolve found: a .gguf file, or a folder with config.json.

    Args:
        headers: what describes the weights is enough: a folder may hold config.json alone, and a GGUF file
            may end after its list of tensors.

    Raises:
        CheckpointError: the path is neither, or what is there is broken.
    """
    from pathlib import Path

    from octavo.checkpoints.base import PICKLES, why_no_pickle
    from octavo.errors import CheckpointError

    path = Path(path)
    if path.is_dir():
        from octavo.checkpoints.safetensors import open_folder

        return open_folder(path, headers)
    from octavo.checkpoints.gguf import begins_as_gguf, open_gguf

    if path.suffix in PICKLES and not begins_as_gguf(path):
        raise CheckpointError(f"{path.name} is {why_no_pickle(str(path.parent))}")
    return open_gguf(path, headers)
