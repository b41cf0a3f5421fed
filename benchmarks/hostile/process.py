"""The process of a server: started under a limit, and what it takes of the machine."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

MOST_ADDRESS_SPACE = 14 << 30
"""Bytes: a request that takes all memory ends the server, not the machine."""
END_S = 120.0
MB = 1e6


class Process:
    """`octavo serve` on a free port of this machine. Use it as a context manager.

    Attributes:
        url: http://host:port. pid. status: its exit status once it has ended.

    Raises:
        RuntimeError: it ended instead of getting ready.
    """

    def __init__(self, model: str, *flags: str) -> None:
        command = [sys.executable, "-m", "octavo", "serve", model, "--port", "0", "--json", *flags]
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed in __exit__
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log, text=True,
            preexec_fn=_limited,
        )  # fmt: skip
        self.pid, self.url, self.status = self._process.pid, "", None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if event["event"] == "ready":
                self.url = str(event["url"])
                break
        if not self.url:
            raise RuntimeError(f"octavo serve ended with {self._process.wait()}: {self.log()[-500:]}")
        # Whatever else it prints is read, or it would wait for a full pipe.
        threading.Thread(target=self._process.stdout.read, daemon=True).start()

    status: int | None

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        """All that it has written to standard error."""
        self._log.seek(0)
        text = self._log.read()
        self._log.seek(0, os.SEEK_END)
        return text

    def end(self) -> int:
        """SIGTERM, and the exit status; a process that does not end in END_S is killed."""
        if self.alive:
            self._process.send_signal(signal.SIGTERM)
        try:
            self.status = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.status = self._process.wait()
        return self.status

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self._log.close()

    # --- what it takes ---------------------------------------------------------------------------

    def rss_mb(self) -> float:
        """Resident memory in MB."""
        return field_mb(self.pid, "VmRSS")

    def peak_mb(self) -> float:
        """The most that was resident since forget_peak()."""
        return field_mb(self.pid, "VmHWM")

    def forget_peak(self) -> None:
        """From now on peak_mb() counts anew, where the system allows it."""
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def children_mb(self) -> float:
        """Resident memory of the processes that it has started, in MB."""
        return sum(field_mb(pid, "VmRSS") for pid in descendants(self.pid))

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def files(self) -> int:
        """Open files, sockets among them."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESS_SPACE, MOST_ADDRESS_SPACE))


def field_mb(pid: int, name: str) -> float:
    """A field of /proc/PID/status, in MB; 0 where the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 / MB for line in lines if line.startswith(name + ":"))
    except (OSError, StopIteration):
        return 0.0


def descendants(pid: int) -> Iterator[int]:
    """The processes below one."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                yield int(child)
                yield from descendants(int(child))


class Sampler:
    """Asks for a number again and again on a thread of its own, and keeps the highest."""

    def __init__(self, number: Callable[[], float], every_s: float = 0.05) -> None:
        self._number, self._every_s, self._stop = number, every_s, threading.Event()
        self.most = number()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stop.wait(self._every_s):
            self.most = max(self.most, self._number())

    def end(self) -> float:
        """The highest of all."""
        self._stop.set()
        self._thread.join()
        return self.most
