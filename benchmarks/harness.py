"""What benchmarks share: engines in processes of their own, the machine's description, result files."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MODEL_FLAGS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "asimddp")


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one run: prompt_s up to the first new token, decode_s for the rest."""

    prompt_s: float
    decode_s: float


class Worker:
    """An engine in its own process (worker.py). Use it as a context manager.

    Raises:
        RuntimeError: the process ended; the message is the last line it wrote to stderr.
    """

    def __init__(
        self,
        engine: str,
        model: str,
        threads: int,
        python: str = sys.executable,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        command = [python, str(ROOT / "benchmarks" / "worker.py"), engine, model, "--threads", str(threads)]
        self._process = subprocess.Popen(
            [*command, "--options", json.dumps(dict(options or {}))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.about: dict[str, str] = self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        assert self._process.stderr is not None
        said = self._process.stderr.read().strip().splitlines() or ["no message"]
        raise RuntimeError(said[-1])

    def run(self, prompt: list[int], new_tokens: int) -> Timing:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompt": prompt, "new_tokens": new_tokens}) + "\n")
        self._process.stdin.flush()
        return Timing(**self._read())

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        self._process.wait()


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> dict[str, Any]:
    """What a reader needs in order to judge a figure."""
    fields: dict[str, str] = {}
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return {
        "cpu": fields.get("model name", platform.processor() or platform.machine()),
        "family_model": f"{fields.get('cpu family', '?')}/{fields.get('model', '?')}",
        "cores": usable_cores(),
        "flags": [flag for flag in MODEL_FLAGS if flag in flags],
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "load_average": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def commit() -> str:
    """The checkout's commit, "+" where tracked files differ from it."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run(
        [*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False
    )
    changed = subprocess.run(
        [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=False
    )
    return (
        head.stdout.strip() + ("+" if changed.stdout.strip() else "") if head.returncode == 0 else "unknown"
    )


def report(name: str, command: list[str], body: Mapping[str, Any]) -> dict[str, Any]:
    """A result with its origin."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    origin = {"benchmark": name, "date": now, "commit": commit(), "command": " ".join(command)}
    return {**origin, "machine": machine(), **body}


def write(result: Mapping[str, Any]) -> Path:
    """Put a result under benchmarks/results and return where."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{result['benchmark']}-{result['date'][:10]}-{result['commit'].rstrip('+')}.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return path
