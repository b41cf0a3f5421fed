"""What a response_format's schema must say, and what it is taken to say: strict schemas, closed schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from octavo.errors import InvalidRequestError
from octavo.params import SamplingParams, StructuredOutputsParams
from octavo.server.state import ServerSettings
from octavo.server.tools.closed import closed

_NAMED = ("properties", "$defs", "definitions")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")


class AsksForAShape(Protocol):
    """What a request says of its answer's form (sampling.GenerationRequest)."""

    response_format: Any

    @property
    def shape(self) -> tuple[str, StructuredOutputsParams | None]: ...


def held(body: AsksForAShape, settings: ServerSettings, params: SamplingParams) -> SamplingParams:
    """The params with the schema of a response_format as it is followed.

    Raises:
        InvalidRequestError: it is strict and an object may have other members than it names.
    """
    form, wanted = body.shape
    if form != "response_format" or wanted is None or not isinstance(wanted.json, Mapping):
        return params
    named = body.response_format.get("json_schema")
    if isinstance(named, dict) and named.get("strict"):
        _check(wanted.json, str(named.get("name", ""))[:64])
    if settings.closed_schemas:
        params = params.replace(structured_outputs=StructuredOutputsParams(json=closed(wanted.json)))
    return params


def _check(schema: Any, name: str) -> None:
    for context, each in _objects(schema):
        if each.get("additionalProperties") is not False:
            raise InvalidRequestError(
                f"Invalid schema for response_format {name!r}: In context={context}, 'additionalProperties' "
                "is required to be supplied and to be false.",
                "response_format",
            )


def _objects(schema: Any) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """(where it stands, schema) of each that describes objects, the outermost first."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), schema)]
    while waiting:
        context, each = waiting.pop()
        if not isinstance(each, Mapping):
            continue
        kind = each.get("type")
        if kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in each:
            yield context, each
        for word in _NAMED:
            if isinstance(each.get(word), Mapping):
                waiting += [((*context, word, str(name)), part) for name, part in each[word].items()]
        for word in _LISTED:
            if isinstance(each.get(word), list):
                waiting += [((*context, word, str(at)), part) for at, part in enumerate(each[word])]
        waiting.append(((*context, "items"), each.get("items")))
