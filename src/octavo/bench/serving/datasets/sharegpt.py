"""ShareGPT's file, or one like it: conversations whose first turn is asked and whose answers give lengths."""

from __future__ import annotations

import json
import random
from typing import Any

from octavo.bench.serving.datasets import DataSet, DatasetOption, WantedPrompts, json_lines
from octavo.bench.serving.exchange import LoadRequest
from octavo.errors import InvalidRequestError

CHARACTERS_A_TOKEN = 4
"""Of English text, about: an answer's length in tokens where no tokenizer counts them."""
LONGEST = 4096
"""Tokens of answers; longer ones are no chat's."""


def calls(wanted: WantedPrompts) -> list[LoadRequest]:
    """In random order, those of two turns at least."""
    file = wanted.file()
    if file.read_text("utf-8", errors="replace")[:256].lstrip().startswith("["):
        try:
            rows = list(enumerate(json.loads(file.read_text("utf-8", errors="replace")), 1))
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(f"{file} is no JSON: {error}") from None
    else:
        rows = list(json_lines(file))
    random.Random(f"sharegpt {wanted.seed}").shuffle(rows)
    found: list[LoadRequest] = []
    for number, row in rows:
        if len(found) == wanted.count:
            break
        try:
            turns = row.get("conversations", row.get("conversation")) or []
            if len(turns) >= 2 and _text(turns[0]):
                found.append(LoadRequest(_text(turns[0]), _length(wanted, _text(turns[1]))))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else error
            raise InvalidRequestError(f"{file}: conversation {number}: {reason}") from None
    return found


def _text(turn: Any) -> str:
    text = turn["value"] if "value" in turn else turn["content"]
    if not isinstance(text, str):
        raise ValueError("a turn's value is a text")
    return text


def _length(wanted: WantedPrompts, answer: str) -> int:
    given = int(wanted.options["sharegpt_output_len"])
    return given or min(max(len(answer) // CHARACTERS_A_TOKEN, 1), LONGEST)


DATA = DataSet(
    ("sharegpt",),
    "conversations as ShareGPT's file has them; their first turns",
    (
        DatasetOption(
            "sharegpt_output_len", 0, "Tokens to ask for; 0: as long as the answer in the file, about."
        ),
    ),
    calls,
)
