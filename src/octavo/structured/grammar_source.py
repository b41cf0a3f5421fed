"""From StructuredOutputsParams to the text of a grammar, with bounds on size and depth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from octavo.errors import InvalidRequestError
from octavo.params import StructuredOutputsParams
from octavo.structured.regex_size import MAX_COUNT, MAX_REPEATS, repeats
from octavo.structured.schema import normalize

MAX_CHARS = 200_000
MAX_REGEX_CHARS = 10_000
MAX_CHOICES = 2_000
PARAM = "structured_outputs"

# White space between JSON's parts: one space, or a line break with an indentation. Without a bound a
# model at high temperature may never come to the next part.
JSON_OPTIONS: Any = {"whitespace_pattern": r"( |\n {0,16})?"}


def cache_key(wanted: StructuredOutputsParams) -> str:
    """Equal for what compiles to the same grammar.

    Raises:
        InvalidRequestError: a value of the wrong type, or too large.
    """
    value = getattr(wanted, wanted.kind)
    try:
        text = value if isinstance(value, str) else json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        raise _wrong(f"structured_outputs.{wanted.kind} must be plain JSON") from None
    limit = MAX_REGEX_CHARS if wanted.kind == "regex" else MAX_CHARS
    if len(text) > limit:
        raise _wrong(
            f"structured_outputs.{wanted.kind} has {len(text)} characters; at most {limit} are taken"
        )
    return f"{wanted.kind}:{text}"


def grammar_source(wanted: StructuredOutputsParams) -> str:
    """The grammar as llguidance reads it.

    Raises:
        InvalidRequestError: malformed. UnsupportedError: a JSON schema keyword that is not supported.
    """
    match wanted.kind:
        case "json":
            return from_schema(_object(wanted.json, "json"))
        case "json_object":
            return from_schema({"type": "object"})
        case "regex":
            return _regex(wanted.regex)
        case "choice":
            return _choice(wanted.choice)
        case "grammar":
            return _grammar(wanted.grammar)
        case _:
            return _structural_tag(_object(wanted.structural_tag, "structural_tag"))


def from_schema(schema: Any) -> str:
    """A JSON schema's grammar."""
    import llguidance

    _check_patterns(schema)
    try:
        source: str = llguidance.LLMatcher.grammar_from_json_schema(normalize(schema), overrides=JSON_OPTIONS)
    except InvalidRequestError as error:
        raise type(error)(f"structured_outputs.json: {error}", PARAM) from None
    except ValueError as error:  # what it cannot read, such as numbers of hundreds of digits
        raise _wrong(f"structured_outputs.json: {' '.join(str(error).split())[:200]}") from None
    return source


def _check_patterns(schema: Any) -> None:
    """Refuse patterns that repeat too much, wherever they stand."""
    if isinstance(schema, Mapping):
        if isinstance(pattern := schema.get("pattern"), str):
            _check_repeats(pattern, "json: pattern")
        for name in schema.get("patternProperties", ()):
            _check_repeats(str(name), "json: patternProperties")
        for value in schema.values():
            _check_patterns(value)
    elif isinstance(schema, list):
        for value in schema:
            _check_patterns(value)


def _check_repeats(regex: str, where: str) -> None:
    single, nested = repeats(regex)
    if single > MAX_COUNT:
        raise _wrong(f"structured_outputs.{where}: repeats {single} times; at most {MAX_COUNT} are taken")
    if nested > MAX_REPEATS:
        raise _wrong(
            f"structured_outputs.{where}: repetitions inside each other multiply to {nested}; "
            f"at most {MAX_REPEATS} are taken"
        )


def _regex(regex: Any) -> str:
    import llguidance

    if not isinstance(regex, str):
        raise _wrong("structured_outputs.regex must be a string")
    _check_repeats(regex, "regex")
    source: str = llguidance.LLMatcher.grammar_from_regex(regex)
    return source


def _choice(choice: Any) -> str:
    import llguidance

    ok = isinstance(choice, (list, tuple)) and 0 < len(choice) <= MAX_CHOICES
    if not ok or not all(isinstance(text, str) and text for text in choice):
        raise _wrong(f"structured_outputs.choice must be a list of 1 to {MAX_CHOICES} non-empty strings")
    source: str = llguidance.LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, choice)))
    return source


def _grammar(grammar: Any) -> str:
    import llguidance

    if not isinstance(grammar, str) or not grammar.strip():
        raise _wrong("structured_outputs.grammar must be Lark or GBNF text")
    try:
        source: str = llguidance.grammar_from("grammar", grammar)
    except Exception as error:  # its GBNF reader raises whatever it comes upon
        raise _wrong(f"structured_outputs.grammar: {' '.join(str(error).split())[:200]}") from None
    return source


def _structural_tag(tag: Any) -> str:
    """Free text in which a trigger opens a part whose content follows a schema."""
    import llguidance

    structures, triggers = tag.get("structures"), tag.get("triggers")
    if not (isinstance(structures, list) and isinstance(triggers, list) and structures and triggers):
        raise _wrong("structural_tag needs lists of structures and triggers, none of them empty")
    tags: list[Any] = []
    for structure in structures:
        if not isinstance(structure, Mapping):
            raise _wrong("structural_tag: a structure must be an object")
        begin, end = structure.get("begin"), structure.get("end", "")
        schema = structure.get("schema", structure.get("content"))
        if not (isinstance(begin, str) and isinstance(end, str)):
            raise _wrong("structural_tag: begin and end must be strings")
        trigger = next((t for t in triggers if isinstance(t, str) and t and begin.startswith(t)), None)
        if trigger is None:
            raise _wrong(f"structural_tag: {begin[:60]!r} begins with no trigger")
        normal = normalize(schema)
        if isinstance(normal, dict):
            normal = {**normal, "x-guidance": JSON_OPTIONS}
        tags.append(llguidance.StructTag(trigger=trigger, begin=begin, grammar=json.dumps(normal), end=end))
    source: str = llguidance.LLMatcher.grammar_from_lark(
        llguidance.StructTag.to_grammar(tags, assume_special=False)
    )
    return source


def _object(value: Any, name: str) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise _wrong(f"structured_outputs.{name} is not JSON: {error}") from None
    if not isinstance(value, (Mapping, bool)):
        raise _wrong(f"structured_outputs.{name} must be an object")
    return value


def _wrong(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, PARAM)
