"""JSON lines of your own: each has a prompt, messages or turns (MT-bench's; its first turn is asked)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.bench.serving.datasets import DataSet, DatasetOption, WantedPrompts, json_lines
from octavo.bench.serving.exchange import LoadRequest, Prompt
from octavo.errors import InvalidRequestError


def calls(wanted: WantedPrompts) -> list[LoadRequest]:
    """In the file's order, as many as are wanted."""
    found: list[LoadRequest] = []
    for number, row in json_lines(wanted.file()):
        if len(found) == wanted.count:
            break
        try:
            output = int(row.get("output_tokens", wanted.options["custom_output_len"]))
            if output < 1:
                raise ValueError("output_tokens is at least 1")
            found.append(LoadRequest(_prompt(row), output))
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidRequestError(f"{wanted.path}: line {number}: {error}") from None
    return found


def _prompt(row: Mapping[str, Any]) -> Prompt:
    """
    Raises:
        ValueError: the line has none.
    """
    turns = row.get("turns")
    prompt: Any = row.get("prompt", row.get("messages"))
    if prompt is None and isinstance(turns, list) and turns:
        prompt = turns[0]
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and {type(part) for part in prompt} in ({int}, {dict}):
        return prompt
    raise ValueError("it has no prompt (a text or token ids), no messages and no turns")


DATA = DataSet(
    ("custom", "mt_bench", "spec_bench"),
    "JSON lines with prompt, messages or turns",
    (DatasetOption("custom_output_len", 256, "Tokens to ask for where a line has no output_tokens."),),
    calls,
)
