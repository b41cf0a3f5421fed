"""A server of OpenAI's completions that answers after delays that are known: the truth to measure.

    .venv/bin/python benchmarks/scripted_server.py [--ttft-ms 200] [--itl-ms 40]

It prints a line with its URL, and ends when its input does. Each answer has as many tokens as were asked for:
the first so long after the request has come, the others so long after the one before. Times are counted from
when the request came, so that a late timer makes no later token later.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asked import not_negative

PROMPT_TOKENS = 8
"""That usage speaks of, whatever was sent."""
MODEL = "scripted"


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds to the first token, and from one to the next."""

    ttft: float
    itl: float

    def due(self, token: int) -> float:
        """Seconds from the request to a token, which are counted from 0."""
        return self.ttft + token * self.itl


def plain(body: object) -> bytes:
    """A whole answer."""
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(body: object) -> bytes:
    return chunk(f"data: {json.dumps(body)}\n\n".encode())


def wanted(body: dict[str, Any]) -> int:
    """Tokens of the answer."""
    return int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)


async def answer(
    body: dict[str, Any], chat: bool, came: float, delays: Delays, writer: asyncio.StreamWriter
) -> None:
    """Stream one completion."""
    clock = asyncio.get_running_loop().time
    facts = {"id": "scripted", "created": 0, "model": MODEL}
    facts["object"] = "chat.completion.chunk" if chat else "text_completion"
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    count = wanted(body)
    for number in range(count):
        await asyncio.sleep(max(came + delays.due(number) - clock(), 0.0))
        end = "length" if number == count - 1 else None
        said = {"delta": {"content": " x"}} if chat else {"text": " x"}
        writer.write(event({**facts, "choices": [{"index": 0, "finish_reason": end, **said}]}))
    usage = {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": count,
        "total_tokens": PROMPT_TOKENS + count,
    }
    writer.write(event({**facts, "choices": [], "usage": usage}) + chunk(b"data: [DONE]\n\n") + chunk(b""))
    await writer.drain()


async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delays: Delays) -> None:
    """Requests of one client, one after the other."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            path = head.split(" ", 2)[1]
            fields = dict(line.lower().split(":", 1) for line in head.split("\r\n")[1:] if ":" in line)
            body = await reader.readexactly(int(fields.get("content-length", "0")))
            came = asyncio.get_running_loop().time()
            if path.endswith("/completions"):
                await answer(json.loads(body), "/chat/" in path, came, delays, writer)
            else:
                writer.write(plain({"object": "list", "data": [{"id": MODEL, "object": "model"}]}))
                await writer.drain()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def serve(delays: Delays) -> None:
    """Until the input ends."""
    server = await asyncio.start_server(lambda r, w: connection(r, w, delays), "127.0.0.1", 0)
    print(json.dumps({"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripted_server", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ttft-ms", type=not_negative, default=200.0)
    parser.add_argument("--itl-ms", type=not_negative, default=40.0)
    asked = parser.parse_args(arguments)
    asyncio.run(serve(Delays(asked.ttft_ms / 1e3, asked.itl_ms / 1e3)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
