"""Structural tags as Lark: free text in which a trigger opens a part that follows a schema, and whole forms.

Two spellings are taken: vLLM's first one (structures and triggers), and that of newer clients, whose `format`
is a form: triggered_tags (free text), or one of FORMS, which stand inside each other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.params.structured import PARAM

FORMS = ("const_string", "json_schema", "or", "regex", "sequence", "tag")
_FLAGS = ("at_least_one", "stop_after_first", "excludes")
_SLASH = re.compile(r"\\.|/", re.DOTALL)
DIGITS = {r"\d": "[0-9]", r"\D": "[^0-9]"}
"""As requests mean them: llguidance takes the digits of all scripts. A class may hold another."""
Embed = Callable[[Any], Any]
"""A schema as it is written behind %json."""


def structural_tag(tag: Any, embed: Embed) -> str:
    """The Lark text.

    Raises:
        InvalidRequestError: malformed. UnsupportedError: a form that is not supported, by name.
    """
    if not isinstance(tag, Mapping):
        raise _wrong("structured_outputs.structural_tag must be an object")
    form = tag.get("format")
    if form is None:
        return _triggered(tag.get("structures"), tag.get("triggers"), embed, "structures")
    if not isinstance(form, Mapping):
        raise _wrong("structural_tag.format must be an object")
    if form.get("type") == "triggered_tags":
        for flag in _FLAGS:
            if form.get(flag):
                raise UnsupportedError(f"structural_tag: {flag} is not supported", PARAM)
        return _triggered(form.get("tags"), form.get("triggers"), embed, "tags")
    return f"start: {_form(form, embed)}"


def _triggered(tags: Any, triggers: Any, embed: Embed, name: str) -> str:
    import llguidance

    if not (isinstance(tags, list) and isinstance(triggers, list) and tags and triggers):
        raise _wrong(f"structural_tag needs lists of {name} and triggers, none of them empty")
    found: list[Any] = []
    for tag in tags:
        begin, content, end = _tag(tag)
        trigger = next((t for t in triggers if isinstance(t, str) and t and begin.startswith(t)), None)
        if trigger is None:
            raise _wrong(f"structural_tag: {begin[:60]!r} begins with no trigger")
        if isinstance(content, Mapping) and content.get("type") == "json_schema" and "json_schema" in content:
            content = content["json_schema"]
        grammar = json.dumps(embed(content))
        found.append(llguidance.StructTag(trigger=trigger, begin=begin, grammar=grammar, end=end))
    text: str = llguidance.StructTag.to_grammar(found, assume_special=False)
    return text


def _tag(tag: Any) -> tuple[str, Any, str]:
    """(begin, content, end)."""
    if not isinstance(tag, Mapping):
        raise _wrong("structural_tag: a structure must be an object")
    begin, end = tag.get("begin"), tag.get("end", "")
    if not (isinstance(begin, str) and isinstance(end, str)):
        raise _wrong("structural_tag: begin and end must be strings")
    return begin, tag.get("schema", tag.get("content")), end


def _form(form: Any, embed: Embed) -> str:
    """An expression of Lark."""
    kind = form.get("type") if isinstance(form, Mapping) else None
    match kind:
        case "const_string":
            return json.dumps(_text(form, "value"))
        case "json_schema":
            return f"%json {json.dumps(embed(form.get('json_schema')))}"
        case "regex":
            pattern = _text(form, "pattern")
            if not pattern:
                raise _wrong("structural_tag: pattern must not be empty")
            return f"/{_SLASH.sub(_escaped, pattern)}/"
        case "tag":
            begin, content, end = _tag(form)
            return f"({json.dumps(begin)} {_form(content, embed)} {json.dumps(end)})"
        case "sequence" | "or":
            parts = form.get("elements")
            if not isinstance(parts, list) or not parts:
                raise _wrong(f"structural_tag: {kind} needs a list of elements")
            return f"({(' ' if kind == 'sequence' else ' | ').join(_form(part, embed) for part in parts)})"
    raise UnsupportedError(
        f"structural_tag: a form of type {str(kind)[:60]!r} is not supported here; there are: "
        f"{', '.join(FORMS)}, and triggered_tags around all",
        PARAM,
    )


def _escaped(found: re.Match[str]) -> str:
    return r"\/" if found[0] == "/" else DIGITS.get(found[0], found[0])


def _text(form: Mapping[str, Any], name: str) -> str:
    value = form.get(name)
    if not isinstance(value, str):
        raise _wrong(f"structural_tag: {name} must be a string")
    return value


def _wrong(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, PARAM)
