"""What a user asks `octavo quantize` for, and what it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

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
