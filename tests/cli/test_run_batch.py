"""octavo run-batch: a file of requests becomes a file of answers, once each."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from octavo.cli import main
from octavo.errors import EngineDeadError, OverloadedError
from octavo.server import batch_files
from support.fake_engine import FakeEngine


def line(name: str, url: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": url, "body": {"prompt": "Hi", **body}}


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    return path


def run(source: Path, target: Path) -> int:
    return main(["run-batch", str(source), str(target), "--model", "m", "--json"])


def read(path: Path) -> dict[str, dict[str, Any]]:
    lines = [json.loads(each) for each in path.read_text(encoding="utf-8").splitlines()]
    assert len({each["custom_id"] for each in lines}) == len(lines)
    return {each["custom_id"]: each for each in lines}


def test_every_endpoint_is_answered(tmp_path: Path, engine: FakeEngine) -> None:
    hi = {"messages": [{"role": "user", "content": "Hi"}]}
    lines = [
        line("text"),
        {"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": hi},
        {"custom_id": "items", "method": "POST", "url": "/v1/responses", "body": {"input": "Hi"}},
    ]
    source, target = write(tmp_path / "in", lines), tmp_path / "out"
    assert run(source, target) == 0
    answers = read(target)
    assert answers["text"]["response"]["body"]["choices"][0]["text"] == "Hello"
    assert answers["chat"]["response"]["body"]["choices"][0]["message"]["content"] == "Hello"
    assert answers["items"]["response"]["status_code"] == 200
    assert all(each["error"] is None for each in answers.values())
    assert engine.shut


def test_errors_are_lines_too(tmp_path: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        line("good"),
        line("range", temperature=-1),
        line("stream", stream=True),
        line("url", url="/health"),
        {"custom_id": "body", "url": "/v1/completions"},
    ]
    source, target = write(tmp_path / "in", lines), tmp_path / "out"
    assert run(source, target) == 1
    answers = read(target)
    assert answers["range"]["response"]["status_code"] == 400
    assert answers["range"]["response"]["body"]["error"]["param"] == "temperature"
    for name in ("stream", "url", "body"):
        assert name in answers[name]["error"]["message"]
    assert json.loads(capsys.readouterr().out) == {"done": 1, "failed": 4, "skipped": 0}


def test_it_goes_on_where_it_was_stopped(tmp_path: Path, engine: FakeEngine) -> None:
    source, target = write(tmp_path / "in", [line(str(i)) for i in range(6)]), tmp_path / "out"
    assert run(source, target) == 0
    whole = target.read_bytes().splitlines(keepends=True)
    target.write_bytes(b"".join(whole[:3]) + whole[3][:20])  # killed in the middle of a line
    engine.calls.clear()
    assert run(source, target) == 0
    assert len(engine.calls) == 3
    assert set(read(target)) == {str(i) for i in range(6)}
    assert target.read_bytes().startswith(b"".join(whole[:3]))


def test_what_failed_is_done_again_until_it_does_not(
    tmp_path: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line("good"), line("range", temperature=-1), line("url", url="/health"), line("last")]
    source, target = write(tmp_path / "in", lines), tmp_path / "out"
    for _ in range(2):
        assert run(source, target) == 1
    totals = [json.loads(each) for each in capsys.readouterr().out.splitlines()]
    assert totals == [{"done": 2, "failed": 2, "skipped": 0}, {"done": 0, "failed": 2, "skipped": 2}]
    assert len(engine.calls) == 2
    assert set(read(target)) == {"good", "range", "url", "last"}
    lines[1]["body"]["temperature"] = 1
    lines[2]["url"] = "/v1/completions"
    assert run(write(source, lines), target) == 0
    assert json.loads(capsys.readouterr().out) == {"done": 2, "failed": 0, "skipped": 2}
    assert all(each["response"]["status_code"] == 200 for each in read(target).values())
    assert {*tmp_path.iterdir()} == {source, target}


def test_a_request_that_was_changed_is_answered_anew(tmp_path: Path, engine: FakeEngine) -> None:
    source, target = write(tmp_path / "in", [line("a"), line("b")]), tmp_path / "out"
    assert run(source, target) == 0
    before = read(target)
    reordered = dict(reversed(line("a").items()))
    assert run(write(source, [reordered, line("b", max_tokens=1)]), target) == 0
    after = read(target)
    assert after["a"] == before["a"]
    assert after["b"]["id"] != before["b"]["id"]
    assert len(engine.calls) == 3


def test_answers_to_nothing_and_of_others_are_left_alone(tmp_path: Path, engine: FakeEngine) -> None:
    """A failure whose request is gone, and an answer whose id is no digest of ours."""
    gone = {"id": "x", "custom_id": "gone", "response": None, "error": {"message": "no"}}
    other = {
        "id": "batch_req_1",
        "custom_id": "a",
        "response": {"status_code": 200, "body": {}},
        "error": None,
    }
    target = write(tmp_path / "out", [gone, other])
    assert run(write(tmp_path / "in", [line("a"), line("b")]), target) == 0
    answers = read(target)
    assert (answers["gone"], answers["a"], len(engine.calls)) == (gone, other, 1)


def test_many_requests_are_with_the_engine_together(tmp_path: Path, engine: FakeEngine) -> None:
    engine.delay = 0.001
    source, target = write(tmp_path / "in", [line(str(i)) for i in range(40)]), tmp_path / "out"
    args = ["run-batch", str(source), str(target), "--model", "m", "--json", "--max-concurrent", "7"]
    assert main(args) == 0
    assert engine.most_at_once == 7
    assert len(read(target)) == 40


WRONG: list[tuple[str, str, str]] = [
    ("{", "invalid_json_line", "line 2 is not JSON"),
    ("[" * 100_000, "invalid_json_line", "line 2 is not JSON"),
    ("[]", "invalid_request", "line 2 has no custom_id that is a string"),
    ('{"custom_id": 5}', "invalid_request", "line 2 has no custom_id"),
    (json.dumps(line("a")), "duplicate_custom_id", "lines 1 and 2 have the same custom_id 'a'"),
]


@pytest.mark.parametrize(("text", "code", "message"), WRONG)
def test_a_line_that_is_no_request_has_an_error_of_its_own(
    tmp_path: Path,
    engine: FakeEngine,
    capsys: pytest.CaptureFixture[str],
    text: str,
    code: str,
    message: str,
) -> None:
    """The others are answered, and the next run tells it again, as long as it stands there."""
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_text(f"{json.dumps(line('a'))}\n{text}\n\n{json.dumps(line('b'))}")
    for done, skipped in ((2, 0), (0, 2)):
        assert run(source, target) == 1
        assert json.loads(capsys.readouterr().out) == {"done": done, "failed": 1, "skipped": skipped}
        answers: dict[Any, Any] = read(target)
        assert answers.keys() == {"a", "b", None}
        assert (answers[None]["response"], answers[None]["error"]["code"]) == (None, code)
        assert message in answers[None]["error"]["message"]
    assert len(engine.calls) == 2
    assert run(write(source, [line("a"), line("b")]), target) == 0
    assert set(read(target)) == {"a", "b"}


@pytest.mark.parametrize(("text", "code", "message"), WRONG[:-1])
def test_a_file_without_a_request_starts_nothing(
    tmp_path: Path,
    engine: FakeEngine,
    capsys: pytest.CaptureFixture[str],
    text: str,
    code: str,
    message: str,
) -> None:
    (tmp_path / "in").write_text(f"\n{text}")
    assert run(tmp_path / "in", tmp_path / "out") == 2
    assert f"in holds no request: {message}" in capsys.readouterr().err
    assert not engine.calls
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_output_is_left_alone(
    tmp_path: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "in", [line("a")])
    target = tmp_path / "out"
    nobodys: dict[str, Any] = {"id": "x", "custom_id": None, "response": None, "error": {}}
    for diary in ("my diary\n", "{}\n", '{"custom_id": null}\n', json.dumps(nobodys) + "\n"):
        target.write_text(diary)
        assert run(source, target) == 2
        assert "is no answer of a batch" in capsys.readouterr().err
        assert target.read_text() == diary
    assert run(source, source) == 2
    assert run(tmp_path / "nothing", target) == 1


def test_answers_that_are_written_anew_stay_as_private_as_they_were(
    tmp_path: Path, engine: FakeEngine
) -> None:
    source, target = write(tmp_path / "in", [line("good"), line("bad", temperature=-1)]), tmp_path / "out"
    assert run(source, target) == 1
    target.chmod(0o600)
    write(source, [line("good"), line("bad", temperature=0)])
    assert run(source, target) == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert set(read(target)) == {"good", "bad"}


def test_a_dead_engine_stops_the_batch_and_fails_no_line(
    tmp_path: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = write(tmp_path / "in", [line(str(i)) for i in range(4)]), tmp_path / "out"
    engine.refuse, engine.failure = EngineDeadError("the engine has failed"), "a step hung"
    assert run(source, target) == 1
    assert "a step hung" in capsys.readouterr().err
    assert target.read_bytes() == b""
    engine.refuse = engine.failure = None
    assert run(source, target) == 0
    assert len(read(target)) == 4


def test_a_full_engine_is_waited_for(
    tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_files, "RETRY_S", 0.0)
    refusals, outputs = [OverloadedError("full")] * 5, engine.outputs

    async def sometimes(request: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return await outputs(request)

    monkeypatch.setattr(engine, "outputs", sometimes)
    source, target = write(tmp_path / "in", [line(str(i)) for i in range(3)]), tmp_path / "out"
    assert run(source, target) == 0
    assert not refusals


def test_a_line_has_a_bound(
    tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(batch_files, "MAX_LINE", 1000)
    source = write(tmp_path / "in", [line("a"), line("b", prompt="x" * 5000), line("c")])
    assert run(source, tmp_path / "out") == 1
    assert json.loads(capsys.readouterr().out) == {"done": 2, "failed": 1, "skipped": 0}
    answers: dict[Any, Any] = read(tmp_path / "out")
    assert answers.keys() == {"a", "c", None}
    assert answers[None]["error"]["message"] == "line 2 is longer than 0 MiB"


@pytest.mark.parametrize("words", [["-", "-"], ["-", "out.jsonl"], ["in.jsonl", "-"]])
def test_standard_input_and_output_are_not_taken(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run-batch", *words]) == 2
    assert "run-batch reads a file and writes a file, not standard input" in capsys.readouterr().err
