"""Structural tags in the form of newer clients: the same grammar as in the older one."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.params import StructuredOutputsParams
from octavo.structured.grammar_source import grammar_source
from octavo.structured.tag_forms import NEUTRAL, older

SCHEMA = {"type": "integer"}
OLDER = {"structures": [{"begin": "<f=", "schema": SCHEMA, "end": ">"}], "triggers": ["<f"]}
TAG = {"begin": "<f=", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": ">"}
FORM = {"type": "triggered_tags", "triggers": ["<f"], "tags": [TAG]}


def newer(**changes: Any) -> dict[str, Any]:
    return {"type": "structural_tag", "format": {**FORM, **changes}}


def test_it_is_the_same_grammar() -> None:
    assert older(OLDER) is OLDER
    assert older(newer()) == OLDER
    neutral = {name: values[-1] for name, values in NEUTRAL.items()}
    one, other = (
        grammar_source(StructuredOutputsParams(structural_tag=tag)) for tag in (newer(**neutral), OLDER)
    )
    assert one == other


@pytest.mark.parametrize(
    ("tag", "text"),
    [
        ({"format": {"type": "sequence", "elements": []}}, "format 'sequence' is not supported"),
        ({"format": 5}, "format '5' is not supported"),
        (newer(at_least_one=True), "format.at_least_one is not supported"),
        (newer(stop_after_first=True), "format.stop_after_first is not supported"),
        (newer(tags=[{**TAG, "content": {"type": "any_text"}}]), "content of type 'any_text'"),
        (newer(tags=[{"begin": "<f="}]), "content of type 'None'"),
    ],
)
def test_other_formats_are_refused_by_name(tag: dict[str, Any], text: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        older(tag)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "tag", [newer(tags=5), newer(tags=[5]), newer(tags=[]), newer(triggers=None), newer(triggers=["<x"])]
)
def test_malformed_ones(tag: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="structural_tag"):
        grammar_source(StructuredOutputsParams(structural_tag=tag))
