"""A thousand clients that vanish: is everything that they held given back?

    python benchmarks/vanish.py [--clients 1000] [--at-once 200] [--json] [--write]

Most leave in the middle of a stream, a third of them by RST; others leave before the answer, say nothing,
send half a head or half a body, do not read what they asked for, or speak no HTTP. Afterwards the server's
pages, places, buffered bytes, sockets and threads must be back at what they were before, and a stream must
say what it said before. (Before is after a first small crowd, which starts the threads that a server
keeps.)
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

from asked import at_least_one
from harness import conclude, report
from hostile.bodies import COMPLETIONS, MALFORMED
from hostile.process import Process
from hostile.wire import Target, more_files, wait_until
from probes import warm

HEADER_S, WRITE_S, BACK_S = 3.0, 5.0, 60.0
FLAGS = (
    "--max-num-seqs", "32", "--num-pages", "520", "--header-timeout", f"{HEADER_S:g}",
    "--write-timeout", f"{WRITE_S:g}",
)  # fmt: skip
KINDS = {
    "mid-stream": 50, "mid-stream, reset": 15, "before the answer": 5, "silent": 8, "half a head": 5,
    "half a body": 5, "does not read": 5, "malformed": 7,
}  # fmt: skip
"""What clients do, and how many of a hundred do it."""
HELD = ("running", "waiting", "in flight", "buffered bytes", "pages", "threads", "files")
ENDS = struct.pack("ii", 1, 0)
"""SO_LINGER: the connection ends by RST."""


class Vanisher:
    """Clients of one server.

    Attributes:
        kinds: what they did. statuses: what those were answered that were answered at all.
    """

    def __init__(self, target: Target, seed: int) -> None:
        self._target, self._draw = target, random.Random(seed)
        self.kinds, self.statuses = Counter[str](), Counter[str]()

    async def crowd(self, count: int, at_once: int) -> None:
        """So many clients, at most at_once of them at a time."""
        places = asyncio.Semaphore(at_once)

        async def one(kind: str) -> None:
            async with places:
                with contextlib.suppress(OSError, TimeoutError):
                    await asyncio.wait_for(self._client(kind), 120)

        kinds = self._draw.choices(list(KINDS), list(KINDS.values()), k=count)
        self.kinds.update(kinds)
        await asyncio.gather(*map(one, kinds))

    async def _client(self, kind: str) -> None:
        reader, writer = await asyncio.open_connection(self._target.host, self._target.port)
        try:
            writer.write(self._says(kind))
            if kind.startswith("mid-stream"):
                await self._read(reader, self._draw.randint(1, 4000))
            elif kind == "malformed":
                await reader.read(1 << 16)
            elif kind == "does not read":
                # The writer's transport reads as well, of which its type says nothing.
                cast(asyncio.Transport, writer.transport).pause_reading()
                await asyncio.sleep(self._draw.uniform(0, 2 * WRITE_S))
            elif (
                kind == "silent" or kind == "half a head"
            ):  # until the server has enough of them, or they have
                await asyncio.wait_for(reader.read(), self._draw.uniform(0, 3 * HEADER_S))
        finally:
            if kind.endswith("reset") or kind == "half a body":
                sock: socket.socket = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ENDS)
            writer.transport.abort()

    def _says(self, kind: str) -> bytes:
        if kind == "silent":
            return b""
        if kind == "half a head":
            return b"POST /v1/completions HTTP/1.1\r\nX: "
        if kind == "half a body":
            return self._target.head("POST", COMPLETIONS, 100_000) + b'{"prompt": '
        if kind == "malformed":
            return self._draw.choice(list(MALFORMED.values()))
        prompt = [self._draw.randrange(3, 90) for _ in range(self._draw.randint(4, 64))]
        wish = {"prompt": prompt, "max_tokens": 64, "ignore_eos": True, "stream": True}
        if kind == "does not read":
            wish["logprobs"] = 20
        return self._target.request(COMPLETIONS, wish)

    async def _read(self, reader: asyncio.StreamReader, size: int) -> None:
        """Read so many bytes of an answer, or all of it."""
        head = await reader.readline()
        self.statuses[head.split(b" ", 2)[1].decode() if head else "none"] += 1
        while size > 0 and (part := await reader.read(min(size, 1 << 16))):
            size -= len(part)


def held(target: Target, process: Process) -> dict[str, float]:
    """What a server holds.

    The connection that asks for the metrics is one of the server's sockets until the server has closed it,
    so the least of a few counts of files is taken.
    """
    metrics = target.metrics()
    names = ("octavo_num_requests_running", "octavo_num_requests_waiting", "octavo_http_requests_in_flight",
             "octavo_http_buffered_bytes", "octavo_kv_cache_usage_perc")  # fmt: skip
    counts = [metrics.get(name, 0.0) for name in names]
    files = process.files()
    for _ in range(10):
        time.sleep(0.02)
        files = min(files, process.files())
    return dict(zip(HELD, [*counts, process.threads(), files], strict=True))


def kept(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What has not come back, and how much of it."""
    return {name: after[name] - before[name] for name in HELD if after[name] > before[name]}


