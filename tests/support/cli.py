"""Run `octavo` as its users do, or with a scripted engine in place of a model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import octavo

ROOT = Path(octavo.__file__).parents[1]
SCRIPTED = """
import contextlib, sys, time
from octavo.cli import _load, main
from support.fake_engine import FakeEngine

class Announced(FakeEngine):
    def shutdown(self):
        super().shutdown()
        with contextlib.suppress(OSError):  # where nothing can be written, as the server does
            print("engine shut", file=sys.stderr)

def fetch(model, quiet=False):
    if model == "pulled":
        time.sleep(600)

_load.fetch = fetch
def load(engine, progress=None):
    if engine.model == "stuck":
        time.sleep(600)
    slow = engine.model == "slow"  # so slow that no reader, however late, sees its end
    reply, delay = ("Hello" * 40, 0.5) if slow else ("Hello", 0)
    return Announced(reply=reply, served_model_name=engine.model, delay=delay)

_load.load = load
sys.exit(main(sys.argv[1:]))
"""


def command(*words: str, scripted: bool = False) -> list[str]:
    """The argument vector of an octavo command."""
    return [sys.executable, *(["-c", SCRIPTED] if scripted else ["-m", "octavo"]), *words]


def environment() -> dict[str, str]:
    """This process's, with the package and the test support importable."""
    paths = [str(ROOT), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def octavo_command(
    *words: str, scripted: bool = False, stdin: str | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        command(*words, scripted=scripted),
        env=environment(),
        input=stdin,
        stdin=None if stdin is not None else subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
