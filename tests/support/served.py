"""`octavo serve` with the real model, as a process of its own."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import Any

from support.cli import command, environment

KEY = "test-key"


@dataclass
class Served:
    """A server process.

    Attributes:
        url: without /v1.
    """

    process: subprocess.Popen[str]
    url: str
    events: list[dict[str, Any]]

    def end(self) -> int:
        """SIGTERM, and the exit status."""
        self.process.terminate()
        out, _ = self.process.communicate(timeout=120)
        self.events += [json.loads(line) for line in out.splitlines()]
        return self.process.returncode


def start(*words: str) -> Served:
    """Start a server on a free port and wait until it is ready."""
    process = subprocess.Popen(
        command("serve", "smollm2", "--port", "0", "--json", *words),
        env=environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return waited(process)


def waited(process: subprocess.Popen[str]) -> Served:
    """A server that has been started with --json, when it is ready."""
    assert process.stdout is not None
    events: list[dict[str, Any]] = []
    for line in process.stdout:
        events.append(json.loads(line))
        if events[-1]["event"] == "ready":
            return Served(process, events[-1]["url"], events)
    raise AssertionError(f"the server ended with {process.wait()}: {events}")
