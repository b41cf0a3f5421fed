"""Tool calls in models' own formats: one file a format, and the registry of them."""

from __future__ import annotations

import functools

from octavo.errors import InvalidRequestError
from octavo.server.tools import deepseek_v3, hermes, llama3_json, mistral, pythonic, qwen3_coder
from octavo.server.tools.base import ToolCall, ToolFormat, ToolParser

FORMATS: dict[str, ToolFormat] = {
    each.name: each
    for each in (
        deepseek_v3.FORMAT,
        qwen3_coder.FORMAT,
        mistral.FORMAT,
        hermes.FORMAT,
        llama3_json.FORMAT,
        pythonic.FORMAT,
    )
}

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
    return hermes.FORMAT
