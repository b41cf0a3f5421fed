"""What a program of this folder does with a client, feature by feature: each ends in a line of JSON."""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

ECHO = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}
"""Parameters of the tool `echo`."""
ASK = "Call the tool twice"
DONE = "Both were called: one-21 and two-42"
"""What the scripted engine says when it has seen the results of both calls."""


def run(package: str, features: dict[str, Callable[..., Any]]) -> None:
    """Call each feature with (url, key, model) of the command line; the exit status says whether all hold.

    Args:
        package: whose version is told.
    """
    version = importlib.metadata.version(package)
    failed = False
    for name, feature in features.items():
        line = {"client": package, "version": version, "feature": name, "ok": True}
        try:
            done = feature(*sys.argv[1:])
            if inspect.isawaitable(done):
                asyncio.run(_finish(done))
        except Exception as error:
            failed = True
            line |= {"ok": False, "error": f"{type(error).__name__}: {error}"[:500]}
            traceback.print_exc()
        print(json.dumps(line), flush=True)
    sys.exit(failed)


def refused(kind: type[Exception], call: Callable[..., Any], **asked: Any) -> Any:
    """The error that a call ends in; it must be of this kind."""
    try:
        call(**asked)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


async def _finish(done: Any) -> None:
    await done
