"""octavo watermark: whether a text was written with a watermark."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import typer

from octavo.errors import InvalidRequestError

watermark = typer.Typer(
    help="Look for watermarks in texts. All take --json and --help.", rich_markup_mode=None
)
LIKELY = 4.0
"""A z from which on a text counts as marked: of unmarked ones 3 in 100,000 reach it."""
MAX_TEXT_BYTES = 16 * 2**20


@watermark.callback()
def group() -> None:
    """Look for watermarks in texts."""


@watermark.command()
def detect(
    file: str = typer.Argument(help="A text file: an answer without its prompt; - is standard input."),
    model: str = typer.Option("smollm2", "--model", "-m", help="The model that may have written it."),
    gamma: float = typer.Option(0.5, "--gamma", help="The share of the vocabulary that is green."),
    hashing_key: int = typer.Option(15_485_863, "--hashing-key", help="The key that it was written with."),
    tokenizer: str | None = typer.Option(None, "--tokenizer", help="For a model that has none of its own."),
    repeated: bool = typer.Option(False, "--repeated", help="Count equal pairs of tokens each time."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> int:
    """Print how many of a text's tokens are green, its z, and how likely unmarked text has such a z.

    The exit status is 0 where z is at least 4, and 1 where it is not.
    """
    from octavo.assembly.detector import WatermarkDetector
    from octavo.cli._load import fetch

    text = _text(file)
    fetch(model, as_json)
    wanted = {"gamma": gamma, "hashing_key": hashing_key}
    found = WatermarkDetector(model, wanted, tokenizer=tokenizer).detect(text, repeated=repeated)
    marked = found.z >= LIKELY
    if as_json:
        print(json.dumps({"model": model, **dataclasses.asdict(found), "marked": marked}))
    else:
        said = f"{found.green} of {found.tokens} tokens are green: z = {found.z:.2f}, p = {found.p:.1e}"
        print(f"{said}: {'watermarked' if marked else 'no sign of a watermark'}")
    return 0 if marked else 1


def _text(file: str) -> str:
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
