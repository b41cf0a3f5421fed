"""Requests by hand, well formed or not, over connections that may be left, dripped on or never read."""

from __future__ import annotations

import contextlib
import http.client
import json
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

NO_ANSWER = 0
"""The status of a request whose connection ended, or that was not answered in time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request was answered.

    Attributes:
        status: NO_ANSWER: none came, and body says why. seconds: from the connection to the last byte.
    """

    status: int
    body: bytes
    seconds: float
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and the key that is sent to it, where it has any."""

    host: str
    port: int
    key: str | None = None

    @classmethod
    def of(cls, url: str, key: str | None = None) -> Target:
        """The one at http://host:port."""
        parts = urlsplit(url)
        return cls(parts.hostname or "127.0.0.1", parts.port or 80, key)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 120.0,
    ) -> Answer:
        """One request on a connection of its own; body: bytes as they are, anything else as JSON."""
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **self._authorization(), **(headers or {})}
        begin = time.perf_counter()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            text, told = answer.read(), {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, text, time.perf_counter() - begin, told)
        except (OSError, http.client.HTTPException, ValueError) as error:
            return Answer(NO_ANSWER, repr(error).encode(), time.perf_counter() - begin)
        finally:
            connection.close()

    def connect(self, data: bytes = b"", receive_buffer: int | None = None) -> socket.socket:
        """A connection that says this much."""
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(30)
        sock.connect((self.host, self.port))
        sock.sendall(data)
        return sock

    def head(self, method: str, path: str, length: int, close: bool = False) -> bytes:
        """The head of a request whose body has so many bytes; close: the last one of its connection."""
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in self._authorization().items()]
        lines += ["Connection: close"] * close
        return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()

    def request(self, path: str, body: Any, close: bool = False) -> bytes:
        """A whole POST, as it is sent; body: bytes as they are, anything else as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.head("POST", path, len(data), close) + data

    def metrics(self) -> dict[str, float]:
        """/metrics: each series by its name with labels, and by its name alone summed over them."""
        found: dict[str, float] = {}
        for line in self.ask("GET", "/metrics").body.decode().splitlines():
            series, _, value = line.rpartition(" ")
            if series and not line.startswith("#"):
                for name in {series, series.partition("{")[0]}:
                    found[name] = found.get(name, 0.0) + float(value)
        return found

    def _authorization(self) -> dict[str, str]:
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}


def at_once(calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """The answers to requests that are sent side by side."""
    found: list[Answer | None] = [None] * len(calls)

    def call(index: int) -> None:
        found[index] = calls[index]()

    threads = [threading.Thread(target=call, args=(index,), daemon=True) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answer for answer in found if answer is not None]


def closed(sock: socket.socket) -> bool:
    """Whether the other side has ended the connection; what it said before is read and dropped."""
    sock.setblocking(False)
    try:
        while sock.recv(1 << 16):
            pass
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def reset(sock: socket.socket) -> None:
    """Leave without a word: the other side gets RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def close_all(socks: Iterable[socket.socket]) -> None:
    """End connections of which some may have ended already."""
    for sock in socks:
        with contextlib.suppress(OSError):
            sock.close()


def more_files() -> None:
    """Let this process have as many connections as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else max(soft, 65_536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def wait_until(true: Callable[[], bool], seconds: float, every_s: float = 0.1) -> bool:
    """Whether it came true within so many seconds."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() >= end:
            return False
        time.sleep(every_s)
    return True
