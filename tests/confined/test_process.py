"""Confined: what a job may take, what is left of it, and what the server hears."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.confined import Confined, JobKilledError, UnavailableError, process, wire
from octavo.errors import InvalidRequestError, UnsupportedError

MEMORY = 64 << 20


@pytest.fixture
def jobs() -> Iterator[Confined]:
    confined = Confined("support.confined_jobs:prepare", lambda: {"prepared": "ü"}, MEMORY)
    yield confined
    confined.close()


def asleep(jobs: Confined, cpu_s: float) -> tuple[threading.Thread, list[Exception]]:
    """A thread whose job sleeps for long, and what ends it."""
    ended: list[Exception] = []

    def sleep() -> None:
        try:
            jobs.run(["sleep", None], cpu_s)
        except (JobKilledError, UnavailableError) as error:
            ended.append(error)

    thread = threading.Thread(target=sleep)
    thread.start()
    return thread, ended


def test_jobs_get_what_was_prepared_and_leave_nothing_behind(jobs: Confined) -> None:
    assert jobs.starts == 0
    assert jobs.run(["echo", "é\ud800"], 1) == [{"prepared": "ü"}, "é\ud800"]
    assert jobs.run(["remember", 1], 1) == [1]
    assert jobs.run(["remember", 2], 1) == [2]
    assert jobs.starts == 1


@pytest.mark.parametrize(
    "job",
    [
        ["spin", None],
        ["spin in C", None],
        ["sleep", None],
        ["fill", 2 * MEMORY],
        ["crash", None],
        ["leave", None],
        ["fail", "x"],
        ["panic", "x"],
    ],
    ids=lambda job: job[0],
)
def test_a_job_that_takes_too_much_ends_alone(
    jobs: Confined, job: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.run(["echo", 1], 1)
    with pytest.raises(JobKilledError):
        jobs.run(job, 0.05)
    assert jobs.run(["echo", 2], 1)[1] == 2
    assert jobs.starts == 1, "the prepared process itself did nothing"


def test_what_fits_is_done(jobs: Confined) -> None:
    assert jobs.run(["fill", MEMORY // 2], 1) == MEMORY // 2
    assert len(jobs.run(["answer", 10 << 20], 5)) == 10 << 20


@pytest.mark.parametrize(("how", "warm"), [("", True), ("fails", True), ("ends", False)])
def test_a_process_that_waits_warm_takes_one_job(how: str, warm: bool) -> None:
    jobs = Confined("support.confined_jobs:prepare_warm", lambda: how, MEMORY)
    try:
        found = []
        for at in range(400 if warm else 20):
            found.append(jobs.run(["remember", at], 1))
            assert found[-1][-1] == at
            assert found[-1][:-1] in ([], ["warm"]), "nothing of another job"
            if ["warm", at] in found and at > 3:
                break
            time.sleep(0.05)  # for the next one to get warm
        assert any(each[0] == "warm" for each in found) is warm
        with pytest.raises(JobKilledError):
            jobs.run(["crash", None], 1)
        assert jobs.run(["remember", 1], 1)[-1] == 1
        assert jobs.starts == 1
    finally:
        jobs.close()


def test_errors_for_people_come_back_as_they_are(jobs: Confined) -> None:
    with pytest.raises(InvalidRequestError, match=r"^no$") as refused:
        jobs.run(["refuse", "field"], 1)
    assert type(refused.value) is InvalidRequestError
    assert refused.value.param == "field"
    with pytest.raises(UnsupportedError, match=r"^not yet$"):
        jobs.run(["not support", None], 1)


def test_a_job_sees_no_secrets_and_writes_no_files(
    jobs: Confined, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "secret")
    assert "secret" not in jobs.run(["environment", None], 1).values()
    with pytest.raises(JobKilledError):
        jobs.run(["write", str(tmp_path / "file")], 1)
    assert not (tmp_path / "file").exists() or not (tmp_path / "file").read_text()


def test_jobs_run_side_by_side(jobs: Confined) -> None:
    jobs.run(["echo", 0], 1)
    thread, ended = asleep(jobs, 20)
    assert [jobs.run(["echo", i], 1)[1] for i in range(5)] == list(range(5))
    assert thread.is_alive(), "it would sleep for more than a minute"
    jobs.close()
    thread.join()
    assert len(ended) == 1


def test_a_server_of_many_connections_has_jobs_too(jobs: Confined) -> None:
    """select() knows no descriptor above 1,023."""
    jobs.run(["echo", 0], 1)
    assert jobs._control is not None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    try:
        high = fcntl.fcntl(jobs._control.fileno(), fcntl.F_DUPFD_CLOEXEC, 1500)
        jobs._control.close()
        jobs._control = socket.socket(fileno=high)
        assert jobs.run(["echo", 1], 1)[1] == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert jobs.starts == 1


def test_a_prepared_process_that_is_gone_is_replaced(jobs: Confined) -> None:
    jobs.run(["echo", 0], 1)
    for _ in range(2):
        assert jobs._process is not None
        os.kill(jobs._process.pid, signal.SIGKILL)
        assert jobs.run(["echo", 1], 1)[1] == 1


def test_a_setup_that_fails_is_unavailable_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    jobs = Confined("support.confined_jobs:broken", lambda: given.append(1), MEMORY)
    for _ in range(3):
        with pytest.raises(UnavailableError):
            jobs.run(None, 1)
    assert given == [1], "nobody waits for a second start"
    assert not jobs.available
    monkeypatch.setattr(process, "RETRY_S", 0.0)
    assert jobs.available
    with pytest.raises(UnavailableError):
        jobs.run(None, 1)
    assert len(given) > 1


def test_closing_ends_jobs_and_starts_none(jobs: Confined) -> None:
    jobs.run(["echo", 0], 1)
    thread, ended = asleep(jobs, 50)
    time.sleep(0.2)
    jobs.close()
    thread.join(30)
    assert len(ended) == 1
    assert jobs._process is None
    with pytest.raises(UnavailableError):
        jobs.run(["echo", 1], 1)


def test_no_process_outlives_the_server() -> None:
    """Killed, a server cannot tidy up: the prepared process hears that nobody is left."""
    code = (
        "import os, time; from octavo.confined import Confined\n"
        "jobs = Confined('support.confined_jobs:prepare', lambda: None, 1 << 26)\n"
        "jobs.run(['echo', 1], 1); print(jobs._process.pid, flush=True); time.sleep(60)"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        server.kill()
    for _ in range(200):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.05)
    pytest.fail("it is still there")


@pytest.mark.parametrize("data", [b"", b"\0" * 7, b"\xff" * 8, b"\0" * 7 + b"\2{", b"\0" * 7 + b"\2{]"])
def test_what_is_no_message_is_an_end(data: bytes) -> None:
    import socket

    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            wire.receive(ours)
