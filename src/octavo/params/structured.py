"""StructuredOutputsParams: the shape that an answer must have."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.errors import InvalidRequestError

PARAM = "structured_outputs"
"""The field, as refusals name it."""


@dataclass(frozen=True, slots=True)
class StructuredOutputsParams:
    """What shape an answer must have; exactly one of these is set.

    Attributes:
        json: a JSON schema, as an object or as text.
        regex: the whole answer matches it.
        choice: the answer is one of these strings.
        grammar: Lark or GBNF text; the rule `start` (GBNF: `root`) is the whole answer.
        json_object: any JSON object.
        structural_tag: {"type": "structural_tag", "structures": [{"begin", "schema", "end"}],
            "triggers": [...]}: free text in which a trigger begins a part with a schema.
    """

    json: str | Mapping[str, Any] | bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.json_object is False:
            object.__setattr__(self, "json_object", None)
        kinds = [f.name for f in dataclasses.fields(self) if getattr(self, f.name) is not None]
        if len(kinds) != 1:
            given = " and ".join(kinds) or "none"
            raise InvalidRequestError(
                "structured_outputs takes exactly one of json, regex, choice, grammar, json_object, "
                f"structural_tag; {given} given",
                PARAM,
            )

    @property
    def kind(self) -> str:
        """The name of the one that is set."""
        return next(f.name for f in dataclasses.fields(self) if getattr(self, f.name) is not None)
