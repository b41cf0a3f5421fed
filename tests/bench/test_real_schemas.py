"""benchmarks/real_schemas.py: what it reads, judges, changes and counts."""

from __future__ import annotations

import json
import pickle
import random
import sqlite3
import sys
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import real_schemas
from real_schema_files import MEMBER, of_wheel

from octavo.errors import UnsupportedError
from octavo.structured import ConstraintCompiler
from support.grammars import ByteTokenizer, compiled


class Loud:
    """Would do something if a pickle were trusted."""

    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('a pickle ran')",))


def wheel(folder: Path, answers: dict[str, Any]) -> Path:
    database = folder / "cache.sqlite"
    connection = sqlite3.connect(database)
    connection.execute("CREATE TABLE responses (key TEXT PRIMARY KEY, value BLOB)")
    for address, body in answers.items():
        answer = {"_content": body, "url": address, "raw": Loud()}
        connection.execute("INSERT INTO responses VALUES (?, ?)", (address, pickle.dumps(answer)))
    connection.commit()
    connection.close()
    path = folder / "store.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.write(database, MEMBER)
    return path


def test_only_schemas_are_read_and_no_pickle_runs(tmp_path: Path) -> None:
    path = wheel(tmp_path, {
        "https://b/s.json": b'\xef\xbb\xbf{"type": "null"}',
        "https://a/s.json": b'{"properties": {}}',
        "https://a/catalog.json": b'{"$schema": "x", "type": "y"}',
        "https://a/no-schema.json": b'{"name": "x"}',
        "https://a/list.json": b"[1]",
        "https://a/page.html": b"<html>",
    })  # fmt: skip
    assert of_wheel(path) == [
        ("https://a/s.json", {"properties": {}}),
        ("https://b/s.json", {"type": "null"}),
    ]


@pytest.mark.parametrize(
    ("declared", "judge"),
    [
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, jsonschema.Draft4Validator),
        ({"$schema": "https://json-schema.org/draft-07/schema"}, jsonschema.Draft7Validator),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema#"}, jsonschema.Draft201909Validator),
        ({"$schema": "http://json-schema.org/schema#"}, jsonschema.Draft202012Validator),
        ({}, jsonschema.Draft202012Validator),
    ],
)
def test_the_declared_draft_judges(declared: dict[str, Any], judge: type[Any]) -> None:
    assert type(real_schemas.judge_of(declared)) is judge


def test_a_change_is_somewhere_and_leaves_the_value_alone() -> None:
    draw = random.Random(0)
    value = {"a": [1, {"b": "c"}], "d": None}
    before = json.dumps(value)
    seen = {json.dumps(real_schemas.changed(value, draw)) for _ in range(300)}
    assert json.dumps(value) == before
    assert len(seen - {before}) > 40


def test_a_weakened_schema_is_noticed() -> None:
    make, draw = ConstraintCompiler(ByteTokenizer()), random.Random(0)
    strict = {"type": "array", "items": {"type": "string"}, "maxItems": 2, "examples": [["a"]]}
    score = real_schemas.Score()
    assert real_schemas.weaknesses(strict, compiled(make, json=strict), score, draw) == []
    assert 0 < score.tried < score.judged
    loose = compiled(make, json={"type": "array"})
    found = real_schemas.weaknesses(strict, loose, score, draw)
    assert found
    assert not any(jsonschema.Draft202012Validator(strict).is_valid(json.loads(text)) for text in found)


def test_the_score_counts_and_says_why() -> None:
    schemas = [
        ("a", {"type": "integer"}),
        ("b", {"type": "array", "contains": {"const": 1}}),
        ("c", {"$ref": "http://x/y.json#/z"}),
    ]
    found = real_schemas.scored(schemas, ByteTokenizer(), lambda _: None).figures()
    assert (found["schemas"], found["served"], found["weakened"]) == (3, 1, 0)
    assert found["share"] == pytest.approx(1 / 3, abs=1e-4)
    assert found["reasons"] == {
        "JSON schema keyword 'contains' is not supported": 1,
        "$ref ... does not point into the schema": 1,
    }


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "structured_outputs.json has 300000 characters; at most 200000 are taken",
            "has N characters; at most N",
        ),
        (
            "structured_outputs: regex parse error: x error: look-around, including",
            "pattern with look-around",
        ),
        ("structured_outputs.json: $schema 'urn:x' is not a dialect", "$schema ... is not a dialect"),
    ],
)
def test_reasons_name_no_schema(said: str, reason: str) -> None:
    assert real_schemas.reason_of(UnsupportedError(said)).startswith(reason)
