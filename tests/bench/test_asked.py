"""benchmarks/asked.py and the scripts that use it: what is wrong is said in a line, with status 2."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.errors import InvalidRequestError

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


def script(name: str) -> Any:
    """A module of benchmarks/ (conftest.py has put the folder on the path)."""
    return importlib.import_module(name)


def ends(name: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The last line that a script says, which ends with status 2."""
    with pytest.raises(SystemExit) as ended:
        script(name).main(words)
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("at_least_one", {"1": 1, "12": 12}, ["0", "-1", "1.5", "x", "", "nan"]),
        ("from_zero", {"0": 0, "7": 7}, ["-1", "0.5", "x", ""]),
        ("not_negative", {"0": 0.0, "1.5": 1.5}, ["-0.1", "nan", "inf", "x", ""]),
        ("above_zero", {"0.5": 0.5}, ["0", "-1", "nan", "inf", "x"]),
        ("json_object", {'{"isa": "avx2"}': {"isa": "avx2"}}, ["[]", "5", "{", "null", "", "[" * 100_000]),
    ],
)
def test_types_of_flags(kind: str, good: dict[str, object], bad: list[str]) -> None:
    of = getattr(script("asked"), kind)
    assert {text: of(text) for text in good} == good
    for text in bad:
        with pytest.raises(argparse.ArgumentTypeError):
            of(text)


def test_lists_of_flags() -> None:
    asked = script("asked")
    assert asked.several(asked.at_least_one)("1,32") == [1, 32]
    assert asked.checked(asked.several(asked.at_least_one))("1,32") == "1,32"
    for text in ("", "1,", "1,x", "1;2"):
        with pytest.raises(argparse.ArgumentTypeError):
            asked.checked(asked.several(asked.at_least_one))(text)


def test_a_script_tells_what_users_can_meet(capsys: pytest.CaptureFixture[str]) -> None:
    asked = script("asked")

    @asked.tells(InvalidRequestError)
    def main(error: Exception) -> None:
        raise error

    for error in (asked.ScriptError("no way"), InvalidRequestError("no way", "x")):
        with pytest.raises(SystemExit) as ended:
            main(error)
        assert ended.value.code == 2
        assert capsys.readouterr().err == "test_asked: no way\n"
    with pytest.raises(KeyError):  # a mistake in the script keeps its traceback
        main(KeyError("x"))


def test_options_that_the_script_gives_itself() -> None:
    asked = script("asked")
    assert asked.with_own({"isa": "avx2"}, threads=2) == {"threads": 2, "isa": "avx2"}
    with pytest.raises(asked.ScriptError, match="the script gives threads itself"):
        asked.with_own({"threads": 1}, threads=2)


def flags_of(path: Path) -> list[tuple[str, str]]:
    """Each flag of a script's source, and its call of add_argument."""
    calls = re.finditer(
        r'add_argument\(\s*"(--[\w-]+)"([^()]*(?:\([^()]*\)[^()]*)*)\)', path.read_text("utf-8")
    )
    return [(call[1], call[2]) for call in calls]


SOURCES = [
    path
    for folder in (BENCHMARKS, BENCHMARKS / "kernels", BENCHMARKS / "peers")
    for path in sorted(folder.glob("*.py"))
    if path.name != "pieces.py"  # checks its own
]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_flag_takes_any_number_or_any_json(path: Path) -> None:
    bare = re.compile(r"type=(int|float|json\.loads)\b")
    assert [flag for flag, call in flags_of(path) if bare.search(call) and flag != "--seed"] == []


