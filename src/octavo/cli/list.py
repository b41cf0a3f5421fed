"""octavo list: what is in the caches."""

from __future__ import annotations

import datetime
import json
import sys

import typer

from octavo.cli._models import megabytes


def list(as_json: bool = typer.Option(False, "--json", help="Print one JSON object.")) -> int:
    """List the models in the cache: name, format, size and when they were last used."""
    from octavo.checkpoints.kept import kept_models

    models = kept_models()
    if as_json:
        rows = [
            {
                "name": model.name,
                "format": model.format,
                "bytes": model.size,
                "last_used": _time(model.last_used).isoformat(timespec="seconds"),
                "path": str(model.path),
            }
            for model in models
        ]
        print(json.dumps({"models": rows, "bytes": sum(model.size for model in models)}))
        return 0
    if not models:
        print("no model is in the cache; octavo pull MODEL brings one", file=sys.stderr)
        return 0
    width = max(12, *(len(model.name) for model in models))
    print(f"{'name':<{width}}  {'format':<12}{'size':>10}  last used")
    for model in models:
        day = _time(model.last_used).astimezone().date()
        print(f"{model.name:<{width}}  {model.format:<12}{megabytes(model.size):>10}  {day}")
    return 0


def _time(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
