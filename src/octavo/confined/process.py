"""Confined: jobs that run in processes of their own, each under limits of time and memory.

    server ---- control socket ----> prepared process: has imported and built what every job needs, once
       |                                | fork, for each job: one waits for the next
       '------- job's own socket ----> its process: sets its limits, works, answers, ends

The prepared process starts with the first job and never runs one itself, so a job that is killed costs the
next one nothing but a fork: some milliseconds. Nothing of a job stays behind for the next one.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from octavo.confined.wire import receive, send
from octavo.errors import InvalidRequestError, UnsupportedError

START_S = 60.0
"""For the prepared process to get ready: imports and a vocabulary's table take about half a second."""
RETRY_S = 5.0
"""After a start that failed, so long nobody waits for another one."""
_PASSED_ON = (
    "HOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "PATH",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONHOME",
    "TZ",
)
"""What the process sees of the environment: no keys."""
_MAIN = "import sys; from octavo.confined.prepared import main; main(int(sys.argv[1]))"


class JobKilledError(Exception):
    """The job took more time or memory than it was given, or crashed."""


class UnavailableError(Exception):
    """No process can be started."""


class Confined:
    """Runs jobs. Thread-safe; each job holds its caller's thread.

    Args:
        setup: "module:function", called once in the prepared process with what `given` returns; what it
            returns is called with each job. Jobs and answers are JSON.
        given: called where the process starts.
        memory: bytes that a job may take beside what is prepared.
    """

    def __init__(self, setup: str, given: Callable[[], Any], memory: int) -> None:
        self._setup, self._given, self._memory = setup, given, memory
        # Under this lock: all that follows.
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._failed = -RETRY_S
        self._closed = False
        self.starts = 0

    @property
    def available(self) -> bool:
        """False: the last start failed, and jobs are refused for a while."""
        return time.monotonic() - self._failed >= RETRY_S

    def run(self, job: Any, cpu_s: float) -> Any:
        """The job's answer.

        Args:
            cpu_s: of a processor. By the clock it gets four times as much and two seconds.

        Raises:
            JobKilledError: it took more, or crashed. UnavailableError: no process can be started.
            InvalidRequestError, UnsupportedError: what the job itself raised.
        """
        wall_s = 4 * cpu_s + 2
        for _ in range(2):
            try:
                answer = self._ask({"job": job, "cpu_s": cpu_s, "wall_s": wall_s, "memory": self._memory})
            except TimeoutError:  # its own timer should have ended it: nothing there can be relied upon
                self._kill()
                raise JobKilledError from None
            except (EOFError, OSError):
                if self._lives():
                    raise JobKilledError from None
                continue  # the prepared process itself is gone: once more, with a new one
            if "raised" in answer:
                name, text, param = answer["raised"]
                raise (UnsupportedError if name == UnsupportedError.__name__ else InvalidRequestError)(
                    text, param
                )
            if "answer" not in answer:
                raise JobKilledError
            return answer["answer"]
        raise UnavailableError

    def close(self) -> None:
        """End every job and start none any more."""
        self._closed = True
        # Who starts a process holds the lock until it is ready, which may take a minute: it hears the end.
        if (process := self._process) is not None and process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        self._kill()

    def __del__(self) -> None:
        with suppress(Exception):  # the interpreter may be ending
            self._kill_group()

    def _ask(self, message: Any) -> Any:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                self._hand_over(theirs)
            ours.settimeout(message["wall_s"] + 5)
            send(ours, message)
            return receive(ours)

    def _hand_over(self, theirs: socket.socket) -> None:
        with self._lock:
            if not self._is_up():
                self._kill_group()
                self._start()
            assert self._control is not None
            socket.send_fds(self._control, [b"j"], [theirs.fileno()])

    def _start(self) -> None:
        if self._closed or not self.available:
            raise UnavailableError
        ours, theirs = socket.socketpair()
        # sys.path, because the package may not be where a fresh interpreter would look for it.
        env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        env |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"}
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _MAIN, str(theirs.fileno())],
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # a panic's text may hold what a request brought
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C is the server's; and all jobs can be killed together
                )
            ours.settimeout(START_S)
            send(ours, {"setup": self._setup, "given": self._given()})
            receive(ours)
        except (OSError, EOFError):
            self._failed = time.monotonic()
            ours.close()
            self._kill_group()
            raise UnavailableError from None
        self._control = ours
        self.starts += 1

    def _lives(self) -> bool:
        with self._lock:
            return self._is_up()

    def _is_up(self) -> bool:
        if self._process is None or self._control is None or self._process.poll() is not None:
            return False
        # It says nothing after its start: what can be read is the end, which comes before the exit status.
        # (poll, as select knows no descriptor above 1,023, and a server may have thousands of connections.)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        return not poll.poll(0)

    def _kill(self) -> None:
        with self._lock:
            self._kill_group()

    def _kill_group(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        if self._control is not None:
            self._control.close()
            self._control = None