@pytest.mark.parametrize(
    ("name", "flag"),
    [(name, "--repeat") for name in ("ahead", "footprint", "grammar_cost", "host_time", "one_scored_row")]
    + [(name, "--users") for name in ("serving", "bench_beside")]
    + [("peers.__main__", "--repeat"), ("kernels.trees", "--rounds"), ("quality", "--windows")],
)
def test_none_of_what_there_must_be_some(name: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = ends(name, [flag, "0"], capsys)
    assert said.endswith(f"argument {flag}: '0' is no whole number from 1 on")


@pytest.mark.parametrize("given", ["[]", "5", "{"])
@pytest.mark.parametrize(
    "name",
    ["ahead", "decode", "grammar_cost", "host_time", "one_scored_row", "peers.__main__", "serving", "worker"],
)
def test_options_that_are_no_object(name: str, given: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["octavo", "x", "--threads", "1"] if name == "worker" else []
    said = ends(name, [*words, "--options", given], capsys)
    assert f"argument --options: {given!r} is no JSON" in said


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ('{"isa": 5}', "instruction set '5'"),
        ('{"isa": "no-such"}', "instruction set 'no-such'"),
        ('{"no_such": 1}', "no_such is not an engine argument"),
        ('{"threads": 1}', "--options: the script gives threads itself"),
    ],
)
@pytest.mark.parametrize("name", ["host_time", "serving"])
def test_options_that_the_engine_refuses(
    name: str, given: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ends(name, ["--options", given], capsys)
    assert said.startswith(f"{name}: ")
    assert text in said


@pytest.mark.parametrize(
    ("name", "words", "text"),
    [
        ("host_time", ["--streams", "1,x"], "argument --streams: 'x' is no whole number"),
        ("host_time", ["--sampling", '{"no_such": 1}'], "unexpected keyword argument 'no_such'"),
        ("host_time", ["--sampling", '{"max_tokens": 1}'], "the script gives max_tokens itself"),
        ("host_time", ["--model", "no-such"], "unknown model 'no-such'"),
        ("footprint", ["--model", "no-such"], "unknown model 'no-such'"),
        ("ahead", ["--contexts", "0"], "argument --contexts: '0' is no whole number"),
        ("kernels.trees", ["--kv-dtype", "no-such"], "argument --kv-dtype: invalid choice"),
        ("peers.__main__", ["--python", "llama.cpp=/bin/true"], "--python llama.cpp: /bin/true is no Python"),
        ("peers_serving", ["--llama-server", "/no/such"], "/no/such cannot be run: No such file"),
        ("peers_serving", ["--llama-server", "/bin/false"], "/bin/false says no version"),
    ],
)
def test_other_nonsense(name: str, words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert text in ends(name, words, capsys)


def test_a_server_that_ends_is_told_before_anything_is_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """/bin/true has a version, says nothing, and ends."""
    serving = script("peers_serving")
    monkeypatch.setattr(serving, "python_with", lambda module, wished=None: None)
    monkeypatch.setattr(serving.files, "shipped", lambda model: Path("model.gguf"))
    said = ends("peers_serving", ["--llama-server", "/bin/true"], capsys)
    assert said == "peers_serving: /bin/true does not start: it ended, and said nothing"


class TestTuned:
    """Settings that an earlier result has found."""

    @pytest.mark.parametrize(
        "content",
        [
            b"", b"\xff", b"[]", b"{}", b'{"tuned": 5}', b'{"tuned": {"short": 5}}',
            b'{"tuned": {"short": {"octavo": 5}}}', b'{"tuned": {"short": {"octavo": {"decode": 5}}}}',
            b'{"tuned": {"short": {"octavo": {"decode": {"form": "Q4_0"}}}}}',
            b'{"tuned": {"short": {"octavo": {"decode": {"form": "other", "settings": {}}}}}}',
            b'{"tuned": {"short": {"octavo": {"decode": {"form": "Q4_0", "settings": 3}}}}}',
        ],
    )  # fmt: skip
    def test_of_another_shape(
        self, tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "x.json").write_bytes(content)
        said = ends("peers.__main__", ["--tuned", str(tmp_path / "x.json")], capsys)
        assert "x.json is no result of --tune-peer: " in said

    def test_a_file_that_nobody_here_makes_is_left_out(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Octavo's Q4_0 is llama.cpp's work; what else was found is measured."""
        peers, entries, rows = script("peers.__main__"), script("peers.entries"), script("peers.rows")
        monkeypatch.setattr(peers, "where_requantized", lambda model: Path("cache/x.Q4_0.gguf"))
        shipped = entries.Entry(rows.OURS, "octavo", Path("x.gguf"), "python")
        stored = {
            "prompt": {"form": entries.SHIPPED, "settings": {}},
            "decode": {"form": entries.Q4_0, "settings": {}},
        }
        asked = SimpleNamespace(tuned={"short": {rows.OURS: stored}}, tune_peer=False)
        found = peers.chosen([shipped], "short", rows.SHAPES["short"], asked, None)
        assert found == {rows.OURS: {"prompt": shipped}}
        said = capsys.readouterr().err
        assert "octavo is left out where --tuned names smollm2 as Q4_0" in said
        assert "cache/x.Q4_0.gguf" in said


def test_a_script_that_makes_no_file(tmp_path: Path) -> None:
    """One that ends well, as /bin/true does whatever it is asked."""
    files, target = script("peers.files"), tmp_path / "made.gguf"
    (tmp_path / "python").write_text("#!/bin/sh\necho True\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(RuntimeError, match=r"made no .*made\.gguf"):
        files._made("requantize.py", "json", target, [], str(tmp_path / "python"))


def test_the_worker_needs_nothing_but_python() -> None:
    """It runs where only an engine is installed."""
    code = "import sys, worker; print(sorted({n.partition('.')[0] for n in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); {code}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert not {"octavo", "numpy"} & set(json.loads(done.stdout.replace("'", '"')))