def said(target: Target) -> str:
    """What a stream says."""
    body = {
        "prompt": [5 + place % 70 for place in range(32)],
        "max_tokens": 24,
        "ignore_eos": True,
        "seed": 3,
    }
    return target.ask("POST", COMPLETIONS, body).body.decode().partition('"text":')[2][:200]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All clients, and what of the server's they have not given back."""
    with Process(options.model, *FLAGS) as process:
        target = Target.of(process.url)
        warm(target)
        asyncio.run(Vanisher(target, 0).crowd(64, options.at_once))
        wait_until(lambda: not target.metrics().get("octavo_http_requests_in_flight"), BACK_S)
        time.sleep(2 * HEADER_S)
        first, before, rss = said(target), held(target, process), process.rss_mb()
        crowd = Vanisher(target, 1)
        begin = time.perf_counter()
        asyncio.run(crowd.crowd(options.clients, options.at_once))
        seconds = time.perf_counter() - begin
        after = held(target, process)

        def back() -> bool:
            nonlocal after
            after = held(target, process)
            return not kept(before, after)

        wait_until(back, BACK_S, 0.5)
        found = {
            "clients": options.clients, "seconds": round(seconds, 1), "kinds": dict(crowd.kinds),
            "statuses": dict(crowd.statuses), "before": before, "after": after,
            "kept": kept(before, after), "rss_back": round(process.rss_mb() / rss, 4),
            "wrong": int(said(target) != first), "traces": process.log().count("Traceback"),
            "log_bytes": len(process.log()),
        }  # fmt: skip
        found["crashed"] = int(not process.alive or process.end() != 0)
    return found


def faults(found: Mapping[str, Any]) -> list[str]:
    """What speaks against the server."""
    wrong = [f"{amount:g} {name} were not given back" for name, amount in found["kept"].items()]
    wrong += [f"{name}: {found[name]}" for name in ("wrong", "traces", "crashed") if found[name]]
    return wrong + [
        f"status {status}" for status in found["statuses"] if status not in ("200", "429", "none")
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="vanish", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--clients", type=at_least_one, default=1000)
    parser.add_argument("--at-once", type=at_least_one, default=200)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="put a file under results/")
    options = parser.parse_args(arguments)
    more_files()
    found = measure(options)
    settings = {"model": options.model, "clients": options.clients, "at_once": options.at_once}
    body = {"settings": settings, "faults": len(faults(found)), **found}
    result = report("vanish", ["benchmarks/vanish.py", *arguments], body)
    lines = [
        f"{found['clients']} clients in {found['seconds']:g} s: {found['kinds']}",
        f"before {found['before']}\nafter  {found['after']}, resident memory x {found['rss_back']:g}",
        *([f"FAULT {what}" for what in faults(found)] or ["everything is back"]),
    ]
    return conclude(result, lines, bool(faults(found)), options.json, options.write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
