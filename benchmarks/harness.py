"""What benchmarks share: engines in processes of their own, the machine's description, result files."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from asked import ScriptError
from engines.base import Timing

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MODEL_FLAGS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "asimddp")


class Worker:
    """An engine in its own process (worker.py). Use it as a context manager.

    Raises:
        ScriptError: the process ended; the message is the last line it wrote to stderr.
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
        # A pipe would fill up unread.
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed in __exit__
        self._process = subprocess.Popen(
            [*command, "--options", json.dumps(dict(options or {}))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True,
        )  # fmt: skip
        try:
            self.about: dict[str, str] = self._read()
        except BaseException:
            self.close()
            raise

    def run(self, prompts: list[list[int]], new_tokens: int) -> Timing:
        """Engine.run in that process."""
        return Timing(**self._ask({"prompts": prompts, "new_tokens": new_tokens}))

    def logits(self, ids: list[int], first: int, out: Path) -> None:
        """Scorer.logits in that process, written to out (.npy)."""
        self._ask({"ids": ids, "first": first, "out": str(out)})

    def _ask(self, task: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._process.wait()
        self._said.seek(0)
        raise ScriptError((self._said.read().strip().splitlines() or ["no message"])[-1])

    def __enter__(self) -> Worker:
        return self

    def close(self) -> None:
        """End the process: its input has ended."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._process.wait()
        self._said.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Server:
    """`octavo serve` on a free port of this machine. Use it as a context manager.

    Attributes:
        url: http://host:port. ready_s: from the process's start to its "ready".

    Raises:
        ScriptError: it ended instead of getting ready.
    """

    def __init__(self, model: str, *flags: str) -> None:
        command = [sys.executable, "-m", "octavo", "serve", model, "--port", "0", "--json", *flags]
        start = time.perf_counter()
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if event["event"] == "ready":
                self.ready_s, self.url = time.perf_counter() - start, str(event["url"])
                return
        raise ScriptError(f"octavo serve ended with status {self._process.wait()}")

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def put_load(
    url: str,
    seed: int,
    *,
    users: int,
    requests: int,
    prompt_tokens: int,
    max_tokens: int,
    timeout: int = 1800,
) -> dict[str, Any]:
    """`octavo bench serve` in a process of its own: users who wait for an answer before they ask again.

    Returns: what they saw, times in ms, and what asking took of the machine.

    Raises:
        ScriptError: a request failed.
    """
    flags = {
        "num_prompts": requests, "max_concurrency": users, "random_input_len": prompt_tokens,
        "random_output_len": max_tokens, "num_warmups": 0, "seed": seed, "timeout": timeout,
    }  # fmt: skip
    words = [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "octavo", "bench", "serve", url, "--ignore-eos", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ScriptError(f"octavo bench serve: {done.stderr.strip() or done.stdout.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    if found["completed"] != requests:
        raise ScriptError(
            f"octavo bench serve: {found['completed']} of {requests} were answered: {found['errors']}"
        )
    times = {
        f"{name}_{share}": found[f"{share}_{figure}_ms"]
        for name, figure in (("ttft", "ttft"), ("gap", "itl"), ("latency", "e2el"))
        for share in ("p50", "p99")
    }
    return {
        "output_tokens": found["total_output_tokens"], "seconds": found["duration"],
        "output_rate": found["output_throughput"], **times,
        "cpu_seconds": found["client_cpu_seconds"], "cpu_share": found["client_cpu_share"],
    }  # fmt: skip


def python_with(module: str, wished: str | None = None) -> str | None:
    """A Python that can import a module: the one wished for, the project's environments, this one.

    Raises:
        ScriptError: the one wished for cannot.
    """
    places = [ROOT / name / "bin" / "python" for name in (".venv-oracle", ".venv-test", ".venv")]
    for python in [wished] if wished else [*map(str, filter(Path.exists, places)), sys.executable]:
        code = f"import importlib.util as u; print(u.find_spec({module!r}) is not None)"
        try:
            found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
        except OSError as error:
            raise ScriptError(f"{python} cannot be run: {error.strerror}") from None
        if found.stdout.strip() == "True":  # a program that is no Python ends with 0 too
            return python
        if wished and found.stdout.strip() != "False":
            raise ScriptError(f"{wished} is no Python")
    if wished:
        raise ScriptError(f"{wished} cannot import {module}")
    return None


def in_rounds(turns: Mapping[str, Callable[[], T]], rounds: int, pause_s: float = 0.5) -> list[dict[str, T]]:
    """What each turn reads once a round; who begins changes. In a pause idle threads stop spinning."""
    found = []
    for number in range(rounds):
        seen = {}
        for name in list(turns)[:: -1 if number % 2 else 1]:
            time.sleep(pause_s)
            seen[name] = turns[name]()
        print(f"round {number + 1} of {rounds}: {seen}", file=sys.stderr, flush=True)
        found.append(seen)
    return found


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


FOLDERS = re.compile(r"(?<![\w.:/~-])(?:/|(?:\.\./)+)(?:[^/\s\"']+/)+")
"""Of a path that begins at the root or above the checkout, all but its last name; an address (http://...) has
none."""


def without_folders(value: Any) -> Any:
    """The same with PATH for folders outside the checkout: whoever reads a result has others."""
    if isinstance(value, str):
        return FOLDERS.sub("PATH/", value)
    if isinstance(value, Mapping):
        return {key: without_folders(each) for key, each in value.items()}
    return [without_folders(each) for each in value] if isinstance(value, (list, tuple)) else value


def quoted(word: str) -> str:
    """JSON in a shell's quotes; other words as they are: "~" would be no home in quotes."""
    return shlex.quote(word) if word.startswith("{") else word


def report(name: str, command: list[str], body: Mapping[str, Any]) -> dict[str, Any]:
    """A result with its origin. Its command and settings name no folder of this machine."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    origin = {"benchmark": name, "date": now, "commit": commit()}
    origin["command"] = without_folders(" ".join(map(quoted, command)))
    settings = {"settings": without_folders(body["settings"])} if "settings" in body else {}
    return {**origin, "machine": machine(), **body, **settings}


def write(result: Mapping[str, Any]) -> Path:
    """Put a result under benchmarks/results and return where."""
    RESULTS.mkdir(exist_ok=True)
    stem = f"{result['benchmark']}-{result['date'][:10]}-{result['commit'].rstrip('+')}"
    path, number = RESULTS / f"{stem}.json", 1
    while path.exists():  # another run of the same commit, with other settings
        number += 1
        path = RESULTS / f"{stem}-{number}.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return path


def conclude(result: Mapping[str, Any], lines: Sequence[str], failed: bool, as_json: bool, keep: bool) -> int:
    """Print a result, as JSON or in these lines, write it where it is kept, and say what to exit with."""
    print(json.dumps(result, indent=2) if as_json else "\n".join(lines))
    if keep:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 1 if failed else 0
