"""octavo quantize: a model of fewer bits, made of one of 16 or 32."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from octavo.cli._flags import option_group
from octavo.cli._progress import count_progress, saying
from octavo.cli._rounding import RoundingFlags, TextFlags
from octavo.errors import InvalidRequestError

if TYPE_CHECKING:
    from octavo.quantize.asked import Report

OUT = typer.Argument(help="The folder, or the .gguf file, to write; it must not be there.")
KIND = typer.Option(
    "", "--type", help="Write a GGUF file of this type instead: Q4_0, Q4_1, Q5_0, Q8_0, Q4_K_M, F16 or F32."
)
ALLOW = typer.Option(
    False, "--allow-requantize", help="Take a GGUF file's weights that are quantized already."
)


@option_group("rounding", RoundingFlags)
@option_group("text", TextFlags)
def quantize(
    rounding: RoundingFlags,
    text: TextFlags,
    model: str = typer.Argument(help="A folder, a .gguf file, an alias or a hub id, of 16 or 32 bits."),
    out: Path = OUT,
    kind: str = KIND,
    allow_requantize: bool = ALLOW,
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> int:
    """Quantize a model into a folder that transformers and vLLM read, or into a GGUF file.

    Interrupted, the same command goes on where a folder stood; of a GGUF file nothing is left.
    """
    from octavo.checkpoints.sources import resolve
    from octavo.cli._load import fetch
    from octavo.quantize.asked import Asked
    from octavo.quantize.job import quantize as make

    gguf = out.suffix.lower() == ".gguf"
    if gguf and not kind:
        raise InvalidRequestError(f"{out} is a GGUF file: --type says which (Q4_0, Q8_0, Q4_K_M ...)")
    if kind and not gguf:
        raise InvalidRequestError(f"--type writes a GGUF file: call it {out}.gguf")
    if kind and (said := rounding.said()):
        raise InvalidRequestError(f"{kind} says how numbers are rounded: leave {said[0]} out")
    choice = rounding.choice()
    fetch(model, as_json)
    asked = Asked(resolve(model), out, rounding.method, choice, text.text(), kind, allow_requantize)
    label = f"quantizing {model}"
    with saying(label, as_json, after_s=1.0), count_progress(label, as_json) as progress:
        try:
            report = make(asked, progress)
        except KeyboardInterrupt:
            if (partial := asked.partial).exists():
                print(f"{partial} holds what was made: the same command goes on there", file=sys.stderr)
            raise
    if as_json:
        print(json.dumps({**dataclasses.asdict(report), "bits_per_weight": report.bits_per_weight}))
    else:
        _tell(report)
    return 0


def _tell(report: Report) -> None:
    mb = f"{report.bytes_before / 1e6:.1f} MB -> {report.bytes_after / 1e6:.1f} MB"
    said = f"{report.matrices} matrices of {report.bits_per_weight:.2f} bits a weight"
    said += f" in groups of {report.group_size}" if report.group_size > 0 else ""
    print(f"{report.path}: {said}; weights {mb}")
    for why, names in (
        ("not reached by the text, and rounded to nearest", report.unmet),
        ("columns not scaled, for nothing comes before that could be divided", report.unfolded),
    ):
        if names:
            print(f"{why}: {len(names)}")
            print("\n".join(f"  {name}" for name in names))
