"""Whether a given JSON value satisfies a keyword: for const and enum, whose values are at hand."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.params.structured import PARAM
from octavo.structured.schema.equality import equal, frozen, type_of
from octavo.structured.schema.expressions import beginning
from octavo.structured.schema.refs import Schemas

MAX_NUMBER = 2**63 - 1
MAX_SIZE = 2**32 - 1
MAX_KNOWN = 200
"""Characters of a text of which it is remembered what matches it."""

_PLAIN = re.compile(r"\^([A-Za-z0-9_-]+)(\$?)")
_ANYWHERE = frozenset(["", ".*", "^.*", ".*$"])
"""Patterns that are found in every text."""


def check_number(keyword: str, value: Any) -> None:
    """Raise unless the keyword's value is a number it can be, and one that can be followed."""
    size = keyword.startswith(("min", "max")) and keyword not in ("minimum", "maximum")
    ok = isinstance(value, (int, float)) and not isinstance(value, bool)
    ok = ok and (isinstance(value, int) or math.isfinite(value))  # a float could not hold every int
    if not ok or (size and (value < 0 or value != int(value))) or (keyword == "multipleOf" and value <= 0):
        wanted = "a whole number from 0" if size else "above 0" if keyword == "multipleOf" else "a number"
        raise InvalidRequestError(f"{keyword} must be {wanted}, not {repr(value)[:40]}", PARAM)
    limit = MAX_SIZE if size else MAX_NUMBER
    if abs(value) > limit:
        bounds = f"up to {limit}" if size or keyword == "multipleOf" else f"from -{limit} to {limit}"
        raise UnsupportedError(f"JSON schema keyword {keyword!r} is followed {bounds}", PARAM)


def holds(schemas: Schemas, value: Any, number: int, keyword: str, wanted: bool) -> bool:
    """Whether the value satisfies (or, not wanted, violates) one keyword of a subschema.

    A word that is foreign to a draft can make it neither (see drafts.py).
    """
    exact = schemas.exact
    known = keyword in exact[number]
    if not wanted:
        return known and not _keyword(exact, value, number, keyword)
    if exact is not schemas and known and not _keyword(exact, value, number, keyword):
        return False
    return _keyword(schemas, value, number, keyword)


def satisfies(schemas: Schemas, value: Any, number: int) -> bool:
    """Whether the value satisfies a subschema, with all its words and as its draft alone reads it."""
    exact = schemas.exact
    return (exact is schemas or _satisfies(exact, value, number)) and _satisfies(schemas, value, number)


def _satisfies(schemas: Schemas, value: Any, number: int) -> bool:
    schemas.spend(1)
    schema = schemas[number]
    if isinstance(schema, bool):
        return schema
    return all(_keyword(schemas, value, number, keyword) for keyword in schema)


def _keyword(schemas: Schemas, value: Any, number: int, keyword: str) -> bool:
    schema = schemas[number]
    given = schema[keyword]

    def sub(part: Any, of: Any = value) -> bool:
        return _satisfies(schemas, of, schemas.number(part))

    match keyword:
        case "$ref":
            return _satisfies(schemas, value, schemas.target(number, given))
        case "$dynamicRef":
            return _satisfies(schemas, value, schemas.dynamic_target(number, given))
        case "type":
            names = [given] if isinstance(given, str) else given
            kind = type_of(value)
            # 1.0 is an integer even where draft 4 has it otherwise: it is written as 1
            return kind in names or (kind == "number" and "integer" in names and value == int(value))
        case "const":
            return equal(value, given)
        case "enum":
            return frozen(value) in schemas.values(number)
        case "allOf":
            return all(map(sub, given))
        case "anyOf":
            return any(map(sub, given))
        case "oneOf":
            return sum(map(sub, given)) == 1
        case "not":
            return not sub(given)
        case "if":
            return sub(schema.get("then", True) if sub(given) else schema.get("else", True))
    if isinstance(value, dict):
        return _object(schemas, value, schema, keyword, sub)
    if isinstance(value, list):
        return _array(value, schema, keyword, sub)
    if isinstance(value, str):
        schemas.spend(15 if keyword == "pattern" else 0)
        return _string(value, given, keyword)
    if type_of(value) == "number":
        return _number(value, given, keyword)
    return True


