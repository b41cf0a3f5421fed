"""octavo pull: bring a model into the cache."""

from __future__ import annotations

import json

import typer

from octavo.cli._flags import DEFAULT_MODEL
from octavo.cli._progress import byte_progress


def pull(
    model: str = typer.Argument(DEFAULT_MODEL, help="An alias."),
    force: bool = typer.Option(False, "--force", help="Pull again, even if a good copy is there."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> int:
    """Download a model by its alias, check its hash, and print where it lies."""
    from octavo.checkpoints import hub

    with byte_progress(f"pulling {model}", quiet=as_json) as progress:
        path = hub.pull(model, progress, force)
    if as_json:
        print(json.dumps({"model": model, "path": str(path), "bytes": path.stat().st_size}))
    else:
        print(path)
    return 0
