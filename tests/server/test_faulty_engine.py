"""A served model whose steps hang, fail or panic: what clients hear, and how the process ends."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.server import signals
from support import faulty_serve
from support.cli import environment
from support.faulty_serve import SECRET
from support.tiny_engine import save_tiny_llama, save_words

NEW = 100
BODY: dict[str, Any] = {"max_tokens": NEW, "ignore_eos": True, "temperature": 0.9, "stream": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_words(save_tiny_llama(tmp_path_factory.mktemp("tiny-llama")))


class Served:
    """A server with a fault to come, and clients of it."""

    def __init__(self, folder: Path, trigger: Path, fault: str, *flags: str) -> None:
        self.trigger = trigger
        words = [fault, str(trigger), "serve", str(folder), "--port", "0", "--json", *flags]
        self.process = subprocess.Popen(
            [sys.executable, faulty_serve.__file__, *words],
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == "ready":
                self.url = event["url"]
                return
        raise AssertionError(self.process.communicate()[1])

    def stream(self, number: int, begun: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
        """The events of an answer, or the error in the place of one."""
        body = BODY | {"prompt": [3 + number, *range(5, 25)], "seed": number}
        with httpx.stream("POST", self.url + "/v1/completions", json=body, timeout=60) as response:
            if response.status_code != 200:
                return [json.loads(response.read())]
            events = []
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    events.append(json.loads(line.removeprefix("data: ")))
                    begun()
            return events

    def crowd(self, count: int) -> list[list[dict[str, Any]]]:
        """So many answers at once; the fault comes when one of them has begun."""
        found: list[list[dict[str, Any]]] = [[] for _ in range(count)]

        def ask(number: int) -> None:
            found[number] = self.stream(number, self.trigger.touch if number == 0 else lambda: None)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive(), "a client waits for ever"
        return found

    def wait_until_hung(self) -> None:
        hung, end = Path(f"{self.trigger}.hung"), time.monotonic() + 60
        while not hung.exists():
            assert time.monotonic() < end, "no step hangs"
            time.sleep(0.01)

    def ended(self) -> tuple[int, str]:
        """(exit status, standard error)."""
        _, said = self.process.communicate(timeout=120)
        return self.process.returncode, said


@pytest.fixture
def start(folder: Path, tmp_path: Path) -> Iterator[Callable[..., Served]]:
    made: list[Served] = []

    def begin(fault: str, *flags: str) -> Served:
        made.append(Served(folder, tmp_path / f"trigger{len(made)}", fault, *flags))
        return made[-1]

    yield begin
    for served in made:
        if served.process.poll() is None:
            served.process.kill()
            served.process.communicate()


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(choice["text"] for event in events for choice in event["choices"])


def test_a_hung_step_ends_its_requests_and_then_the_process(start: Callable[..., Served]) -> None:
    served = start("hang", "--stall-timeout", "1")
    for events in served.crowd(4):
        assert events[-1]["error"]["code"] == "engine_dead"
    status, said = served.ended()
    assert status == signals.STALLED == 75
    lines = [line for line in said.splitlines() if line.startswith("octavo: error")]
    assert lines == ["octavo: error: a step made no progress for 1 s; see --stall-timeout"]


@pytest.mark.parametrize("number", [1, 2])
def test_signals_end_a_server_whose_step_hangs(start: Callable[..., Served], number: int) -> None:
    """Within the time that a drain may take and a bound; after a second signal at once."""
    served = start("hang", "--stall-timeout", "0", "--drain-timeout", "0" if number == 1 else "600")

    def ask() -> None:
        with contextlib.suppress(httpx.HTTPError):  # the process has gone
            served.stream(0)

    served.trigger.touch()
    client = threading.Thread(target=ask)
    client.start()
    served.wait_until_hung()  # a signal before that ends a server that has nothing wrong
    for _ in range(number):
        served.process.send_signal(signal.SIGTERM)
        if number == 2:
            while httpx.get(served.url + "/health").status_code == 200:
                pass
    status, said = served.ended()
    assert status in ((signals.STALLED,) if number == 1 else (signals.STALLED, 128 + signal.SIGTERM))
    assert "octavo: error: " in said
    client.join(60)
    assert not client.is_alive()


@pytest.mark.parametrize("fault", ["fail:1", "fail:2", "panic"])
def test_steps_that_fail_for_a_moment_change_no_answer(start: Callable[..., Served], fault: str) -> None:
    served = start(fault)
    found = served.crowd(8)
    assert served.trigger.exists()
    for number, events in enumerate(found):
        assert "error" not in events[-1]
        assert text_of(events) == text_of(served.stream(number)), "as alone"
    served.process.terminate()
    status, said = served.ended()
    assert status == 0
    assert "a step failed" in said


def test_an_executor_that_computes_nothing_ends_the_server_and_tells_clients_no_path(
    start: Callable[..., Served],
) -> None:
    served = start("always")
    for events in served.crowd(8):
        message = events[-1]["error"]["message"]
        assert SECRET not in message
        assert "OSError" not in message
    status, said = served.ended()
    assert status == 1
    assert [line for line in said.splitlines() if line.startswith("octavo: error") and SECRET in line]


class Prober(threading.Thread):
    """Asks a server how it is, all the time. Attributes: seen: (/live, /ready), without repetitions."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url, self.seen, self.stop = url, list[tuple[int, int]](), threading.Event()

    def run(self) -> None:
        while not self.stop.wait(0.01):
            try:
                now = tuple(httpx.get(f"{self._url}{path}").status_code for path in ("/live", "/ready"))
            except httpx.HTTPError:
                return  # the process has gone
            if self.seen[-1:] != [now]:
                self.seen.append(now)


def test_a_storm_of_faults_under_load_and_a_restart(start: Callable[..., Served]) -> None:
    """Failing steps, two in a row too, panics and pauses, at random: they cost their own requests alone, and
    probes say that all is well. Then a step hangs: the process says so and ends, and the next one serves."""
    quiet = start("storm")
    right = [text_of(quiet.stream(number)) for number in range(8)]
    served = start("storm", "--stall-timeout", "4")
    prober = Prober(served.url)
    prober.start()
    try:
        for _ in range(2):
            for number, events in enumerate(served.crowd(8)):
                if "error" in events[-1]:
                    assert events[-1]["error"]["code"] == "generation_failed"
                    assert SECRET not in json.dumps(events)
                else:
                    assert text_of(events) == right[number], "as a quiet server's"
        assert prober.seen == [(200, 200)]
        Path(f"{served.trigger}.hang").touch()
        for events in served.crowd(4):
            assert events[-1]["error"]["code"] == "engine_dead"
        status, said = served.ended()
    finally:
        prober.stop.set()
        prober.join()
    assert status == signals.STALLED
    assert prober.seen[1:] in ([], [(503, 503)], [(200, 503), (503, 503)], [(200, 503)])
    assert said.count("a step failed") > 2
    again = start("storm")
    assert [text_of(events) for events in again.crowd(8)] == right
    again.process.terminate()
    assert again.ended()[0] == 0
