"""What the words of a subschema mean in its draft: drafts 3 to 2019-09 rewritten as 2020-12.

A word that no draft knows is an annotation, as JSON Schema says, and constrains nothing. A word that another
draft than the declared one knows is *foreign*: it is obeyed where a schema has to hold, as its author means
it, but nothing is concluded from its violation. So an answer is valid in both readings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.params.structured import PARAM
from octavo.structured.regex_size import Repetitions
from octavo.structured.schema.expressions import has_lookahead, with_escaped_braces, without_lookahead

NEWEST = 2020

_DRAFT = re.compile(r"https?://json-schema\.org/(?:draft-0(\d)|draft/(\d{4}))?")

_SINCE = {
    "allOf": 4, "anyOf": 4, "oneOf": 4, "not": 4, "multipleOf": 4, "maxProperties": 4, "minProperties": 4,
    "const": 6, "contains": 6, "propertyNames": 6, "if": 7, "dependentRequired": 2019,
    "dependentSchemas": 2019, "maxContains": 2019, "minContains": 2019, "unevaluatedItems": 2019,
    "unevaluatedProperties": 2019, "$dynamicRef": NEWEST, "prefixItems": NEWEST,
}  # fmt: skip
_NEWER = frozenset(_SINCE)
_DRAFT_3 = frozenset(["disallow", "divisibleBy", "extends"])

_ALWAYS = (
    "$anchor", "$comment", "$defs", "$dynamicAnchor", "$id", "$ref", "$schema", "additionalItems",
    "additionalProperties", "definitions", "dependencies", "else", "enum", "exclusiveMaximum",
    "exclusiveMinimum", "format", "items", "maxItems", "maxLength", "maximum", "minItems", "minLength",
    "minimum", "pattern", "patternProperties", "properties", "required", "then", "type", "uniqueItems",
)  # fmt: skip

SUPPORTED = frozenset({*_SINCE, *_ALWAYS})
"""Words that are understood. Some of them only in part: then the error says which part is missing."""

_PLAIN = frozenset(_ALWAYS) - {
    "$ref", "additionalItems", "dependencies", "exclusiveMaximum", "exclusiveMinimum", "format", "items",
    "pattern", "patternProperties",
}  # fmt: skip
"""Words that stay as they are, in every draft."""

FORMATS = frozenset(
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
)


def draft_of(schema: Mapping[str, Any], draft: int) -> int:
    """The draft that a subschema declares, or else `draft`, that of what it stands in.

    Raises:
        UnsupportedError: it is no draft of JSON Schema.
    """
    if "$schema" not in schema:
        return draft
    dialect = schema["$schema"]
    found = _DRAFT.match(dialect) if isinstance(dialect, str) else None
    number = int(found[1] or found[2] or NEWEST) if found else 0
    if number < 3:
        raise UnsupportedError(f"$schema {str(dialect)[:80]!r} is not a dialect that is supported", PARAM)
    return number


def identifier(schema: Mapping[str, Any], draft: int) -> str | None:
    """The $id of a subschema; up to draft 4 it is called id, and up to draft 7 there is none beside $ref."""
    name = schema.get("$id" if draft > 4 else "id")
    return name if isinstance(name, str) and not (draft <= 7 and "$ref" in schema) else None


def read(
    schema: Mapping[str, Any], draft: int, repetitions: Repetitions
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A subschema in the words of 2020-12, as it is obeyed, and as its draft alone reads it.

    Both hold the same dict if no word is foreign. Parts stay the objects that they are. Its expressions are
    counted: from here on values are held against them, which compiles them.

    Raises:
        InvalidRequestError: expressions that repeat too much.
        UnsupportedError: a word that constrains and cannot be followed.
    """
    if draft == 3 and (words := _DRAFT_3.intersection(schema)):
        raise UnsupportedError(f"JSON schema keyword {min(words)!r} is not supported", PARAM)
    if draft == 2019 and "$recursiveRef" in schema:
        raise UnsupportedError("JSON schema keyword '$recursiveRef' is not supported", PARAM)
    found = {word: value for word, value in schema.items() if word in SUPPORTED}
    if found.keys() <= _PLAIN:
        return found, found
    foreign = set[str]()
    if draft < NEWEST and not _NEWER.isdisjoint(found):
        foreign = {word for word in found if _SINCE.get(word, 0) > draft}
    if "pattern" in found or "patternProperties" in found:
        _read_patterns(found, repetitions)
    if "exclusiveMinimum" in found or "exclusiveMaximum" in found:
        _read_bounds(found, foreign, draft)
    if "items" in found or "additionalItems" in found:
        _read_items(found, draft)
    if "dependencies" in found:
        made = _read_dependencies(found)
        foreign |= made if draft > 7 else set()
    if draft < 2019 and found.get("minContains") == 0:
        del found["minContains"]  # contains asks for one there
    if isinstance(name := found.get("format"), str) and name not in FORMATS:
        del found["format"]
    if draft <= 7 and "$ref" in found:
        foreign |= found.keys() - {"$ref"}  # which used to hide what stands beside it
    if not foreign:
        return found, found
    return found, {word: value for word, value in found.items() if word not in foreign}


