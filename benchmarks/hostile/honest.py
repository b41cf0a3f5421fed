"""An honest client, as a process of its own: what it sees is what hostile ones make others see.

    python benchmarks/hostile/honest.py URL [--key KEY] [--tokens 24]

It asks /health every 10 ms, and streams one completion after the other. Each line on its standard input is
answered by a line of JSON: what it saw since the line before (see Seen.told).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

EVERY_S = 0.01
TIMEOUT_S = 300.0
PROMPT = [7 + 13 * place % 80 for place in range(40)]
"""Token ids that small vocabularies have, too."""


@dataclass
class Seen:
    """What was seen since the last time that somebody asked. Seconds, but in told().

    Attributes:
        health: of each answer of /health. unhealthy: answers that were no 200.
        firsts, wholes: from sending a completion to its first text, and to its end.
        texts: what completions said, and how often. failed: why others did not end.
    """

    health: list[float] = field(default_factory=list)
    unhealthy: Counter[str] = field(default_factory=Counter)
    firsts: list[float] = field(default_factory=list)
    wholes: list[float] = field(default_factory=list)
    texts: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)

    def told(self) -> dict[str, Any]:
        """As JSON; times in milliseconds, 0 where nothing was answered."""
        return {
            "health_worst_ms": ms(max(self.health, default=0.0)),
            "health_p99_ms": ms(at(self.health, 0.99)),
            "health_count": len(self.health),
            "unhealthy": dict(self.unhealthy),
            "first_p50_ms": ms(at(self.firsts, 0.5)),
            "first_p99_ms": ms(at(self.firsts, 0.99)),
            "whole_p50_ms": ms(at(self.wholes, 0.5)),
            "whole_p99_ms": ms(at(self.wholes, 0.99)),
            "answers": len(self.wholes),
            "wholes_ms": [ms(seconds) for seconds in self.wholes],
            "texts": dict(self.texts),
            "failed": dict(self.failed),
        }


def ms(seconds: float) -> float:
    return round(1e3 * seconds, 2)


def at(values: list[float], share: float) -> float:
    """The value below which so large a share lies; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Client:
    """Asks on two threads, for as long as the process lives."""

    def __init__(self, url: str, key: str | None, tokens: int) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        self._body = json.dumps(
            {"prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, "seed": 1, "temperature": 0.9,
             "stream": True}
        )  # fmt: skip
        self._seen, self._lock = Seen(), threading.Lock()
        for work in (self._ask_health, self._complete):
            threading.Thread(target=work, daemon=True).start()

    def taken(self) -> Seen:
        """What was seen since the last call."""
        with self._lock:
            seen, self._seen = self._seen, Seen()
            return seen

    def _connect(self) -> HTTPConnection:
        return HTTPConnection(*self._address, timeout=TIMEOUT_S)

    def _ask_health(self) -> None:
        connection = self._connect()
        while True:
            begin, why = time.perf_counter(), ""
            try:
                connection.request("GET", "/health")
                answer = connection.getresponse()
                answer.read()
                why = "" if answer.status == 200 else str(answer.status)
            except (OSError, HTTPException) as error:
                why = type(error).__name__
                connection.close()
            with self._lock:
                self._seen.health.append(time.perf_counter() - begin)
                if why:
                    self._seen.unhealthy[why] += 1
            time.sleep(EVERY_S)

    def _complete(self) -> None:
        while True:
            begin, first, text, why = time.perf_counter(), 0.0, "", "no end"
            connection = self._connect()
            try:
                connection.request("POST", "/v1/completions", self._body, self._headers)
                answer = connection.getresponse()
                if answer.status != 200:
                    why = f"status {answer.status}"
                    time.sleep(0.5)
                else:
                    for line in answer:
                        data = line.decode().removeprefix("data: ").strip()
                        if data == "[DONE]":
                            why = ""
                            break
                        event = json.loads(data) if data else {}
                        if "error" in event:
                            why = "an error in the stream"
                        first = first or time.perf_counter() - begin
                        text += "".join(choice["text"] for choice in event.get("choices", ()))
            except (OSError, HTTPException) as error:
                why = type(error).__name__
            finally:
                connection.close()
            with self._lock:
                if why:
                    self._seen.failed[why] += 1
                else:
                    self._seen.firsts.append(first)
                    self._seen.wholes.append(time.perf_counter() - begin)
                    self._seen.texts[text] += 1
            time.sleep(EVERY_S)


class Honest:
    """The client of this file in a process of its own. Use it as a context manager."""

    def __init__(self, url: str, key: str | None, tokens: int = 24) -> None:
        words = [sys.executable, __file__, url, "--tokens", str(tokens)]
        self._process = subprocess.Popen(
            words + (["--key", key] if key is not None else []),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def seen(self) -> dict[str, Any]:
        """What it saw since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def __enter__(self) -> Honest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()  # it waits for answers on threads of its own
        self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--key")
    parser.add_argument("--tokens", type=int, default=24)
    options = parser.parse_args()
    client = Client(options.url, options.key, options.tokens)
    for _ in sys.stdin:
        print(json.dumps(client.taken().told()), flush=True)


if __name__ == "__main__":
    main()
