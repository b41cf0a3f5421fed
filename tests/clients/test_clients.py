"""Clients that need an environment of their own (make clients-env): Instructor, TGI's, npm's openai, lm-eval.

Their packages clash with the test environment's pins, or are no Python. Each program of this folder runs
in its own environment against one server, and fails by its exit status.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.served import KEY, Served, start

pytestmark = pytest.mark.clients

HERE = Path(__file__).parent
ENVIRONMENT = Path(os.environ.get("OCTAVO_CLIENTS", HERE.parents[1] / ".venv-clients"))
"""A Python environment with the Python clients, which also holds node_modules."""


NOT_INSTALLED = ("ModuleNotFoundError", "ERR_MODULE_NOT_FOUND")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    server = start("--api-key", KEY, "--max-num-seqs", "16", "--max-model-len", "2048")
    yield server
    assert server.end() == 0


def run(command: list[str | Path], folder: Path = HERE) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
    if done.returncode and any(word in done.stderr for word in NOT_INSTALLED):
        pytest.skip(done.stderr.strip().splitlines()[-1][:200])
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    print(done.stdout.splitlines()[-1])
    return done.stdout


def test_instructor(served: Served) -> None:
    run([ENVIRONMENT / "instructor/bin/python", "instructor_client.py", served.url, KEY, "smollm2"])


def test_text_generation(served: Served) -> None:
    """Its own client's last version needs an older hub than the others do."""
    run([ENVIRONMENT / "text-generation/bin/python", "text_generation_client.py", served.url, KEY])


def test_npm_openai(served: Served, tmp_path: Path) -> None:
    node = shutil.which("node")
    assert node is not None, "node is needed"
    # Imports are looked up from where the program lies.
    shutil.copy(HERE / "npm_client.mjs", tmp_path)
    (tmp_path / "node_modules").symlink_to(ENVIRONMENT / "node_modules")
    run([node, "npm_client.mjs", served.url, KEY, "smollm2"], tmp_path)


def test_lm_eval(served: Served, tmp_path: Path) -> None:
    for name in ("lm_eval_client.py", "capitals.jsonl", "octavo_capitals.yaml"):
        shutil.copy(HERE / name, tmp_path)
    run([ENVIRONMENT / "bin/python", "lm_eval_client.py", served.url, KEY, "smollm2"], tmp_path)
