"""Structural tags in the form of newer clients (vLLM, SGLang), as the older one, which is compiled.

    {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<f="], "tags": [
        {"begin": "<f=a>", "content": {"type": "json_schema", "json_schema": {...}}, "end": "</f>"}]}}

Of its formats that one is free text with parts that follow schemas. The others are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.errors import InvalidRequestError, UnsupportedError

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "at_least_one": (None, False),
    "stop_after_first": (None, False),
    "excludes": (None, []),
}
"""Members of the format, with the values that ask for nothing."""
PARAM = "structured_outputs"


def older(tag: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same tag with lists of structures and triggers; one that has them already, as it is.

    Raises:
        UnsupportedError: another format, or a content that is no JSON schema.
        InvalidRequestError: tags that are malformed.
    """
    if "format" not in tag:
        return tag
    form = tag["format"]
    kind = form.get("type") if isinstance(form, Mapping) else form
    if kind != "triggered_tags":
        raise UnsupportedError(
            f"structural_tag: format {str(kind)[:40]!r} is not supported: triggered_tags is", PARAM
        )
    for name, neutral in NEUTRAL.items():
        if form.get(name) not in neutral:
            raise UnsupportedError(f"structural_tag: format.{name} is not supported", PARAM)
    tags = form.get("tags")
    if not isinstance(tags, list) or not all(isinstance(each, Mapping) for each in tags):
        raise InvalidRequestError("structural_tag: format.tags must be a list of objects", PARAM)
    structures = [
        {"begin": each.get("begin"), "end": each.get("end", ""), "schema": _schema(each.get("content"))}
        for each in tags
    ]
    return {"triggers": form.get("triggers"), "structures": structures}


def _schema(content: Any) -> Any:
    kind = content.get("type") if isinstance(content, Mapping) else content
    if kind != "json_schema" or "json_schema" not in content:
        raise UnsupportedError(
            f"structural_tag: content of type {str(kind)[:40]!r} is not supported: json_schema is", PARAM
        )
    return content["json_schema"]
