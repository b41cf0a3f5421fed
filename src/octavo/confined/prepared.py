"""The prepared process, and those it forks for jobs (see process.py). Its setup says what it imports."""

from __future__ import annotations

import gc
import importlib
import math
import os
import resource
import signal
import socket
from collections.abc import Callable
from typing import Any

from octavo.confined.wire import receive, send
from octavo.errors import InvalidRequestError

STACK = 4 << 20
"""Half of what a thread of the server has: recursion that fits here fits there."""

Run = Callable[[Any], Any]


def main(control_fd: int) -> None:
    """Prepare, then fork for each job whose socket comes, until the server is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended jobs are nobody's to wait for
    control = socket.socket(fileno=control_fd)
    try:
        first = receive(control)
        module, _, function = first["setup"].partition(":")
        run: Run = getattr(importlib.import_module(module), function)(first["given"])
        del first
        gc.freeze()  # what is prepared stays shared with every fork
        gc.disable()  # a fork ends with its job, before collecting would pay
        send(control, "ready")
        _serve(control, run)
    finally:
        os._exit(0)


def _serve(control: socket.socket, run: Run) -> None:
    while True:
        data, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        with socket.socket(fileno=fds[0]) as connection:
            try:
                child = os.fork()
            except OSError:  # no process to be had: the job's socket closes
                continue
            if child == 0:
                try:
                    control.close()
                    _work(connection, run)
                finally:
                    os._exit(0)


def _work(connection: socket.socket, run: Run) -> None:
    message = receive(connection)
    _limit(message["cpu_s"], message["wall_s"], message["memory"])
    try:
        answer = {"answer": run(message["job"])}
    except InvalidRequestError as error:
        answer = {"raised": [type(error).__name__, str(error), error.param]}
    except BaseException as error:  # a panic of Rust's is no Exception
        answer = {"failed": type(error).__name__}
    send(connection, answer)


def _limit(cpu_s: float, wall_s: float, memory: int) -> None:
    """From here on: the signals' own action ends the process, and memory is refused."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, wall_s)
    _lower(resource.RLIMIT_CPU, math.ceil(cpu_s) + 1)
    _lower(resource.RLIMIT_AS, _address_space() + memory)
    _lower(resource.RLIMIT_STACK, STACK)
    _lower(resource.RLIMIT_FSIZE, 0)
    _lower(resource.RLIMIT_CORE, 0)
    try:  # where memory runs out all the same, this process goes first
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass


def _lower(which: int, limit: int) -> None:
    hard = resource.getrlimit(which)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(which, (limit, limit))


def _address_space() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 4 << 30
