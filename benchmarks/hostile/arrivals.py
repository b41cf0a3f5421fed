"""Requests that arrive whether or not the ones before were answered, and what becomes of them.

    python benchmarks/hostile/arrivals.py URL --seconds 60 [--rate 70] [--users 48] [--deadline 60]

With --rate so many arrive in a second, evenly; without it --users send the next one when the last was
answered, so the server always has work. Each is a streamed completion of random ids. Connections are kept and
used again, as SDKs do it, unless --fresh is given. Prints one JSON object when the last has ended: see
Arrived. It is a process of its own, and says how much of the machine it took.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

LAST_CHUNK = b"\r\n0\r\n\r\n"
IDS = [str(token) for token in range(3, 90)]
"""Those that small vocabularies have, too."""
LONGEST_RETRY_S = 60
"""A Retry-After above it is of no use to a person who waits."""


@dataclass
class Arrived:
    """What came of the requests of one run.

    Attributes:
        seconds: in which they arrived. late: admitted ones that did not end within the deadline.
        refused: 429 with a Retry-After of 1 to LONGEST_RETRY_S seconds. unusable: other 429s.
        failed: why others did not end. cpu_share: of the machine's cores, that this process took.
    """

    seconds: float = 0.0
    arrived: int = 0
    admitted: int = 0
    late: int = 0
    refused: int = 0
    unusable: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    firsts: list[float] = field(default_factory=list)
    wholes: list[float] = field(default_factory=list)
    retries: Counter[int] = field(default_factory=Counter)
    cpu_share: float = 0.0

    def refuse(self, retry_after: str) -> None:
        """A 429, and when it says to come again."""
        if retry_after.isdigit() and 1 <= int(retry_after) <= LONGEST_RETRY_S:
            self.refused += 1
            self.retries[int(retry_after)] += 1
        else:
            self.unusable += 1

    def told(self) -> dict[str, Any]:
        """As JSON, with percentiles of the times in seconds."""
        found = {**vars(self), "failed": dict(self.failed), "retries": dict(self.retries)}
        for name in ("firsts", "wholes"):
            times = sorted(found.pop(name))
            for share in (50, 99):
                found[f"{name[:-1]}_p{share}_s"] = (
                    round(times[min(len(times) - 1, len(times) * share // 100)], 3) if times else 0.0
                )
        return found


class Load:
    """Sends requests to one server."""

    def __init__(self, options: argparse.Namespace) -> None:
        parts = urlsplit(options.url)
        self._address = parts.hostname or "127.0.0.1", parts.port or 80
        self._head = (
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            + (f"Authorization: Bearer {options.key}\r\n" if options.key else "")
            + ("Connection: close\r\n" if options.fresh else "")
            + "Content-Length: "
        )
        self._draw, self._deadline_s, self.found = random.Random(options.seed), options.deadline, Arrived()
        self._lengths = options.longest // 3, options.longest
        self._fresh, self._idle = options.fresh, list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()

    def request(self) -> bytes:
        """The next one, as it is sent."""
        prompt = ",".join(self._draw.choices(IDS, k=self._draw.randint(*self._lengths)))
        wish = (
            f'{{"prompt":[{prompt}],"max_tokens":{self._draw.randint(*self._lengths)},'
            '"ignore_eos":true,"temperature":0.0,"stream":true}'
        )
        return f"{self._head}{len(wish)}\r\n\r\n{wish}".encode()

    async def one(self, data: bytes) -> None:
        """Send a request and note what becomes of it."""
        found, begin = self.found, time.perf_counter()
        found.arrived += 1
        writer = None
        try:
            async with asyncio.timeout(3 * self._deadline_s):
                reader, writer = await self._connection()
                writer.write(data)
                status, headers = await read_head(reader)
                if status == 200:
                    await self._read(reader, begin)
                else:
                    await reader.readexactly(int(headers.get("content-length", "0")))
                    if status == 429:
                        found.refuse(headers.get("retry-after", ""))
                    else:
                        found.failed[f"status {status}"] += 1
                if not self._fresh:  # the next request goes the same way, as clients' pools do it
                    self._idle.append((reader, writer))
                    writer = None
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
            found.failed[type(error).__name__] += 1
        finally:
            if writer is not None:
                writer.close()

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """One that is free, the last used first, or a new one."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()  # the server has ended it meanwhile
        return await asyncio.open_connection(*self._address)

    async def _read(self, reader: asyncio.StreamReader, begin: float) -> None:
        found, first, end = self.found, 0.0, b""
        while not end.endswith(LAST_CHUNK) and (part := await reader.read(1 << 16)):
            first = first or time.perf_counter() - begin
            end = (end + part)[-64:]
        seconds = time.perf_counter() - begin
        if b"data: [DONE]" not in end:
            found.failed["no end"] += 1
            return
        found.admitted += 1
        found.late += seconds > self._deadline_s
        found.firsts.append(first)
        found.wholes.append(seconds)


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """(status, headers by their names in small letters) of an answer.

    Raises:
        ConnectionError: there is none.
    """
    words, headers = (await reader.readline()).split(b" ", 2), {}
    if len(words) < 2:
        raise ConnectionError("closed without an answer")
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    return int(words[1]), headers


async def arrive(load: Load, rate: float, seconds: float) -> None:
    """So many a second, evenly, whatever becomes of them."""
    begin, tasks, sent = time.perf_counter(), set[asyncio.Task[None]](), 0
    while (now := time.perf_counter() - begin) < seconds:
        while sent < int(now * rate):
            sent += 1
            _begin(tasks, load.one(load.request()))
        await asyncio.sleep(0.005)
    load.found.seconds = time.perf_counter() - begin
    await asyncio.gather(*tasks)


def _begin(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def fill(load: Load, users: int, seconds: float) -> None:
    """So many users, each of whom sends the next request when the last has been answered."""
    begin = time.perf_counter()

    async def user() -> None:
        while time.perf_counter() - begin < seconds:
            await load.one(load.request())

    tasks = [asyncio.ensure_future(user()) for _ in range(users)]
    await asyncio.sleep(seconds)
    load.found.seconds = time.perf_counter() - begin
    await asyncio.gather(*tasks)


def used_s() -> float:
    """CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Put the load on, and tell what came of it."""
    load = Load(options)
    before, begin = used_s(), time.perf_counter()
    if options.rate:
        await arrive(load, options.rate, options.seconds)
    else:
        await fill(load, options.users, options.seconds)
    load.found.cpu_share = round((used_s() - before) / (time.perf_counter() - begin) / options.cores, 4)
    return load.found.told()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second; 0: as --users say")
    parser.add_argument("--users", type=int, default=48)
    parser.add_argument("--deadline", type=float, default=60.0, help="seconds in which an answer is in time")
    parser.add_argument("--longest", type=int, default=192, help="tokens of a prompt, and of an answer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--key")
    parser.add_argument("--fresh", action="store_true", help="a connection of its own for each request")
    print(json.dumps(asyncio.run(run(parser.parse_args()))))


if __name__ == "__main__":
    main()
