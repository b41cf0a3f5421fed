"""The prepared process, and those it forks for jobs (see process.py). Its setup says what it imports.

A fork shares its pages with the process that it comes from until it writes into them, and Python writes into
whatever it looks at. So the next job's process is forked while nobody waits for it, and has looked at what
jobs need (`warm_up` of what the setup returned, if it has one).
"""

from __future__ import annotations

import gc
import importlib
import math
import os
import resource
import select
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
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
    spare = _spare(control, run)
    while True:
        data, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        with socket.socket(fileno=fds[0]) as connection:
            settled = spare is None or _is_settled(spare)
            if not (settled and _passed_on(connection, spare)):  # nobody waits for one to get warm either
                _fork(partial(_alone, connection, control, run))
        if settled:
            if spare is not None:
                spare.close()
            spare = _spare(control, run)


def _is_settled(spare: socket.socket) -> bool:
    """Whether the spare process has said that it is warm, or is gone."""
    return bool(select.select([spare], [], [], 0)[0])


def _passed_on(connection: socket.socket, spare: socket.socket | None) -> bool:
    """Whether the spare process, if there is one, has taken the job."""
    if spare is None:
        return False
    try:
        socket.send_fds(spare, [b"j"], [connection.fileno()])
    except OSError:  # it is gone
        return False
    return True


def _spare(control: socket.socket, run: Run) -> socket.socket | None:
    """Where a process waits for a job's socket; None: no process is to be had."""
    ours, theirs = socket.socketpair()

    def wait() -> None:
        ours.close()
        control.close()
        if (warm_up := getattr(run, "warm_up", None)) is not None:
            with suppress(Exception):  # a job meets it again, and its sender is told
                warm_up()
        theirs.sendall(b"w")
        _, fds, _, _ = socket.recv_fds(theirs, 1, 1)
        if fds:
            with socket.socket(fileno=fds[0]) as connection:
                _work(connection, run)

    with theirs:
        if _fork(wait):
            return ours
    ours.close()
    return None


def _alone(connection: socket.socket, control: socket.socket, run: Run) -> None:
    control.close()
    _work(connection, run)


def _fork(work: Callable[[], None]) -> bool:
    """Do some work in a process of its own, which ends then; whether one is to be had."""
    try:
        child = os.fork()
    except OSError:
        return False
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return True


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
