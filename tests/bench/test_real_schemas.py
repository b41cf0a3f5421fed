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
from real_schema_files import MEMBER, bundle, of_wheel

from octavo.errors import UnsupportedError
from octavo.structured import ConstraintCompiler
from support.grammars import ByteTokenizer, accepts, compiled


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
        ("b", {"type": "array", "contains": {"const": 1}, "minContains": 2}),
        ("c", {"$ref": "http://x/y.json#/z"}),
        ("https://a/d", {"$ref": "e#/definitions/here"}),
        ("https://a/e", {"definitions": {"here": {"type": "null"}}, "contains": True}),
    ]
    found = real_schemas.scored(schemas, ByteTokenizer(), lambda _: None).figures()
    assert (found["schemas"], found["served"], found["elsewhere"], found["weakened"]) == (5, 3, 1, 0)
    assert found["share"] == pytest.approx(3 / 5, abs=1e-4)
    assert found["share_at_hand"] == pytest.approx(3 / 4, abs=1e-4)
    assert 0 < found["compiled_p50_ms"] < found["first_use_p50_ms"] < found["confined_p50_ms"]
    assert found["native"] == 3
    assert min(found["native_p50_ms"], found["worked_out_p50_ms"]) > 0
    assert found["reasons"] == {
        "JSON schema keyword 'contains' with 'minContains' or 'maxContains' is not supported": 1,
        "refers to what is not at hand": 1,
    }


def test_a_score_of_refusals_alone_has_no_times() -> None:
    found = real_schemas.scored([("c", {"$ref": "http://x/y.json#/z"})], ByteTokenizer(), lambda _: None)
    assert (found.figures()["served"], found.figures()["first_use_p99_ms"]) == (0, 0.0)


def test_a_bundle_says_what_its_documents_say() -> None:
    """Names relative to each document, drafts of their own, a document of a $ref alone."""
    documents = {
        "https://a/s.json": {"$ref": "t.json", "title": "only a reference"},
        "https://a/t.json": {
            "$schema": "http://json-schema.org/draft-04/schema#", "id": "https://a/t.json", "type": "object",
            "properties": {"x": {"$ref": "u.json#/definitions/n"}, "y": {"$ref": "#/definitions/own"}},
            "definitions": {"own": {"type": "string"}}, "additionalProperties": False,
        },
        "https://a/u.json": {"definitions": {"n": {"minimum": 3, "exclusiveMinimum": 3, "type": "number"}}},
        "https://a/alone.json": {"type": "null"},
        "https://a/lost.json": {"properties": {"z": {"$ref": "https://b/none.json"}}},
    }  # fmt: skip
    bundled, missing = bundle("https://a/s.json", documents)
    assert (missing, sorted(bundled["$defs"])) == (
        [],
        ["https://a/s.json", "https://a/t.json", "https://a/u.json"],
    )
    constraint = compiled(ConstraintCompiler(ByteTokenizer()), json=bundled)
    judge = jsonschema.Draft202012Validator(bundled)
    for value, valid in (({"x": 4, "y": "a"}, True), ({"x": 3}, False), ({"y": 1}, False), ({"z": 1}, False)):
        assert judge.is_valid(value) is valid
        assert accepts(constraint, json.dumps(value)) is valid, value
    assert bundle("https://a/alone.json", documents) == ({"type": "null"}, [])
    assert bundle("https://a/lost.json", documents)[1] == ["https://b/none.json"]


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
