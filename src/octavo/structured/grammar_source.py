"""From StructuredOutputsParams to the text of a grammar, with bounds on size and depth."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic_core import to_json

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.params import StructuredOutputsParams
from octavo.params.structured import PARAM
from octavo.structured.gbnf import as_lark
from octavo.structured.lark import Regex, scan, with_schemas
from octavo.structured.places import UNIQUE, places_of
from octavo.structured.regex_size import Repetitions
from octavo.structured.schema import written
from octavo.structured.structural_tag import DIGITS, structural_tag

MAX_CHARS = 200_000
MAX_SCHEMA_CHARS = 500_000
"""Much of a schema's text may be descriptions; its parts and the work on them are counted (see refs.py)."""
MAX_REGEX_CHARS = 10_000
MAX_CHOICES = 2_000
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_MOST = {"regex": MAX_REGEX_CHARS, "json": MAX_SCHEMA_CHARS}

_HOLDERS = (dict, list)
_EXPRESSIONS = frozenset(["pattern", "whitespace_pattern", "patternProperties"])

Expression = tuple[str, str, str]
"""(a regular expression, its flags, where it stands)"""

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
        text = value if isinstance(value, str) else _text(value)
    except (TypeError, ValueError, RecursionError):
        raise _wrong(f"structured_outputs.{wanted.kind} must be plain JSON") from None
    limit = _MOST.get(wanted.kind, MAX_CHARS)
    if len(text) > limit:
        raise _wrong(
            f"structured_outputs.{wanted.kind} has {len(text)} characters; at most {limit} are taken"
        )
    return f"{wanted.kind}:{text}"


def grammar_source(wanted: StructuredOutputsParams) -> str:
    """The grammar as llguidance reads it, every regular expression in it looked at.

    Raises:
        InvalidRequestError: malformed. UnsupportedError: a JSON schema keyword that is not supported.
    """
    kind = wanted.kind
    try:
        source = _source(wanted)
        if kind not in ("json", "json_object"):  # which were looked at before they were written
            _check(_expressions(json.loads(source)["grammars"]))
    except InvalidRequestError as error:
        said = str(error)
        raise type(error)(said if said.startswith(PARAM) else f"{PARAM}.{kind}: {said}", PARAM) from None
    except RecursionError:
        raise _wrong(f"{PARAM}.{kind} is nested too deeply") from None
    except Exception as error:  # numbers of hundreds of digits; readers raise whatever they come upon
        raise _wrong(f"{PARAM}.{kind}: {' '.join(str(error).split())[:200]}") from None
    return source


def _source(wanted: StructuredOutputsParams) -> str:
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
            return _lark(structural_tag(_object(wanted.structural_tag, "structural_tag"), _in_tag))


def from_schema(schema: Any) -> str:
    """A JSON schema's grammar, and in a second line places where arrays hold distinct items (distinct.py)."""
    with _uncollected():
        made = written(schema)
        places = places_of(made.schema) if made.unique else []
        for array in made.unique:
            del array[UNIQUE]
        text = _text(_guided(made.schema))
        if text.count("pattern") > 1:  # one is JSON_OPTIONS' own
            _check(_patterns(made.schema))
        del made  # before the collector comes back: there is nothing to look at then
        return f"{text}\n{_text(places)}" if places else text


@contextmanager
def _uncollected() -> Iterator[None]:
    """Under it the collector rests: it would look at what is worked out again and again, and free nothing."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _text(value: Any) -> str:
    """A value as JSON.

    Raises:
        TypeError, ValueError, RecursionError: it is none.
    """
    try:  # a third of the time that json takes
        return to_json(value, inf_nan_mode="constants").decode()
    except ValueError:  # half of a surrogate pair, or what JSON has no name for
        return json.dumps(value)


def _guided(schema: Mapping[str, Any]) -> dict[str, Any]:
    """In llguidance's own format."""
    return {"grammars": [{"json_schema": {**schema, "x-guidance": JSON_OPTIONS}}]}


