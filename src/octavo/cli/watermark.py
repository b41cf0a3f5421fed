"""octavo watermark: whether a text was written with a watermark."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli._flags import option_group
from octavo.errors import InvalidRequestError, OctavoError

if TYPE_CHECKING:
    from octavo.sampling.watermark import Detection

watermark = typer.Typer(
    help="Look for watermarks in texts. All take --json and --help.", rich_markup_mode=None
)
LIKELY = 4.0
"""A z from which on a text counts as marked: of unmarked ones 3 in 100,000 reach it."""
MAX_TEXT_BYTES = 16 * 2**20
TROUBLE = 2
"""The exit status where nothing was found out, as grep's: 1 is a text without a mark."""


@watermark.callback()
def group() -> None:
    """Look for watermarks in texts."""


@dataclass(frozen=True, slots=True)
class MarkFlags:
    """The flags that say which mark is looked for."""

    gamma: Annotated[
        float, typer.Option("--gamma", help="The share of the vocabulary that is green, 0.01 to 0.99.")
    ] = 0.5
    hashing_key: Annotated[
        int, typer.Option("--hashing-key", help="The key that it was written with, 1 to 2147483647.")
    ] = 15_485_863


@watermark.command()
@option_group("wanted", MarkFlags)
def detect(
    wanted: MarkFlags,
    file: str = typer.Argument(help="A text file: an answer without its prompt; - is standard input."),
    model: str = typer.Option("smollm2", "--model", "-m", help="The model that may have written it."),
    ids: bool = typer.Option(
        False, "--ids", help="The file has token ids: a JSON list, or numbers between spaces or commas."
    ),
    tokenizer: str | None = typer.Option(None, "--tokenizer", help="For a model that has none of its own."),
    repeated: bool = typer.Option(False, "--repeated", help="Count equal pairs of tokens each time."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object, of an error too."),
) -> int:
    """Print how many of a text's tokens are green, its z, and how likely unmarked text has such a z.

    The exit status is 0 where z is at least 4, 1 where it is not, and 2 where something went wrong.
    """
    try:
        found = _detected(file, model, ids, dataclasses.asdict(wanted), tokenizer, repeated, as_json)
    except (OctavoError, MemoryError, OSError) as error:
        from octavo.cli._app import said

        print(f"octavo: error: {said(error)}", file=sys.stderr)
        if as_json:
            print(json.dumps({"model": model, "error": said(error)}))
        return TROUBLE
    marked, needed = found.z >= LIKELY, _needed(wanted.gamma)
    if as_json:
        members = {"model": model, **dataclasses.asdict(found), "marked": marked, "needed": needed}
        print(json.dumps(members))
        return 0 if marked else 1
    verdict = "watermarked" if marked else "no sign of a watermark"
    if found.tokens < needed:
        verdict = f"too few tokens to tell, {needed} different pairs of neighbours are needed"
    said_z = f"{found.green} of {found.tokens} tokens are green: z = {found.z:.2f}, p = {found.p:.1e}"
    print(f"{said_z}: {verdict}")
    return 0 if marked else 1


def _detected(
    file: str,
    model: str,
    ids: bool,
    wanted: dict[str, float],
    tokenizer: str | None,
    repeated: bool,
    quiet: bool,
) -> Detection:
    from octavo.assembly.detector import WatermarkDetector
    from octavo.cli._load import fetch

    text = _text(file)
    given: str | Sequence[int] = _ids(text, file) if ids else text
    if not ids and re.fullmatch(r"\s*\[[\d,\s]+\]\s*", text):
        raise InvalidRequestError(f"{file} is a list of numbers: with --ids they are read as token ids")
    for each in filter(None, (model, tokenizer)):
        fetch(each, quiet)
    return WatermarkDetector(model, wanted, tokenizer=tokenizer).detect(given, repeated=repeated)


def _needed(gamma: float) -> int:
    """Of how many tokens z is LIKELY where all are green: of fewer it cannot be."""
    return math.ceil(LIKELY**2 * gamma / (1 - gamma) - 1e-9)


def _ids(text: str, file: str) -> list[int]:
    try:
        found = [int(word) for word in re.sub(r"[\[\],]", " ", text).split()]
    except ValueError:
        raise InvalidRequestError(f"{file} has something else than token ids") from None
    return found


def _text(file: str) -> str:
    if not file:
        raise InvalidRequestError("the file's name is empty")
    data = sys.stdin.buffer.read(MAX_TEXT_BYTES + 1) if file == "-" else _head(Path(file))
    if len(data) > MAX_TEXT_BYTES:
        raise InvalidRequestError(f"{file} has more than {MAX_TEXT_BYTES} bytes: give a part of it")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidRequestError(f"{file} is no text: it must be UTF-8") from None


def _head(path: Path) -> bytes:
    with path.open("rb") as opened:
        return opened.read(MAX_TEXT_BYTES + 1)
