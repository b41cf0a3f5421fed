"""octavo pull: bring a model into the cache."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from octavo.cli._flags import DEFAULT_MODEL
from octavo.cli._progress import byte_progress


def pull(
    model: str = typer.Argument(DEFAULT_MODEL, help="An alias, or a hub id such as org/name."),
    force: bool = typer.Option(False, "--force", help="Download again, even if the cache has a good copy."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> int:
    """Download a model by its alias or hub id, and print where it lies."""
    from octavo.checkpoints import hub, sources

    repo = None if model in sources.ALIASES else hub.Repository.parse(model)
    with byte_progress(f"pulling {model}", quiet=as_json) as progress:
        path = sources.pull(model, progress, force) if repo is None else hub.pull(repo, progress, force)
    if as_json:
        print(json.dumps({"model": model, "path": str(path), "bytes": _size(path)}))
    else:
        print(path)
    return 0


def _size(path: Path) -> int:
    files = [path] if path.is_file() else path.iterdir()
    return sum(file.stat().st_size for file in files)