def _normal(schema: Any) -> Any:
    """The same of a schema inside a grammar, where no walk goes."""
    with _uncollected():
        made = written(schema)
    if made.unique:
        raise UnsupportedError(
            "JSON schema keyword 'uniqueItems' inside a grammar or a structural_tag is only supported of one "
            "item",
            PARAM,
        )
    return made.schema


def _check(expressions: Iterable[Expression]) -> None:
    """Refuse expressions that repeat too much, each by itself or all together."""
    repetitions = Repetitions()
    for regex, flags, where in expressions:
        repetitions.take(regex, where, flags)


def _expressions(grammars: Iterable[Mapping[str, Any]]) -> Iterator[Expression]:
    """Each expression in llguidance's own format."""
    for grammar in grammars:
        if (schema := grammar.get("json_schema")) is not None:
            yield from _patterns(schema)
        for found in scan(grammar.get("lark_grammar") or ""):
            if isinstance(found, Regex):
                yield found.text, found.flags, "regex"
            else:
                yield from _patterns(found.value)


def _patterns(schema: Any) -> Iterator[Expression]:
    open_parts = [schema]
    while open_parts:  # no recursion: a client chooses the depth
        part = open_parts.pop()
        if isinstance(part, list):
            open_parts += [each for each in part if isinstance(each, _HOLDERS)]
        elif isinstance(part, dict):
            if not _EXPRESSIONS.isdisjoint(part):
                for name in ("pattern", "whitespace_pattern"):
                    if isinstance(value := part.get(name), str):
                        yield value, "", name
                if isinstance(named := part.get("patternProperties"), dict):
                    yield from ((str(pattern), "", "patternProperties") for pattern in named)
            open_parts += [each for each in part.values() if isinstance(each, _HOLDERS)]


def _regex(regex: Any) -> str:
    import llguidance

    if not isinstance(regex, str):
        raise _wrong("structured_outputs.regex must be a string")
    plain = _ESCAPED.sub(lambda found: DIGITS.get(found[0], found[0]), regex)
    source: str = llguidance.LLMatcher.grammar_from_regex(plain)
    return source


def _choice(choice: Any) -> str:
    ok = isinstance(choice, (list, tuple)) and 0 < len(choice) <= MAX_CHOICES
    if not ok or not all(isinstance(text, str) and text for text in choice):
        raise _wrong(f"structured_outputs.choice must be a list of 1 to {MAX_CHOICES} non-empty strings")
    return _lark("start: " + " | ".join(map(json.dumps, choice)))


def _grammar(grammar: Any) -> str:
    if not isinstance(grammar, str) or not grammar.strip():
        raise _wrong("structured_outputs.grammar must be Lark or GBNF text")
    return _lark(with_schemas(as_lark(grammar), _embedded))


def _lark(text: str) -> str:
    """Lark text in llguidance's own format, which text that begins with a brace would be taken for itself."""
    return json.dumps({"grammars": [{"lark_grammar": text}]})


def _embedded(schema: Any) -> Any:
    """What follows %json: refused or followed as elsewhere; its x-guidance is llguidance's own."""
    if not isinstance(schema, Mapping) or "x-guidance" not in schema:
        return _normal(schema)
    normal = _normal({name: value for name, value in schema.items() if name != "x-guidance"})
    return {**normal, "x-guidance": schema["x-guidance"]} if isinstance(normal, dict) else normal


def _in_tag(schema: Any) -> Any:
    """A schema inside a structural tag."""
    normal = _normal(schema)
    return {**normal, "x-guidance": JSON_OPTIONS} if isinstance(normal, dict) else normal


def _object(value: Any, name: str) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise _wrong(f"structured_outputs.{name} is not JSON: {error}") from None
    if not isinstance(value, (Mapping, bool)):
        raise _wrong(f"structured_outputs.{name} must be an object")
    return value


def _wrong(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, PARAM)
