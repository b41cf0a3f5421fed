"""octavo rm: take models out of the cache."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from octavo.cli._models import megabytes
from octavo.errors import InvalidRequestError


def rm(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help="Names, as octavo list prints them.")],
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object. Needs --yes."),
) -> int:
    """Remove models from the cache. It asks first; files and folders of your own are not touched."""
    from octavo.checkpoints.kept import removable, remove

    sizes = {}
    for model in models:  # all of them, before one is gone
        files = {path.resolve() for path in removable(model)}
        sizes[model] = sum(path.stat().st_size for path in files if path.is_file())
    if not yes and (as_json or not sys.stdin.isatty()):
        raise InvalidRequestError("octavo rm asks before it removes, and stdin is no terminal: give --yes")
    removed = []
    for model, size in sizes.items():
        if not yes and not _agreed(f"remove {model} ({megabytes(size)})? [y/N] "):
            continue
        remove(model)
        removed.append(model)
        if not as_json:
            print(f"removed {model}")
    if as_json:
        freed = sum(sizes[model] for model in removed)
        print(json.dumps({"removed": removed, "bytes": freed}))
    return 0 if len(removed) == len(sizes) else 1


def _agreed(question: str) -> bool:
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
