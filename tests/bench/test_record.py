"""benchmarks/record.py: what a command says is kept, what fails leaves nothing; benchmarks/all_figures.py."""

from __future__ import annotations

import importlib
import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = [sys.executable, "-c"]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "results"
    monkeypatch.setattr(importlib.import_module("harness"), "RESULTS", folder)
    return folder


def record(*words: str) -> int:
    return int(importlib.import_module("record").main(words))


def test_the_commit_is_of_before_the_run(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who changes the tree while a long command runs does not change what ran."""
    commits = iter(["0123456789ab", "0123456789ab+"])
    for module in ("record", "harness"):
        monkeypatch.setattr(importlib.import_module(module), "commit", lambda: next(commits))
    assert record("thing", "--", *HERE, "print({})") == 0
    (found,) = written(results)
    assert found["commit"] == "0123456789ab"


def written(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def test_json_is_kept_with_its_origin(results: Path) -> None:
    said = {"machine": "its own word", "waste": 0.5}
    code = f"import json; print(json.dumps({said}))"
    assert record("thing", "--", *HERE, code) == 0
    (found,) = written(results)
    assert found["result"] == said
    assert found["benchmark"] == "thing"
    assert found["machine"]["cores"] >= 1
    command = importlib.import_module("harness").without_folders(shlex.join([*HERE, code]))
    assert found["command"].partition(" thing -- ")[2] == command
    assert str(Path(HERE[0]).parent) not in found["command"]
    assert {"date", "commit"} <= set(found)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import sys; print('{}'); sys.exit(3)", 3),
        ("import os, signal; print('{}', flush=True); os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("print('fast')", 1),
        ("print([1])", 1),
        ("print('{\"a\": NaN}')", 1),
        ("print('{\"a\": [-Infinity, 1e999]}')", 1),
        ("", 1),
    ],
)
@pytest.mark.parametrize("flags", [(), ("--tests",)])
def test_a_command_that_fails_writes_nothing(
    results: Path, code: str, status: int, flags: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    assert record("thing", *flags, "--", *HERE, code) == status
    assert written(results) == []
    assert "nothing is written" in capfd.readouterr().err


def test_a_command_that_is_not_there(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert record("thing", "--", "./no-such-command") == 127
    assert "no-such-command cannot be run" in capsys.readouterr().err
    assert written(results) == []


@pytest.mark.parametrize("words", [["thing"], ["thing", "--"], ["--", "true"]])
def test_wrong_words(results: Path, words: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        record(*words)
    assert stopped.value.code == 2


@pytest.mark.parametrize("name", ["", "../../x", "a/b", ".x", "_x", "X", "a b", "a\n"])
def test_a_name_that_is_none_of_a_file(results: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing runs, and nothing is written anywhere."""
    with pytest.raises(SystemExit) as stopped:
        record(name, "--", *HERE, "import sys; print('ran', file=sys.stderr); print({})")
    assert stopped.value.code == 2
    said = capfd.readouterr().err
    assert "argument name: " in said
    assert "ran" not in said
    assert not results.exists()


TESTS = """
import pytest
def test_one(record_testsuite_property):
    record_testsuite_property("calls", 6004)
    record_testsuite_property("share", 0.25)
    record_testsuite_property("judge", "jsonschema")
@pytest.mark.parametrize("n", range(3))
def test_more(n): pass
@pytest.mark.skip
def test_skipped(): pass
"""
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".")


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    path = tmp_path / "test_it.py"
    path.write_text(TESTS, encoding="utf-8")
    return path


def test_tests_are_counted(results: Path, suite: Path) -> None:
    assert record("suite", "--tests", "--", *PYTEST, str(suite)) == 0
    (found,) = written(results)
    counts = {"passed": 4, "failed": 0, "skipped": 1}
    assert found["result"] == {
        **counts,
        "suites": {"tests": counts},
        "properties": {"calls": 6004, "share": 0.25, "judge": "jsonschema"},
    }


@pytest.mark.skipif(shutil.which("sh") is None, reason="needs a shell")
def test_a_script_that_runs_several(results: Path, suite: Path) -> None:
    """As csrc/sanitize.sh: each names its file."""
    once = f'{" ".join(PYTEST)} {suite} --junitxml="$JUNIT_FOLDER/$kind.xml"'
    assert record("suite", "--tests", "--", "sh", "-c", f"for kind in a b; do {once} || exit; done") == 0
    (found,) = written(results)
    assert sorted(found["result"]["suites"]) == ["a", "b"]
    assert (found["result"]["passed"], found["result"]["skipped"]) == (8, 2)


def test_a_failing_test_writes_nothing(results: Path, suite: Path) -> None:
    suite.write_text("def test_one(): assert False\n", encoding="utf-8")
    assert record("suite", "--tests", "--", *PYTEST, str(suite)) == 1
    assert written(results) == []


def test_failures_are_no_passes(tmp_path: Path) -> None:
    """Of a file in which some failed: a command may forgive them."""
    (tmp_path / "x.xml").write_text(
        '<testsuites><testsuite tests="10" failures="2" errors="1" skipped="3"/></testsuites>', "utf-8"
    )
    found = importlib.import_module("record").summary([tmp_path / "x.xml"])
    assert (found["passed"], found["failed"], found["skipped"]) == (4, 3, 3)


class TestAllFigures:
    def test_parts_are_chosen_by_kind_or_word(self, capsys: pytest.CaptureFixture[str]) -> None:
        every = importlib.import_module("all_figures")
        assert every.main(["--list"]) == 0
        assert len(capsys.readouterr().out.splitlines()) == len(every.PARTS)
        assert every.main(["--list", "--only", "fragmentation"]) == 0
        assert capsys.readouterr().out.startswith("1 of 1, about 0.1 min: ")
        assert every.main(["--list", "--only", "nothing of the kind"]) == 1

    def test_what_reads_a_file_runs_where_it_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        every = importlib.import_module("all_figures")
        monkeypatch.setattr(every, "ROOT", tmp_path)
        monkeypatch.setattr(
            every, "PARTS", [every.Part("a", 1, "cp TEXT read"), every.Part("a", 1, "touch made")]
        )
        (tmp_path / "a text").write_text("words", "utf-8")
        assert every.main([]) == 0
        assert not (tmp_path / "read").exists()
        assert every.main(["--text", str(tmp_path / "a text")]) == 0
        assert (tmp_path / "read").read_text("utf-8") == "words"

    def test_its_scripts_are_there(self) -> None:
        every = importlib.import_module("all_figures")
        for part in every.PARTS:
            for word in part.command.split():
                if word.startswith(("benchmarks/", "scripts/", "tests/")):
                    assert (every.ROOT / word).exists(), word

    def test_one_that_fails_does_not_stop_the_others(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        every = importlib.import_module("all_figures")
        monkeypatch.setattr(every, "ROOT", tmp_path)
        monkeypatch.setattr(every, "PARTS", [every.Part("a", 1, "false"), every.Part("a", 1, "touch made")])
        assert every.main([]) == 1
        assert (tmp_path / "made").exists()
        assert "FAILED: false" in capfd.readouterr().err
