"""A crowd of mixed clients, as a process of its own: every API, and if asked for, hostile ones among them.

    python benchmarks/hostile/crowd.py URL --seconds 60 [--clients 64] [--key KEY] [--hostile]

Each client does one thing after the other, drawn at random. Prints one JSON object at the end: how often each
thing was done, by the status that came of it ("none": no answer), and what should not have been so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, cast

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hostile.bodies import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    GRAMMARS,
    MALFORMED,
    MESSAGES,
    ODD,
    RESPONSES,
    WORST,
)
from hostile.wire import Target, more_files

TIMEOUT_S = 240.0
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
FLAT_TOOL = {"type": "function", "name": "look", "parameters": SCHEMA}
WORDS = [
    "one",
    "river",
    "runs",
    "past",
    "seven",
    "old",
    "houses",
    "where",
    "nobody",
    "asks",
    "what",
    "the",
    "weather",
    "will",
    "be",
]
HEAVY = 300_000
"""Bytes of a large body in the crowd: each client sends many."""


class Drawn:
    """What honest clients ask for, at random: (path, body)."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    def text(self) -> str:
        return " ".join(self._draw.choices(WORDS, k=self._draw.randint(3, 60)))

    def _chat(self, **more: Any) -> tuple[str, dict[str, Any]]:
        said = [{"role": "user", "content": self.text()}]
        return CHAT, {"messages": said, "max_tokens": self._draw.randint(4, 48), "temperature": 0.8, **more}

    def completion(self) -> tuple[str, dict[str, Any]]:
        return COMPLETIONS, {"prompt": self.text(), "max_tokens": 32, "stream": True}

    def several(self) -> tuple[str, dict[str, Any]]:
        prompts = [self.text() for _ in range(4)]
        return COMPLETIONS, {"prompt": prompts, "n": 2, "max_tokens": 12, "temperature": 1.0}

    def scored(self) -> tuple[str, dict[str, Any]]:
        return COMPLETIONS, {"prompt": self.text(), "max_tokens": 16, "logprobs": 5, "echo": True}

    def chat(self) -> tuple[str, dict[str, Any]]:
        return self._chat(stream=self._draw.random() < 0.5, stop=["\n\n"])

    def schema(self) -> tuple[str, dict[str, Any]]:
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
        return self._chat(response_format=form)

    def new_schema(self) -> tuple[str, dict[str, Any]]:
        wish = {"choice": [self.text()[:40], str(self._draw.random())]}
        return self._chat(structured_outputs=wish)

    def tools(self) -> tuple[str, dict[str, Any]]:
        return self._chat(tools=[TOOL], tool_choice="required")

    def response(self) -> tuple[str, dict[str, Any]]:
        return RESPONSES, {"input": self.text(), "max_output_tokens": 24, "stream": self._draw.random() < 0.5}

    def response_with_tools(self) -> tuple[str, dict[str, Any]]:
        return RESPONSES, {"input": self.text(), "max_output_tokens": 24, "tools": [FLAT_TOOL]}

    def message(self) -> tuple[str, dict[str, Any]]:
        said = [{"role": "user", "content": [{"type": "text", "text": self.text()}]}]
        return MESSAGES, {"messages": said, "max_tokens": 24, "stream": self._draw.random() < 0.5}

    def embeddings(self) -> tuple[str, dict[str, Any]]:
        return EMBEDDINGS, {"input": [self.text() for _ in range(3)]}

    def tokenize(self) -> tuple[str, dict[str, Any]]:
        return "/tokenize", {"prompt": self.text(), "return_token_strs": True}

    def detokenize(self) -> tuple[str, dict[str, Any]]:
        return "/detokenize", {"tokens": [self._draw.randrange(3, 90) for _ in range(50)]}


HONEST = tuple(name for name in vars(Drawn) if not name.startswith("_") and name != "text")
LEAVING = ("leaves a stream", "leaves before the answer")
HOSTILE = (
    "a large body", "a hostile grammar", "an odd body", "no HTTP", "silence", "half a head", "half a body",
    "a body to an open path", "an invented method", "does not read", "two requests, and leaves",
)  # fmt: skip


