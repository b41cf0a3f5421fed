"""examples/lessons: each uses what its lesson uses, and runs; every row of what the lessons name is shown.

uses.json lists what each snippet uses, rows.json what the lessons name or show, and what shows it here. The
state of a row is what comes of that: nobody writes it down.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.cli import command, environment
from support.served import waited

ROOT = Path(__file__).resolve().parent.parent
LESSONS = ROOT / "examples" / "lessons"
USES: dict[str, dict[str, Any]] = json.loads((LESSONS / "uses.json").read_text(encoding="utf-8"))
ROWS: list[dict[str, Any]] = json.loads((LESSONS / "rows.json").read_text(encoding="utf-8"))
SCRIPTS = [name for name in USES if name.endswith(".sh")]
CLIENT = "15_serve/inference.py"
PROGRAMS = [name for name in USES if name not in (*SCRIPTS, CLIENT)]
WITHOUT_LENGTH = ("09", "11", "13", "14")
NOT_YET = {"M1", "M2", "M3", "R2", "R13"}
"""Rows whose refusal is right until early exit, heads that draft, tensor parallelism and images are there."""
WORKS, DIFFERS, REFUSED, FAILS = "works", "differs", "refused by name", "fails"


def used(source: str) -> dict[str, set[str]]:
    """Names that a program reads, keywords that it passes, texts that it calls with, keys it reads."""
    found: dict[str, set[str]] = {"names": set(), "arguments": set(), "flags": set(), "results": set()}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            found["names"].add(node.id if isinstance(node, ast.Name) else node.attr)
            if isinstance(node, ast.Attribute):
                found["results"].add(node.attr)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            found["results"].add(str(node.slice.value))
        if isinstance(node, ast.Call):
            found["arguments"] |= {one.arg for one in node.keywords if one.arg is not None}
        if isinstance(node, (ast.Call, ast.List)):
            words = node.args if isinstance(node, ast.Call) else node.elts
            texts = [one.value for one in words if isinstance(one, ast.Constant)]
            found["flags"] |= {word for word in texts if isinstance(word, str)}
    found["names"] |= found["flags"]  # a command is a word, too
    return found


def typed(source: str) -> dict[str, set[str]]:
    """The same of a script of the shell: its words, and those of them that are flags."""
    words = set(shlex.split(source.replace("\\\n", " "), comments=True))
    return {"names": words, "flags": {word for word in words if word.startswith("-")}}


def missing(name: str, source: str) -> dict[str, set[str]]:
    """What the lesson uses, and a program does not."""
    there = typed(source) if name.endswith(".sh") else used(source)
    lacks = {kind: set(USES[name][kind]) - there[kind] for kind in there}
    return {kind: names for kind, names in lacks.items() if names}


def source_of(name: str) -> str:
    return (LESSONS / name).read_text(encoding="utf-8")


def test_every_lesson_is_listed() -> None:
    files = {
        path.relative_to(LESSONS).as_posix() for path in LESSONS.rglob("*") if path.suffix in (".py", ".sh")
    }
    assert files == set(USES)


@pytest.mark.parametrize("name", USES)
def test_what_the_lesson_uses_is_used(name: str) -> None:
    source = source_of(name)
    assert missing(name, source) == {}
    said = source if name.endswith(".sh") else ast.get_docstring(ast.parse(source))
    assert said is not None
    assert "What differs:" in said
    words = " ".join(said.replace("#", "").split())
    assert re.search(rf"\blines? {USES[name]['lines']}\b", words), "where it stands in its lesson"


@pytest.mark.parametrize(
    ("name", "changed", "lacks"),
    [
        ("07_benchmark_inference.py", ("result.memory_gb", "0.0"), {"results": {"memory_gb"}}),
        ("07_benchmark_inference.py", ("num_runs=", "runs="), {"arguments": {"num_runs"}}),
        ("12_llama_cpp.py", ('"-n"', '"--max-tokens"'), {"flags": {"-n"}}),
        ("03_tgi_client.py", ("details=True", "stream=False"), {"arguments": {"details"}}),
        ("06_continuous_batcher.py", ("batcher.step()", "{}"), {"names": {"step"}}),
        ("15_serve/sglang.sh", ("--model-path", "--model"), {"flags": {"--model-path"}}),
    ],
)
def test_the_judge_sees_what_is_not_used(
    name: str, changed: tuple[str, str], lacks: dict[str, set[str]]
) -> None:
    source = source_of(name)
    assert changed[0] in source
    assert missing(name, source.replace(*changed)) == lacks


def outcome(words: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=600, **more)


@cache
def runs(name: str) -> str:
    """What an example of that path says; "FAILED" and why where it fails."""
    short = (
        [] if name.startswith(tuple(f"lessons/{each}" for each in WITHOUT_LENGTH)) else ["--max-tokens", "4"]
    )
    if name.endswith(("continuous_batching.py", "speculative.py")) and "lessons" not in name:
        short = ["--max-tokens", "8"]
    done = outcome([sys.executable, "-W", "error", str(ROOT / "examples" / name), *short])
    return done.stdout if done.returncode == 0 else f"FAILED: {done.stderr[-2000:]}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_runs(name: str, smollm2_path: Path) -> None:
    assert smollm2_path.exists()
    said = runs(f"lessons/{name}")
    assert not said.startswith("FAILED"), said
    assert said.strip()
    assert USES[name]["says"] in said


@contextmanager
def serving(name: str) -> Iterator[str]:
    """The port of the server that a script starts, when it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    folder = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        ["sh", "-c", f"{source_of(name).rstrip()} --json"],
        env={**environment(), "PORT": port, "PATH": folder}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        waited(process)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)


