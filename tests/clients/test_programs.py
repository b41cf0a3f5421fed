"""Others' programs and SDKs, unmodified, against a scripted engine behind `octavo serve` (make test-clients).

Agents go through `octavo launch`, with a home of their own and no network beside. A file of programs/ drives
one SDK through its own helpers. What cannot be installed is skipped with a line. Where OCTAVO_CLIENTS_RESULT
names a file, what was tried is written to it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.launch import TOOLS
from support.cli import command
from support.cli import environment as importable
from support.served import KEY, Served, waited

pytestmark = pytest.mark.clients

HERE = Path(__file__).parent
PROGRAMS = sorted(file for file in (HERE / "programs").iterdir() if file.name[0] != "_" and file.suffix)
ENVIRONMENT = Path(os.environ.get("OCTAVO_CLIENTS", HERE.parents[1] / ".venv-clients"))
NOT_INSTALLED = ("ModuleNotFoundError", "ERR_MODULE_NOT_FOUND")
ASK = "Call the tool twice"
DONE = "Both were called: one-21 and two-42"
WORDS = {
    "codex": ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", ASK),
    "claude": ("-p", ASK, "--allowedTools", "Bash"),
    "opencode": ("run", ASK),
}
"""How each asks once, runs tools without asking back, and ends."""


@pytest.fixture(scope="module")
def scripted() -> Iterator[Served]:
    """A server whose model calls what it is given twice, and says then what came back."""
    words = [sys.executable, str(HERE / "agent_engine.py"), "serve", "agent", "--port", "0", "--json"]
    server = waited(
        subprocess.Popen([*words, "--api-key", KEY], env=importable(), stdout=subprocess.PIPE, text=True)
    )
    yield server
    assert server.end() == 0


@pytest.fixture(scope="module")
def results() -> Iterator[list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []
    yield found
    if (path := os.environ.get("OCTAVO_CLIENTS_RESULT")) and found:
        lines = sorted(found, key=lambda each: each["client"])  # features stay in the order of the program
        Path(path).write_text("[\n" + ",\n".join(json.dumps(line) for line in lines) + "\n]\n")


def alone(home: Path) -> dict[str, str]:
    """The environment of a program that has been nowhere yet, and reaches this machine only."""
    home.mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("LANG", "TERM", "TMPDIR") if name in os.environ}
    nobody, near = "http://127.0.0.1:9", "127.0.0.1,localhost"
    return kept | {
        "HOME": str(home),
        "PATH": os.pathsep.join([str(ENVIRONMENT / "node_modules/.bin"), os.environ["PATH"]]),
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), nobody),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), near),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }


def version_of(program: str, told: dict[str, str]) -> str:
    """The version that a program says it has; skips where there is none."""
    path = shutil.which(program, path=told["PATH"])
    if path is None or not Path(path).resolve().is_relative_to(ENVIRONMENT.resolve()):
        pytest.skip(f"{program} is not installed in {ENVIRONMENT.name}")
    done = subprocess.run(
        [path, "--version"], env=told, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        pytest.skip(f"{program} does not run here: {done.stderr.strip()[:200]}")
    return next(word for word in done.stdout.split() if word[:1].isdigit())


@pytest.mark.parametrize("tool", TOOLS)
def test_agents(tool: str, scripted: Served, results: list[dict[str, Any]], tmp_path: Path) -> None:
    told = alone(tmp_path / "home")
    version = version_of(TOOLS[tool].program, told)
    work = tmp_path / "work"
    work.mkdir()
    words = command("launch", tool, "--url", scripted.url, "--", *WORDS[tool])
    told |= {"PYTHONPATH": importable()["PYTHONPATH"], "OCTAVO_API_KEY": KEY}
    done = subprocess.run(
        words,
        cwd=work,
        env=told,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    ok = done.returncode == 0 and DONE in done.stdout
    line = {"client": tool, "version": version, "feature": "two tool turns, streamed", "ok": ok}
    results.append(line)
    assert ok, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.mark.parametrize("file", PROGRAMS, ids=lambda file: file.stem)
def test_sdks(file: Path, scripted: Served, results: list[dict[str, Any]], tmp_path: Path) -> None:
    interpreter, folder = str(ENVIRONMENT / "bin/python"), file.parent
    if file.suffix == ".mjs":
        interpreter, folder = shutil.which("node") or "", tmp_path / "programs"
        # Imports are looked up from where the program lies.
        shutil.copytree(file.parent, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        (folder / "node_modules").symlink_to(ENVIRONMENT / "node_modules")
    if not interpreter or not Path(interpreter).exists():
        pytest.skip(f"{file.name} needs {interpreter or 'node'}")
    done = subprocess.run(
        [interpreter, file.name, scripted.url, KEY, "agent"],
        cwd=folder, env=alone(tmp_path / "home"), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"client"')]
    if not lines and any(word in done.stderr for word in NOT_INSTALLED):
        pytest.skip(f"{file.stem}: {done.stderr.strip().splitlines()[-1][:200]}")
    results += lines
    assert lines, done.stderr[-4000:]
    assert [line for line in lines if not line["ok"]] == [], done.stderr[-4000:]
    assert done.returncode == 0, done.stderr[-4000:]