class Crowd:
    """Clients of one server.

    Attributes:
        done: by what was done, how often each status came of it. faults: what should not have come.
    """

    def __init__(self, target: Target, seed: int, hostile: bool) -> None:
        self._target, self._draw = target, random.Random(seed)
        self._drawn = Drawn(self._draw)
        self._kinds = (*HONEST, *HONEST, *LEAVING, *LEAVING, *HOSTILE) if hostile else HONEST
        self.done: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.faults: Counter[str] = Counter()

    async def run(self, clients: int, seconds: float) -> None:
        """So many clients for so long."""
        end = time.monotonic() + seconds

        async def client() -> None:
            while time.monotonic() < end:
                kind = self._draw.choice(self._kinds)
                status = await self._one(kind)
                self.done[kind][status] += 1
                if self._wrong(kind, status):
                    self.faults[f"{kind}: {status}"] += 1
                await asyncio.sleep(self._draw.uniform(0, 0.1))

        await asyncio.gather(*(client() for _ in range(clients)))

    def _wrong(self, kind: str, status: str) -> bool:
        """Honest requests are answered, or told to come again; nobody gets an error of the server's."""
        return status.startswith("5") or (kind in HONEST and status not in ("200", "429"))

    async def _one(self, kind: str) -> str:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._do(kind)
        except (OSError, TimeoutError, ValueError) as error:
            return "none" if kind not in HONEST else type(error).__name__

    async def _do(self, kind: str) -> str:
        """Do it; the status, or "none"."""
        target, draw = self._target, self._draw
        if kind in HONEST:
            path, wish = getattr(self._drawn, kind)()
            return await self._ask(target.request(path, wish, close=True))
        stranger = Target(target.host, target.port)
        match kind:
            case "leaves a stream":
                return await self._ask(target.request(*self._drawn.completion()), size=draw.randint(1, 3000))
            case "leaves before the answer":
                return await self._ask(target.request(*self._drawn.several()), size=0)
            case "a large body":
                path, filled = WORST[draw.choice(list(WORST))]
                return await self._ask(target.request(path, filled(HEAVY), close=True))
            case "a hostile grammar":
                hours = GRAMMARS[draw.choice(list(GRAMMARS))]
                body = {"prompt": "a", "max_tokens": 2, "structured_outputs": hours}
                return await self._ask(target.request(COMPLETIONS, body, close=True))
            case "an odd body":
                path, odd = ODD[draw.choice(list(ODD))]
                return await self._ask(target.request(path, odd, close=True))
            case "no HTTP":
                return await self._ask(draw.choice(list(MALFORMED.values())), size=1000)
            case "silence":
                return await self._ask(b"", wait_s=draw.uniform(0, 5))
            case "half a head":
                return await self._ask(b"GET /health HTTP/1.1\r\nX: ", wait_s=draw.uniform(0, 5))
            case "half a body":
                return await self._ask(target.head("POST", CHAT, 9999) + b'{"mess', wait_s=draw.uniform(0, 5))
            case "a body to an open path":
                return await self._ask(stranger.head("POST", "/health", 9999), wait_s=draw.uniform(0, 2))
            case "an invented method":
                return await self._ask(
                    stranger.head(f"M{draw.random()}"[:12].replace(".", ""), "/x", 0, True)
                )
            case "does not read":
                asked = target.request("/tokenize", {"prompt": "ab " * 20_000, "return_token_strs": True})
                return await self._ask(asked, wait_s=draw.uniform(0, 5), reads=False)
            case _:
                data = target.request(*self._drawn.completion())
                return await self._ask(data * 2, size=draw.randint(1, 3000))

    async def _ask(
        self, data: bytes, size: int = sys.maxsize, wait_s: float | None = None, reads: bool = True
    ) -> str:
        """Send, read up to size bytes, for at most wait_s seconds, and leave."""
        reader, writer = await asyncio.open_connection(self._target.host, self._target.port)
        try:
            writer.write(data)
            if not reads:
                # The writer's transport reads as well, of which its type says nothing.
                cast(asyncio.Transport, writer.transport).pause_reading()
                await asyncio.sleep(wait_s or 0)
                return "none"
            if size == 0:
                return "none"
            try:
                return await asyncio.wait_for(_read(reader, size), wait_s)
            except TimeoutError:
                return "none"
        finally:
            writer.transport.abort()


async def _read(reader: asyncio.StreamReader, size: int) -> str:
    """The status of an answer that is read up to so many bytes; "cut": it is a stream without an end."""
    head = await reader.readline()
    if not head:
        return "none"
    whole, end = size == sys.maxsize, b""
    while size > 0 and (part := await reader.read(min(size, 1 << 16))):
        size -= len(part)
        end = (end + part)[-400:]
    status = head.split(b" ", 2)[1].decode()
    streamed = b"data: " in end
    ended = b"[DONE]" in end or b"message_stop" in end or b"response.completed" in end
    return "cut" if whole and streamed and not (ended or b"response.incomplete" in end) else status


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--key")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--hostile", action="store_true", help="hostile clients among them, and some that leave"
    )
    options = parser.parse_args()
    more_files()
    crowd = Crowd(Target.of(options.url, options.key), options.seed, options.hostile)
    asyncio.run(crowd.run(options.clients, options.seconds))
    print(
        json.dumps(
            {"done": {kind: dict(of) for kind, of in crowd.done.items()}, "faults": dict(crowd.faults)}
        )
    )


if __name__ == "__main__":
    main()
