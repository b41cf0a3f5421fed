"""What `octavo quantize` is told of the numbers that it makes, and of the text by which it makes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.errors import InvalidRequestError

if TYPE_CHECKING:
    from octavo.quant.writer import Choice
    from octavo.quantize.calibration import Calibration


@dataclass(frozen=True, slots=True)
class RoundingFlags:
    """The flags of `octavo quantize` that say how numbers are rounded."""

    method: Annotated[
        str,
        typer.Option("--method", help="rtn, gptq, awq, int8, nf4 or fp8; gptq and awq need --calibration."),
    ] = "rtn"
    bits: Annotated[int, typer.Option("--bits", help="Bits of a number; 0: the method's own.")] = 0
    group_size: Annotated[
        int,
        typer.Option("--group-size", help="Columns that share a scale; -1: whole rows; 0: 128, 64 or 32."),
    ] = 0
    symmetric: Annotated[
        bool | None,
        typer.Option(
            "--symmetric/--asymmetric",
            help="rtn and gptq: without zero points, the default, or with them.",
        ),
    ] = None
    act_order: Annotated[
        bool | None,
        typer.Option("--act-order/--no-act-order", help="GPTQ: large columns first (desc_act); the default."),
    ] = None
    damp: Annotated[
        float | None,
        typer.Option("--damp", help="GPTQ: what H's diagonal is raised by, as a share of its mean; 0.01."),
    ] = None
    double_quant: Annotated[
        bool | None,
        typer.Option("--double-quant/--no-double-quant", help="NF4: scales of 8 bits too; the default."),
    ] = None

    def choice(self) -> Choice:
        """What was said, or the method's own.

        Raises:
            InvalidRequestError: there is no such method, or it has no groups that could be chosen.
        """
        from octavo.quant.writer import Choice, writer_of

        limits = writer_of(self.method).limits
        if self.group_size and not limits.groups:
            raise InvalidRequestError(
                f"{self.method} has groups of its own: leave --group-size {self.group_size} out", "group_size"
            )
        more = {"act_order": self.act_order, "damp": self.damp, "nested": self.double_quant}
        said: dict[str, Any] = {name: value for name, value in more.items() if value is not None}
        for name in said:
            if name not in limits.obeys:
                flag = "double_quant" if name == "nested" else name
                raise InvalidRequestError(
                    f"{self.method} has no use for {self._as_typed(flag)}: leave it out"
                )
        group = self.group_size if limits.groups else -1
        symmetric = limits.without if self.symmetric is None else self.symmetric
        return Choice(self.bits or limits.bits[0], group, symmetric, **said)

    def said(self) -> list[str]:
        """The flags that were given a value, as they were typed."""
        names = ("bits", "group_size", "symmetric", "act_order", "damp", "double_quant")
        unsaid = RoundingFlags()
        return [self._as_typed(n) for n in names if getattr(self, n) != getattr(unsaid, n)]

    def _as_typed(self, name: str) -> str:
        value = getattr(self, name)
        if value is False:
            return "--asymmetric" if name == "symmetric" else f"--no-{name.replace('_', '-')}"
        flag = f"--{name.replace('_', '-')}"
        return flag if value is True else f"{flag} {value}"


@dataclass(frozen=True, slots=True)
class TextFlags:
    """The flags of `octavo quantize` that name a calibration text."""

    calibration: Annotated[
        Path | None, typer.Option("--calibration", help="A text like what the model will read (UTF-8).")
    ] = None
    calibration_samples: Annotated[
        int | None,
        typer.Option("--calibration-samples", help="Pieces of the text that are read; 64 unless said."),
    ] = None
    calibration_length: Annotated[
        int | None, typer.Option("--calibration-length", help="Tokens of each piece; 512 unless said.")
    ] = None

    def text(self) -> Calibration | None:
        """What was said; None: nothing.

        Raises:
            InvalidRequestError: how a text is read is said, but not which.
        """
        from octavo.quantize.calibration import Calibration

        said = {"samples": self.calibration_samples, "length": self.calibration_length}
        known = {name: value for name, value in said.items() if value is not None}
        if self.calibration is None:
            for name, value in known.items():
                raise InvalidRequestError(
                    f"--calibration-{name} {value} says how a text is read, but there is no --calibration"
                )
            return None
        return Calibration(self.calibration, **known)
