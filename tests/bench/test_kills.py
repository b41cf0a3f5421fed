"""benchmarks/kills.py: what it counts, and two rounds of each on a tiny model."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.cli import environment
from support.tiny_engine import save_tiny_llama, save_words

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kills.py"
GOOD = {
    "SIGTERM": [{"status": 0, "whole": 3, "refused": 1}],
    "SIGKILL": [{"status": 0, "wrong_before": 0, "whole": 4}],
}


def no_change(rounds: Any) -> None:
    pass


def a_cut(rounds: Any) -> None:
    rounds["SIGTERM"][0]["cut"] = 1


def a_wrong_token(rounds: Any) -> None:
    rounds["SIGKILL"][0]["wrong"] = 1
    rounds["SIGKILL"][0]["whole"] = 3


def a_wrong_token_before(rounds: Any) -> None:
    rounds["SIGKILL"][0]["wrong_before"] = 1


def a_missing_answer(rounds: Any) -> None:
    rounds["SIGKILL"][0]["whole"] = 3


def a_status(rounds: Any) -> None:
    rounds["SIGTERM"][0]["status"] = 75


@pytest.mark.parametrize(
    ("change", "faults"),
    [
        (no_change, []),
        (a_cut, ["streams cut within the drain"]),
        (a_wrong_token, ["wrong answers"]),
        (a_wrong_token_before, ["wrong answers"]),
        (a_missing_answer, ["answers missing after a restart"]),
        (a_status, ["servers that did not end with 0"]),
    ],
)
def test_what_counts_as_a_fault(change: Callable[[Any], None], faults: list[str]) -> None:
    rounds = json.loads(json.dumps(GOOD))
    change(rounds)
    found = importlib.import_module("kills").judged(rounds, 1, 4)["faults"]
    assert [name for name, count in found.items() if count] == faults


def test_a_server_is_ended_and_killed_twice(tmp_path: Path) -> None:
    folder = save_words(save_tiny_llama(tmp_path))
    command = [sys.executable, str(SCRIPT), "--model", str(folder), "--times", "2", "--streams", "8"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert not any(found["faults"].values())
    assert found["totals"]["SIGKILL"]["whole"] == 2 * 8