def _number(value: float, given: Any, keyword: str) -> bool:
    match keyword:
        case "minimum":
            return bool(value >= given)
        case "maximum":
            return bool(value <= given)
        case "exclusiveMinimum":
            return bool(value > given)
        case "exclusiveMaximum":
            return bool(value < given)
        case "multipleOf":
            from fractions import Fraction

            return (Fraction(str(value)) / Fraction(str(given))).denominator == 1
    return True


def _string(value: str, given: Any, keyword: str) -> bool:
    match keyword:
        case "minLength":
            return bool(len(value) >= given)
        case "maxLength":
            return bool(len(value) <= given)
        case "pattern":
            return matches_pattern(given, value)
    return True


def _array(value: list[Any], schema: Any, keyword: str, sub: Any) -> bool:
    given = schema[keyword]
    prefix = schema.get("prefixItems", [])
    match keyword:
        case "minItems":
            return bool(len(value) >= given)
        case "maxItems":
            return bool(len(value) <= given)
        case "uniqueItems":
            return not given or not any(equal(a, b) for i, a in enumerate(value) for b in value[:i])
        case "prefixItems":
            return all(sub(part, item) for part, item in zip(given, value, strict=False))
        case "items":
            return all(sub(given, item) for item in value[len(prefix) :])
        case "contains":
            count = sum(bool(sub(given, item)) for item in value)
            return bool(schema.get("minContains", 1) <= count <= schema.get("maxContains", count))
        case "unevaluatedItems":
            _refuse(keyword)
    return True


def _object(schemas: Schemas, value: dict[str, Any], schema: Any, keyword: str, sub: Any) -> bool:
    given = schema[keyword]
    match keyword:
        case "minProperties":
            return bool(len(value) >= given)
        case "maxProperties":
            return bool(len(value) <= given)
        case "required":
            return all(name in value for name in given)
        case "properties":
            return all(sub(part, value[name]) for name, part in given.items() if name in value)
        case "patternProperties":
            return all(
                sub(part, item)
                for p, part in given.items()
                for n, item in value.items()
                if matches_pattern(p, n)
            )
        case "additionalProperties":
            return all(sub(given, value[name]) for name in _others(value, schema))
        case "propertyNames":
            return all(sub(given, name) for name in value)
        case "dependentRequired":
            return all(n in value for name, needed in given.items() if name in value for n in needed)
        case "dependentSchemas":
            return all(sub(part) for name, part in given.items() if name in value)
        case "unevaluatedProperties":
            _refuse(keyword)
    return True


def _others(value: dict[str, Any], schema: Any) -> Iterable[str]:
    patterns = schema.get("patternProperties", {})
    for name in value:
        if name not in schema.get("properties", {}) and not any(matches_pattern(p, name) for p in patterns):
            yield name


def _refuse(keyword: str) -> None:
    raise UnsupportedError(f"JSON schema keyword {keyword!r} beside const or enum is not supported", PARAM)


def matches_pattern(pattern: str, text: str) -> bool:
    """Whether the pattern is found in the text. In linear time, by llguidance's own expressions."""
    if plain := _PLAIN.fullmatch(pattern):  # as ^x- is: most patterns of names are
        return text == plain[1] if plain[2] else text.startswith(plain[1])
    if pattern in _ANYWHERE:
        return True
    if not text.startswith(beginning(pattern)):
        return False
    return _matched(pattern, text) if len(text) <= MAX_KNOWN else _matches(pattern, text)


def _matches(pattern: str, text: str) -> bool:
    matcher = _pattern(pattern).deep_copy()
    return bool(matcher.consume_tokens(list(json.dumps(text, ensure_ascii=False).encode()))) and bool(
        matcher.is_accepting()
    )


_matched = lru_cache(maxsize=4096)(_matches)


@lru_cache(maxsize=64)
def _pattern(pattern: str) -> Any:
    import llguidance

    source = llguidance.LLMatcher.grammar_from_json_schema({"type": "string", "pattern": pattern})
    matcher = llguidance.LLMatcher(_bytes_tokenizer(), source, log_level=0)
    if matcher.is_error():
        raise InvalidRequestError(f"pattern {pattern[:60]!r}: {matcher.get_error()[:200]}", PARAM)
    return matcher


@lru_cache(maxsize=1)
def _bytes_tokenizer() -> Any:
    from octavo.structured.grammar import GrammarVocabulary

    tokens = [bytes([byte]) for byte in range(256)] + [b"<end>"]
    return GrammarVocabulary(tokens, [256], [256], lambda text: list(text.encode())).tokenizer
