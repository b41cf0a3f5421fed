"""A server as a process of its own, and a client of the standard library for it."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu.bare import environment


class Server:
    """`octavo serve`, ready.

    Attributes:
        process: the server's.
    """

    def __init__(self, words: Sequence[str], log: Path, before: Sequence[str] = ()) -> None:
        """
        Args:
            words: what comes after `serve`. before: gpu.serve's own options. log: what it says on stderr.

        Raises:
            RuntimeError: it ended before it was ready, with the last it said.
        """
        self._log = log
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gpu.serve", *before, "serve", *words, "--port", "0", "--json"],
                env=environment(), stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        self._host = self._ready()

    def _ready(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == "ready":
                return str(event["url"]).removeprefix("http://")
        self.process.stdout.close()
        said = self._log.read_text().strip().splitlines()
        raise RuntimeError(f"the server ended with {self.process.wait()}: {said[-1] if said else ''}")

    def open(
        self, path: str, body: object = None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """A request, and its answer as far as its head; whoever asked closes the connection."""
        connection = http.client.HTTPConnection(self._host, timeout=120)
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"} if data else {}
        connection.request("POST" if data else "GET", path, data, headers)
        return connection, connection.getresponse()

    def ask(self, path: str, body: object = None) -> tuple[int, Any, http.client.HTTPMessage]:
        """(status, JSON or text, headers)."""
        connection, response = self.open(path, body)
        with connection_closed(connection):
            data = response.read()
            is_json = "json" in (response.getheader("content-type") or "")
            return response.status, json.loads(data) if is_json else data.decode(), response.headers

    def stream(self, path: str, body: dict[str, Any]) -> Generator[str, None, None]:
        """The data of each event; closing the iterator closes the connection."""
        connection, response = self.open(path, {**body, "stream": True})
        with connection_closed(connection):
            if response.status != 200:
                raise RuntimeError(f"a stream began with {response.status}: {response.read(300)!r}")
            for line in response:
                if line.startswith(b"data: "):
                    yield line[6:].decode().strip()

    def gauge(self, name: str) -> float:
        """A metric's value, summed over its labels."""
        lines = str(self.ask("/metrics")[1]).splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))

    def idle(self, seconds: float = 60.0) -> bool:
        """Wait until nothing runs or waits: whether that came, with no page in use."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            names = ("octavo_num_requests_running", "octavo_num_requests_waiting")
            if not any(self.gauge(name) for name in names):
                return self.gauge("octavo_kv_cache_usage_perc") == 0.0
            time.sleep(0.05)
        return False

    def end(self, number: int | None = signal.SIGTERM) -> int:
        """Its exit status, after a signal; None: it ends by itself."""
        if number is not None and self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
        return self.process.returncode


@contextmanager
def connection_closed(connection: http.client.HTTPConnection) -> Iterator[None]:
    try:
        yield
    finally:
        connection.close()


@contextmanager
def running(words: Sequence[str], log: Path, before: Sequence[str] = ()) -> Iterator[Server]:
    """A server that has ended when the block has."""
    server = Server(words, log, before)
    try:
        yield server
    finally:
        server.end()