@cache
def served(name: str) -> str:
    """What inference.py says beside a script's server."""
    with serving(name) as port:
        client = [sys.executable, "-W", "error", str(LESSONS / CLIENT), "--port", port, "--max-tokens", "4"]
        done = outcome(client)
    return done.stdout if done.returncode == 0 else f"FAILED: {done.stderr[-2000:]}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_serves_the_client(name: str, smollm2_path: Path) -> None:
    assert smollm2_path.exists()
    said = served(name)
    assert not said.startswith("FAILED"), said
    assert said.strip()


# --- rows -------------------------------------------------------------------------------------------------


def kind_of(shown: str) -> tuple[str, str]:
    """(what kind of thing shows a row, the rest of it)."""
    for kind in ("refused: octavo ", "octavo ", "differs: "):
        if shown.startswith(kind):
            return kind.strip(": ").split(":")[0], shown.removeprefix(kind)
    head = shown.partition("/")[0]
    return {"examples": "example", "tests": "test", "docs": "page"}[head], shown


def page_says(where: str) -> bool:
    path, _, phrase = where.partition(": ")
    return phrase in " ".join((ROOT / path).read_text(encoding="utf-8").split())


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_row_names_what_is_there() -> None:
    assert len({row["row"] for row in ROWS}) == len(ROWS) == 103
    assert Counter(row["row"][0] for row in ROWS) == {"M": 20, "R": 15, "P": 17, "D": 14, "W": 37}
    for row in ROWS:
        assert row["shown"], row
        for shown in row["shown"]:
            kind, rest = kind_of(shown)
            if kind == "test":
                path, _, name = rest.partition("::")
                assert name in functions(ROOT / path), shown
            elif kind == "example":
                assert (ROOT / rest).exists(), shown
            elif kind == "page":
                assert page_says(rest), shown
            elif kind == "differs":
                assert page_says(f"docs/how-to/coming-from.md: {rest}"), shown
    named = {shown for row in ROWS for shown in row["shown"]}
    assert {f"examples/lessons/{name}" for name in USES} <= named


def state_of(row: dict[str, Any], passed: Callable[[str], bool]) -> str:
    """What comes of all that shows a row.

    Args:
        passed: of a test's name.
    """
    states = [shown_state(*kind_of(shown), passed) for shown in row["shown"]]
    return next((state for state in (FAILS, REFUSED, DIFFERS) if state in states), WORKS)


def shown_state(kind: str, rest: str, passed: Callable[[str], bool]) -> str:
    match kind:
        case "test":
            return WORKS if passed(rest) else FAILS
        case "example":
            name = rest.removeprefix("examples/lessons/")
            if name == CLIENT:  # it runs beside the scripts
                return WORKS
            said = served(name) if name in SCRIPTS else runs(rest.removeprefix("examples/"))
            return FAILS if said.startswith("FAILED") else WORKS
        case "octavo":
            return WORKS if outcome(command(*shlex_words(rest)), env=environment()).returncode == 0 else FAILS
        case "refused":
            words, _, named = rest.partition(" -> ")
            done = outcome(command(*shlex_words(words)), env=environment())
            return REFUSED if done.returncode and named in done.stderr else FAILS
        case "differs":
            return DIFFERS
    return WORKS if page_says(rest) else FAILS


def shlex_words(words: str) -> list[str]:
    """Split at spaces: JSON keeps its quotes."""
    return words.split()


def passing(names: set[str]) -> Callable[[str], bool]:
    """Run these tests in one go. Returns whether one of them passes, all of its cases."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", "--tb=no", *sorted(names)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, env=environment())
    good, bad = (
        {line.split(" ")[1].split("[")[0] for line in done.stdout.splitlines() if re.match(marks, line)}
        for marks in ("PASSED ", "(FAILED|ERROR) ")
    )
    return lambda name: name in good - bad


def test_a_rows_state_is_what_comes_of_it() -> None:
    def passed(name: str) -> bool:
        return name == "tests/good"

    row = {"shown": ["tests/good", "docs/reading/times.md: TTFT + (n - 1) x TPOT"]}
    assert state_of(row, passed) == WORKS
    assert state_of({"shown": [*row["shown"], "differs: x"]}, passed) == DIFFERS
    assert state_of({"shown": [*row["shown"], "tests/bad", "differs: x"]}, passed) == FAILS
    assert state_of({"shown": ["docs/reading/times.md: TTFT squared"]}, passed) == FAILS
    words = "refused: octavo serve smollm2 --no-such-flag -> "
    assert state_of({"shown": [f"{words}--no-such-flag"]}, passed) == REFUSED
    assert state_of({"shown": [f"{words}another word"]}, passed) == FAILS


@pytest.mark.slow
def test_every_row_is_shown(
    record_testsuite_property: Callable[[str, object], None], smollm2_path: Path
) -> None:
    """Everything that rows.json names, run once."""
    assert smollm2_path.exists()
    every = {rest for row in ROWS for kind, rest in map(kind_of, row["shown"]) if kind == "test"}
    passed = passing(every)
    states = {row["row"]: state_of(row, passed) for row in ROWS}
    counts = Counter(states.values())
    record_testsuite_property("rows", len(ROWS))
    for name, state in (("work", WORKS), ("differ", DIFFERS), ("are_refused", REFUSED), ("fail", FAILS)):
        record_testsuite_property(f"rows_that_{name}", counts[state])
        print(f"{state}: {counts[state]}: {' '.join(row for row, each in states.items() if each == state)}")
    assert [row for row, state in states.items() if state == FAILS] == []
    assert {row for row, state in states.items() if state == DIFFERS} == {f"D{i}" for i in range(1, 15)}
    assert {row for row, state in states.items() if state == REFUSED} <= NOT_YET
