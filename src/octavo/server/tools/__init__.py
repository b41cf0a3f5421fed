"""Tool calls in models' own formats: each file that holds a FORMAT is one, and nothing else lists them."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from octavo.errors import InvalidRequestError
from octavo.server.tools.base import ToolCall, ToolFormat, ToolParser


def find() -> dict[str, ToolFormat]:
    """The FORMAT of each file of this folder, in the order in which their signs are looked for."""
    files = [importlib.import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]
    found: list[ToolFormat] = [file.FORMAT for file in files if hasattr(file, "FORMAT")]
    return {each.name: each for each in sorted(found, key=lambda each: (each.rank, each.name))}


FORMATS = find()

__all__ = ["FORMATS", "ToolCall", "ToolFormat", "ToolParser", "format_for"]


@functools.lru_cache(maxsize=16)  # one model is served, whose template does not change
def format_for(template: str | None, name: str | None = None) -> ToolFormat:
    """The format of a model's calls: by name, else by what its chat template writes, else hermes.

    Raises:
        InvalidRequestError: there is no format of this name.
    """
    if name is not None:
        if name not in FORMATS:
            raise InvalidRequestError(
                f"no tool format {name!r}; there are: {', '.join(FORMATS)}", "tool_call_parser"
            )
        return FORMATS[name]
    for each in FORMATS.values():
        if any(sign in (template or "") for sign in each.signs):
            return each
    return FORMATS["hermes"]
