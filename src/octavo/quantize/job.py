"""What `octavo quantize` does: checks what is asked, and hands it to who makes a folder or a GGUF file."""

from __future__ import annotations

from octavo.checkpoints import open_checkpoint
from octavo.errors import InvalidRequestError
from octavo.quantize.asked import Asked, Progress, Report
from octavo.quantize.folder import quantize_folder
from octavo.quantize.gguf_file import quantize_file


def _check(asked: Asked) -> None:
    """
    Raises:
        InvalidRequestError: what is asked for contradicts itself, or is there already.
        CheckpointError: the source is no model.
    """
    if asked.target.exists():
        raise InvalidRequestError(f"{asked.target} is there already: name another, or remove it", "out")
    if asked.source.is_dir() and asked.target.resolve().is_relative_to(asked.source.resolve()):
        raise InvalidRequestError(f"{asked.target} lies in the model's own folder: name another", "out")
    if asked.requantize and asked.source.is_dir():
        raise InvalidRequestError("--allow-requantize is for GGUF files: leave it out", "allow_requantize")
    if not asked.kind and not asked.source.is_dir():
        open_checkpoint(asked.source)  # whatever else it may be has its own error
        raise InvalidRequestError(
            f"{asked.source.name} is a GGUF file, of which GGUF files are made: name a --type", "kind"
        )


def quantize(asked: Asked, progress: Progress = lambda _done, _total: None) -> Report:
    """Make asked.target of asked.source.

    Args:
        progress: called with (matrices done, matrices in all).

    Raises:
        InvalidRequestError: what is asked for contradicts itself, or is there already.
        CheckpointError: the model is broken.
        OSError: the disk is full, or the like. A folder goes on later; of a file nothing is left.
    """
    _check(asked)
    return quantize_file(asked, progress) if asked.kind else quantize_folder(asked, progress)
