"""response_format, structured_outputs and guided_*: several names for the shape of an answer."""

from __future__ import annotations

from typing import Any, Protocol

from octavo.errors import InvalidRequestError
from octavo.params import StructuredOutputsParams

GUIDED = ("json", "regex", "choice", "grammar")
Wanted = tuple[str, StructuredOutputsParams | None]


class Asking(Protocol):
    """A request's fields that may ask for a shape; guided_* are looked up by their names."""

    @property
    def structured_outputs(self) -> Any: ...
    @property
    def response_format(self) -> Any: ...


def structured(body: Asking) -> Wanted:
    """(the field that asks, what for); ("structured_outputs", None) where none does.

    Raises:
        InvalidRequestError: two fields ask, or one is malformed.
    """
    found: list[Wanted] = []
    if body.structured_outputs is not None:
        given = body.structured_outputs.model_dump(by_alias=True)
        found.append(("structured_outputs", StructuredOutputsParams(**given)))
    for kind in GUIDED:
        value = getattr(body, f"guided_{kind}")
        if value is not None:
            found.append((f"guided_{kind}", StructuredOutputsParams(**{kind: value})))
    if body.response_format is not None and (wanted := from_response_format(body.response_format)):
        found.append(("response_format", wanted))
    if len(found) > 1:
        raise InvalidRequestError(f"{found[0][0]} and {found[1][0]} exclude each other", found[1][0])
    return found[0] if found else ("structured_outputs", None)


def from_response_format(given: Any) -> StructuredOutputsParams | None:
    """OpenAI's response_format; None for plain text.

    Also taken: a schema beside json_object, as `schema` or, as TGI's clients write it, `value`.
    """
    kind = given.get("type") if isinstance(given, dict) else None
    schema: Any
    match kind:
        case "text":
            _only(given, "type")
            return None
        case "json_object":
            _only(given, "type", "schema", "value")
            schema = given.get("schema", given.get("value"))
            return StructuredOutputsParams(json_object=True) if schema is None else _json(schema)
        case "json_schema":
            _only(given, "type", "json_schema")
            inner = given.get("json_schema")
            if not isinstance(inner, dict) or "schema" not in inner:
                raise _wrong("response_format.json_schema must be an object with a schema")
            for name in inner:
                if name not in ("name", "description", "schema", "strict"):
                    raise _wrong(f"unknown field response_format.json_schema.{name[:60]}")
            return _json(inner["schema"])
        case "structural_tag":
            return StructuredOutputsParams(structural_tag={**given})
    raise _wrong("response_format.type must be text, json_object, json_schema or structural_tag")


def _json(schema: Any) -> StructuredOutputsParams:
    if not isinstance(schema, (dict, bool)):
        raise _wrong("response_format: the schema must be an object")
    return StructuredOutputsParams(json=schema)


def _only(given: dict[str, Any], *names: str) -> None:
    for name in given:
        if name not in names:
            raise _wrong(f"unknown field response_format.{name[:60]}")


def _wrong(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, "response_format")
