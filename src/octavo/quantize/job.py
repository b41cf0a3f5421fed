"""What `octavo quantize` does: checks what is asked, and hands it to who makes a folder or a GGUF file."""

from __future__ import annotations

from octavo.errors import InvalidRequestError
from octavo.quantize.making import Asked, Progress, Report


def quantize(asked: Asked, progress: Progress = lambda _done, _total: None) -> Report:
    """Make asked.target of asked.source.

    Args:
        progress: called with (matrices done, matrices in all).

    Raises:
        InvalidRequestError: what is asked for contradicts itself, or is there already.
        CheckpointError: the model is broken.
        OSError: the disk is full, or the like. A folder goes on later; of a file nothing is left.
    """
    if asked.target.exists():
        raise InvalidRequestError(f"{asked.target} is there already: name another, or remove it", "out")
    if asked.kind:
        from octavo.quantize.gguf_file import quantize_file

        return quantize_file(asked, progress)
    if not asked.source.is_dir():
        raise InvalidRequestError(
            f"{asked.source.name} is a GGUF file, of which GGUF files are made: name a --type", "kind"
        )
    from octavo.quantize.folder import quantize_folder

    return quantize_folder(asked, progress)