def _read_patterns(found: dict[str, Any], repetitions: Repetitions) -> None:
    """Expressions without look-ahead: several, where one would be too large."""
    pattern, named = found.get("pattern"), found.get("patternProperties")
    if isinstance(named, Mapping):
        for name in named:
            repetitions.take(str(name), "patternProperties")
    if isinstance(pattern, str):
        repetitions.take(pattern, "pattern")
        pattern = found["pattern"] = with_escaped_braces(pattern)
        if has_lookahead(pattern):
            parts: list[Any] = [{"pattern": each} for each in without_lookahead(pattern)]
            if parts:
                found["pattern"] = parts.pop(0)["pattern"]
            else:
                del found["pattern"]
                parts = [{"minLength": 1}, {"maxLength": 0}]
            if parts:
                found["allOf"] = [*found.get("allOf", []), *parts]
    if isinstance(named, Mapping) and any("{" in str(each) or has_lookahead(str(each)) for each in named):
        made = {called: part for name, part in named.items() for called in _names_of(str(name))}
        if len(made) == len(named):
            found["patternProperties"] = made


def _names_of(pattern: str) -> tuple[str, ...]:
    """A pattern of names without look-ahead; as it is, if that takes several."""
    plain = with_escaped_braces(pattern)
    parts = without_lookahead(plain) if has_lookahead(plain) else (plain,)
    return parts if len(parts) == 1 else (plain,)


def _read_bounds(found: dict[str, Any], foreign: set[str], draft: int) -> None:
    """Draft 4's exclusiveMinimum says whether minimum is exclusive."""
    for word, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if not isinstance(found.get(word), bool):
            if draft <= 4 and word in found:
                foreign.add(word)
        elif found.pop(word) and plain in found:
            found[word] = found.pop(plain)


def _read_items(found: dict[str, Any], draft: int) -> None:
    """A list of items is what prefixItems is now, and additionalItems are the items after it."""
    items, rest = found.get("items"), found.pop("additionalItems", None)
    if "prefixItems" in found and "items" in found and (draft < NEWEST or isinstance(items, list)):
        raise UnsupportedError(
            "JSON schema keyword 'prefixItems' beside 'items' is only supported in draft 2020-12", PARAM
        )
    if isinstance(items, list):
        del found["items"]
        if items:
            found["prefixItems"] = items
        if rest is not None:
            found["items"] = rest


def _read_dependencies(found: dict[str, Any]) -> set[str]:
    """What dependencies are called now: of names and of schemas. Returns those that are written."""
    given = found.pop("dependencies")
    if not isinstance(given, Mapping):
        raise InvalidRequestError("dependencies must be an object of schemas and lists of names", PARAM)
    names = {name: [part] if isinstance(part, str) else part for name, part in given.items()}
    lists = {name: part for name, part in names.items() if isinstance(part, list) and part}
    schemas = {name: part for name, part in names.items() if not isinstance(part, list)}
    made: set[str] = set()
    for word, parts in (("dependentRequired", lists), ("dependentSchemas", schemas)):
        if not parts:
            continue
        if word in found:
            raise UnsupportedError(
                f"JSON schema keyword 'dependencies' beside {word!r} is not supported", PARAM
            )
        found[word] = parts
        made.add(word)
    return made
