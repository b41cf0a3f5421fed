"""What `octavo quantize` does: checks what is asked, and hands it to who makes a folder or a GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from octavo.checkpoints import open_checkpoint
from octavo.errors import InvalidRequestError
from octavo.quant.writer import Choice
from octavo.quantize.calibration import Calibration

Progress = Callable[[int, int], None]
"""Called with (matrices done, matrices in all)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a user asks for.

    Attributes:
        source: a folder, or a GGUF file. target: what is made, which must not be there.
        calibration: None where the method needs none.
        kind: of a GGUF file, "Q4_0"; "" for a folder.
        requantize: take numbers that are quantized already.
    """

    source: Path
    target: Path
    method: str = "rtn"
    choice: Choice = field(default_factory=lambda: Choice(4, 128))
    calibration: Calibration | None = None
    kind: str = ""
    requantize: bool = False

    @property
    def partial(self) -> Path:
        """Where a folder lies until it is whole."""
        return self.target.with_name(f"{self.target.name}.partial")


@dataclass(slots=True)
class Report:
    """What was made.

    Attributes:
        matrices: projections that were quantized; weights: numbers in them; bits: that they take now.
        unmet: modules that the calibration text never reached, rounded to nearest.
        unfolded: modules whose columns were not scaled, for nothing comes before them that could be divided.
        resumed: files that an earlier run had written.
        group_size: columns that share a scale, -1: all of a row; 0: the method has groups of its own.
    """

    path: str = ""
    method: str = ""
    matrices: int = 0
    weights: int = 0
    bits: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    unmet: list[str] = field(default_factory=list)
    unfolded: list[str] = field(default_factory=list)
    resumed: int = 0
    group_size: int = 0

    @property
    def bits_per_weight(self) -> float:
        return self.bits / max(self.weights, 1)


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
    if asked.requantize and asked.source.is_dir():
        raise InvalidRequestError("--allow-requantize is for GGUF files: leave it out", "allow_requantize")
    if asked.kind:
        from octavo.quantize.gguf_file import quantize_file

        return quantize_file(asked, progress)
    if not asked.source.is_dir():
        open_checkpoint(asked.source)  # whatever else it may be has its own error
        raise InvalidRequestError(
            f"{asked.source.name} is a GGUF file, of which GGUF files are made: name a --type", "kind"
        )
    from octavo.quantize.folder import quantize_folder

    return quantize_folder(asked, progress)
