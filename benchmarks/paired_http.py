"""What a server of paired.py takes over HTTP: streams of many users at once, and the first token of one.

Prompts are token ids, different in each request, so that no tree reads them from its prefix cache. A figure
is the least of its repetitions, as in paired_turn.py.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from urllib.parse import urlsplit

USERS, PROMPT, SHORT = 32, 64, 16
IDS = range(100, 10_000)
REPEAT, FIRSTS = 3, 8


async def stream(url: str, prompt: list[int], new_tokens: int) -> float:
    """Complete a prompt, streamed. Returns the seconds to its first event.

    Raises:
        RuntimeError: it was not answered, or cut.
    """
    there = urlsplit(url)
    asked = {"prompt": prompt, "max_tokens": new_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    body = json.dumps(asked).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {there.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    begin, first, tail = time.perf_counter(), 0.0, b""
    reader, writer = await asyncio.open_connection(there.hostname, there.port)
    try:
        writer.write(head.encode() + body)
        while part := await reader.read(1 << 16):
            tail = tail[-100:] + part
            if not first and b"data: " in tail:
                first = time.perf_counter() - begin
        if not first or b"[DONE]" not in tail:
            raise RuntimeError(f"{url}: not answered to the end: {tail[:200]!r}")
        return first
    finally:
        writer.close()


async def measured(url: str, new_tokens: int) -> dict[str, float]:
    """Milliseconds of a token of each of USERS streams, their prompts included, and to the first of one."""
    rng = random.Random(0)

    def prompt(length: int) -> list[int]:
        return rng.choices(IDS, k=length)

    crowds, firsts = [], []
    for _ in range(REPEAT + 1):
        begin = time.perf_counter()
        await asyncio.gather(*(stream(url, prompt(PROMPT), new_tokens) for _ in range(USERS)))
        crowds.append(1e3 * (time.perf_counter() - begin) / new_tokens)
        alone = [await stream(url, prompt(SHORT), 1) for _ in range(FIRSTS)]
        firsts.append(1e3 * statistics.median(alone))
    return {"http_32_ms": min(crowds[1:]), "ttft_ms": min(firsts[1:])}  # the first ones warm up


def over_http(url: str, quick: bool) -> dict[str, float]:
    """paired.py's figures of the server at url."""
    return asyncio.run(measured(url, 4 if quick else 48))
