"""scripts/golden.py: a part of what was said at the golden commit is said today, and every change is seen."""

from __future__ import annotations

import copy
import gzip
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from octavo.kernels.cpu import instruction_sets
from octavo.kernels.select import native_available
from octavo.params import Logprob

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"


@pytest.fixture(scope="module")
def golden() -> Iterator[ModuleType]:
    sys.path.insert(0, str(SCRIPTS))
    import golden

    yield golden
    sys.path.remove(str(SCRIPTS))


@pytest.mark.skipif(
    not native_available() or "avx2" not in instruction_sets(), reason="recorded with AVX2: needs such a CPU"
)
def test_a_part_is_said_today(smollm2_path: Path) -> None:
    """`make golden` compares all of it."""
    command = [sys.executable, str(SCRIPTS / "golden.py"), "compare", "--part", "12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert " 0 differences" in done.stdout


def test_what_the_file_holds(golden: ModuleType) -> None:
    content = golden.read(golden.FILE)
    assert content["about"]["commit"].startswith("e9d8bdb")
    assert content["about"]["changed"] is False
    entries = content["entries"]
    crowds = [name for name in entries if name.startswith("crowd ")]
    assert (len(crowds), len(entries) - len(crowds) >= 300) == (500, True)
    assert len({json.dumps(entries[name]) for name in crowds}) == 500
    models = {entries[name]["model"] for name in crowds}
    assert models == {"llama", "window", "mixed", "t5"}
    statuses = {told["status"] for name, told in entries.items() if name not in crowds}
    assert {200, 400, 401, 404, 405, 413, 503} <= statuses


ENTRIES: dict[str, Any] = {
    "crowd 1": {"rounds": [{"answers": [{"ids": [[1, 2, 3]], "bits": ["aa"]}]}]},
    "call 1": {"status": 400, "body": {"error": {"message": "no", "param": None}}},
    "call 2": {"status": 200, "body": "fine"},
}
CHANGED: list[tuple[str, list[Any], Any]] = [
    ("crowd 1", ["rounds", 0, "answers", 0, "ids", 0, 2], 4),
    ("crowd 1", ["rounds", 0, "answers", 0, "ids", 0], [1, 2]),
    ("crowd 1", ["rounds", 0, "answers", 0, "bits", 0], "ab"),
    ("call 1", ["status"], 422),
    ("call 1", ["body", "error", "message"], "never"),
    ("call 1", ["body", "error", "param"], "n"),
    ("call 1", ["body", "error", "code"], None),
    ("call 2", ["status"], 200.0),
]


def changed(entry: str, path: list[Any], value: Any) -> dict[str, Any]:
    new = copy.deepcopy(ENTRIES)
    at = new[entry]
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return new


@pytest.mark.parametrize(("entry", "path", "value"), CHANGED)
def test_every_change_is_seen_and_can_be_listed(
    golden: ModuleType, entry: str, path: list[Any], value: Any
) -> None:
    new = changed(entry, path, value)
    assert len(golden.judge(ENTRIES, new, [], True)) == 1
    assert len(golden.judge(ENTRIES, {entry: new[entry]}, [], False)) == 1
    (found,) = golden.differences(ENTRIES[entry], new[entry], entry)
    line = {"entry": found.entry, "path": found.path, "new": found.new, "why": "meant"}
    if found.old is not golden.NOTHING:
        line["old"] = found.old
    assert golden.judge(ENTRIES, new, [line], True) == []
    # Listed with another value it is not listed; and a list must not name what is none.
    assert len(golden.judge(ENTRIES, new, [line | {"new": "other"}], True)) == 2
    assert len(golden.judge(ENTRIES, ENTRIES, [line], True)) == 1
    assert golden.judge(ENTRIES, {}, [line], False) == []


def test_missing_and_new_entries_are_seen(golden: ModuleType) -> None:
    fewer = {name: told for name, told in ENTRIES.items() if name != "call 2"}
    assert len(golden.judge(ENTRIES, fewer, [], True)) == 1
    assert len(golden.judge(fewer, ENTRIES, [], True)) == 1
    assert golden.judge(ENTRIES, fewer, [], False) == []
    assert len(golden.judge(fewer, ENTRIES, [], False)) == 1
    assert golden.judge(ENTRIES, ENTRIES, [], True) == []


def test_a_part_that_the_file_does_not_know_is_wrong(
    golden: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that changed would compare nothing."""
    file, listing = tmp_path / "golden.json.gz", tmp_path / "listed.json"
    content = {"about": {"commit": "e9d8bdb"}, "entries": ENTRIES}
    file.write_bytes(gzip.compress(json.dumps(content).encode()))
    listing.write_text("[]")
    for said, wrong in (({"call 1": ENTRIES["call 1"]}, 0), ({"call one": ENTRIES["call 1"]}, 1)):
        monkeypatch.setattr(golden, "say", lambda part, said=said: said)
        assert golden.compare(file, listing, 12) == wrong
    monkeypatch.setattr(golden, "say", lambda part: {})
    with pytest.raises(AssertionError, match="says nothing"):
        golden.compare(file, listing, 12)


def test_one_line_for_many(golden: ModuleType) -> None:
    new = changed("call 1", ["body", "error", "message"], "never")
    line = {"entry": "call *", "path": "body/*/message", "old": "no", "new": "never", "why": "meant"}
    assert golden.judge(ENTRIES, new, [line], True) == []


@pytest.mark.usefixtures("golden")
def test_one_bit_of_a_logprob_is_seen() -> None:
    import golden_crowds

    def told(logprob: float = -1.5, rank: int = 1, token_id: int = 7) -> str:
        found: str = golden_crowds.bits([{token_id: Logprob(logprob, rank), 9: Logprob(-2.0, 2)}])
        return found

    assert told() == told()
    assert len({told(), told(math.nextafter(-1.5, 0)), told(rank=2), told(token_id=8)}) == 4
    assert golden_crowds.digest([1.0]) != golden_crowds.digest([math.nextafter(1.0, 2)])
    assert golden_crowds.bits(None) == ""


def chunk(delta: dict[str, Any], end: str | None = None, index: int = 0) -> list[Any]:
    return ["", {"id": "x", "choices": [{"index": index, "delta": delta, "finish_reason": end}]}]


@pytest.mark.usefixtures("golden")
def test_pieces_of_a_stream_are_put_together() -> None:
    import golden_http

    first, rest = chunk({"role": "a", "content": "He"}), chunk({"content": "llo"})
    whole = chunk({"role": "a", "content": "Hello"}, "stop")
    assert golden_http.folded([first, rest, chunk({}, "stop")]) == [whole]
    assert golden_http.folded([first, chunk({"content": "llo"}, "stop")]) == [whole]
    assert golden_http.folded([first, chunk({"content": "lly"}, "stop")]) != [whole]
    call = chunk({"tool_calls": [{"index": 0, "id": "*", "function": {"name": "f", "arguments": "{"}}]})
    more = chunk({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]})
    other = chunk({"tool_calls": [{"index": 1, "id": "*", "function": {"name": "g", "arguments": ""}}]})
    (both,) = golden_http.folded([call, more, other])
    calls = both[1]["choices"][0]["delta"]["tool_calls"]
    assert [c["function"]["arguments"] for c in calls] == ["{}", ""]


@pytest.mark.usefixtures("golden")
@pytest.mark.parametrize(
    ("left", "right"),
    [
        (chunk({"content": "a"}), chunk({"content": "a"}, index=1)),
        (chunk({"content": "a"}, "stop"), chunk({"content": "a"})),
        (chunk({"content": "a"}), ["event", {"id": "x"}]),
        (chunk({"content": "a"}), ["", "[DONE]"]),
        (["", {"id": "x", "n": 1}], ["", {"id": "x", "n": 2}]),
        (["", {"id": "x"}], ["", {"id": "x", "usage": None}]),
    ],
)
def test_other_events_stay_apart(left: list[Any], right: list[Any]) -> None:
    import golden_http

    assert golden_http.folded([left, right]) == [left, right]


@pytest.mark.usefixtures("golden")
def test_events_of_one_choice_stand_together() -> None:
    import golden_http

    def line(event: list[Any]) -> str:
        return f"data: {json.dumps(event[1])}\n\n"

    events = [chunk({"content": c}, index=i) for i, c in ((0, "a"), (1, "x"), (0, "b"), (1, "y"))]
    body = "".join(map(line, events)) + "event: end\ndata: {}\n\ndata: [DONE]\n\n"
    found = golden_http.events_of(body)
    assert found == [chunk({"content": "ab"}), chunk({"content": "xy"}, index=1), ["end", {}], ["", "[DONE]"]]


@pytest.mark.usefixtures("golden")
def test_masks() -> None:
    import golden_http

    said = {"id": "chatcmpl-0123456789abcdef", "created": 1234, "call": "0a1b2c3d4", "sequence_number": 3}
    assert golden_http.masked(said) == {"id": "chatcmpl-*", "created": 0, "call": "*"}
    assert golden_http.masked({"seed": 2**40, "n": 2**40}) == {"seed": "drawn", "n": 2**40}
    assert golden_http.masked({"seed": 7}) == {"seed": 7}
    assert golden_http.masked({"model": "call me", "text": "0a1b"}) == {"model": "call me", "text": "0a1b"}
    long = [0.5] * 100
    assert golden_http.masked(long) != golden_http.masked([*long[:-1], math.nextafter(0.5, 1)])
