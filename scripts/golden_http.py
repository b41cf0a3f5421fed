"""Calls the apps of the golden file in process, and makes of each answer what can be compared.

Masked are ids, times and hashes. Of a stream the events stand in order, but pieces of one text (or of one
call's arguments, or log-probabilities) that follow each other are put together: how many tokens come in
one event is up to the clock. Lists of more than 64 numbers are digests of their bits.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import golden_calls
from golden_crowds import digest

from octavo import AsyncEngineArgs, AsyncLLM
from octavo.server.app import create_app
from octavo.server.state import ServerSettings

TIMES = ("created", "created_at", "completed_at", "started")
UNSTABLE = ("sequence_number", "obfuscation")
MASKS = (
    (
        re.compile(r"\b(chatcmpl|cmpl|resp|msg|embd|call|fc|rs|item|toolu|batch|req)([-_])[0-9a-zA-Z]{8,}"),
        r"\1\2*",
    ),
    (re.compile(r"^[0-9a-f]{9}$"), "*"),
    (re.compile(r"^octavo-\d[\w.+]*$"), "octavo-*"),
    (re.compile(r"\breference [0-9a-f]{8}\b"), "reference *"),
)
# What a stream may give piece by piece.
PIECES = (
    "content",
    "text",
    "delta",
    "arguments",
    "partial_json",
    "reasoning_content",
    "reasoning",
    "thinking",
)
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset", "token_ids")
ENDS = ("finish_reason", "stop_reason")
FOLDED, DRAWN = 64, 2**32
ENGINE: dict[str, Any] = {
    "isa": "avx2",
    "backend": "cpu",
    "device": "cpu",
    "threads": 2,
    "max_num_seqs": 8,
    "step_target_ms": 0.0,
    "seed": 0,
}


def masked(value: Any, key: str = "") -> Any:
    """The same without what differs from run to run."""
    if isinstance(value, dict):
        return {name: masked(item, name) for name, item in value.items() if name not in UNSTABLE}
    if isinstance(value, list):
        if len(value) > FOLDED and all(isinstance(item, float) for item in value):
            return f"{len(value)} numbers {digest(value)}"
        return [masked(item) for item in value]
    if key in TIMES and isinstance(value, (int, float)):
        return 0
    if key == "seed" and isinstance(value, int) and value > DRAWN:
        return "drawn"  # of the engine's own generator, so it depends on the calls before
    if isinstance(value, str):
        for pattern, replacement in MASKS:
            value = pattern.sub(replacement, value)
    return value


def events_of(body: str) -> list[Any]:
    """Events of a stream: [its name or "", its data], parsed where it is JSON, and put together."""
    events: list[Any] = []
    for block in body.split("\n\n"):
        name, data = "", ""
        for line in block.splitlines():
            kind, _, rest = line.partition(": ")
            name, data = (rest, data) if kind == "event" else (name, rest)
        if block:
            events.append([name, masked(json.loads(data)) if data.startswith("{") else data])
    return folded(by_choice(events))


def by_choice(events: list[Any]) -> list[Any]:
    """Events of one choice together: which of several choices comes first is up to the clock."""

    def choice(event: Any) -> int:
        choices = event[1].get("choices") if isinstance(event[1], dict) else None
        return choices[0].get("index", 0) if choices else 0

    last = max(
        (i for i, e in enumerate(events) if isinstance(e[1], dict) and e[1].get("choices")), default=-1
    )
    return sorted(events[: last + 1], key=choice) + events[last + 1 :]


def folded(events: Iterable[Any]) -> list[Any]:
    """Neighbours that differ in pieces alone are one event."""
    found: list[Any] = []
    for event in events:
        both = joined(found[-1], event) if found else None
        if both is None:
            found.append(event)
        else:
            found[-1] = both
    return found


def joined(left: Any, right: Any, key: str = "", inside: bool = False) -> Any:
    """Both as one, or None where they differ in more than pieces.

    Args:
        inside: of a choice or a delta, which say only what is new: what one side lacks the other has.
    """
    inside = inside or key in ("choices", "delta")
    if isinstance(left, dict) and isinstance(right, dict):
        if left.keys() != right.keys() and not inside:
            return None
        names = [*left, *(name for name in right if name not in left)]
        both = {
            name: joined(left[name], right[name], name, inside)
            if name in left and name in right
            else left.get(name, right.get(name))
            for name in names
        }
        changed = any(
            both[n] is None and (left.get(n) is not None or right.get(n) is not None) for n in names
        )
        return None if changed else both
    if isinstance(left, list) and isinstance(right, list):
        return joined_lists(left, right, key, inside)
    if key in ENDS and left is None:
        return right
    if key in PIECES and isinstance(left, str) and isinstance(right, str):
        return left + right
    return left if left == right and type(left) is type(right) else None


def joined_lists(left: list[Any], right: list[Any], key: str, inside: bool) -> list[Any] | None:
    """Lists of tokens one after the other; tool calls by their index; others item by item."""
    if key in LISTS or (key == "content" and left and isinstance(left[0], dict)):
        return left + right
    if key == "tool_calls":
        calls = {call["index"]: call for call in left}
        for call in right:
            at = call["index"]
            calls[at] = joined(calls[at], call, key, inside) if at in calls else call
        return list(calls.values()) if all(calls.values()) else None
    if len(left) != len(right):
        return None
    each = [joined(a, b, key, inside) for a, b in zip(left, right, strict=True)]
    return None if any(e is None and a is not None for e, a in zip(each, left, strict=True)) else each


class Apps:
    """The apps that calls go to, each made when it is first needed. Close it."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._folders = folders
        self._engines: dict[str, AsyncLLM] = {}
        self._apps: dict[str, Any] = {}
        self.models = {"tiny": "tiny", "cached": "tiny", "t5": "tiny-t5", "smollm2": "smollm2"}

    def get(self, name: str) -> Any:
        if name not in self._apps:
            settings = ServerSettings()
            if name == "keys":
                settings = ServerSettings(api_keys=("right",), max_body_bytes=4096, max_prompts=8)
            engine = None if name == "loading" else self._engine("tiny" if name == "keys" else name)
            self._apps[name] = create_app(engine, settings)
        return self._apps[name]

    def _engine(self, name: str) -> AsyncLLM:
        if name not in self._engines:
            folder = {"tiny": "llama", "cached": "llama"}.get(name, name)
            args = AsyncEngineArgs(
                self._folders.get(folder, folder),
                served_model_name=self.models[name],
                enable_prefix_caching=name == "cached",
                max_model_len=512,
                **ENGINE,
            )
            self._engines[name] = AsyncLLM.from_engine_args(args)
        return self._engines[name]

    def close(self) -> None:
        for engine in self._engines.values():
            engine.shutdown()


async def ask(app: Any, call: golden_calls.Call, last: str) -> tuple[int, str, bytes]:
    """(status, content type, body) of one call."""
    path = call.path.replace("{last}", last)
    data = call.body if isinstance(call.body, bytes) else b""
    if call.body is not None and not isinstance(call.body, bytes):
        data = json.dumps(call.body).replace("{last}", last).encode()
    headers = {"content-type": "application/json", "content-length": str(len(data)), **call.headers}
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": call.method,
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http",
        "server": ("golden", 0), "client": ("golden", 0), "state": {},
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    inbox = [{"type": "http.request", "body": data, "more_body": False}]
    start: dict[str, Any] = {}
    parts: list[bytes] = []

    async def receive() -> dict[str, Any]:
        if not inbox:
            await asyncio.Event().wait()  # the client stays until it has its answer
        return inbox.pop()

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        parts.append(message.get("body", b""))

    await app(scope, receive, send)
    kind = dict(start["headers"]).get(b"content-type", b"").decode()
    return start["status"], kind, b"".join(parts)


async def answers(apps: Apps, calls: Iterable[golden_calls.Call]) -> dict[str, Any]:
    """What a group of calls is answered, by name."""
    found: dict[str, Any] = {}
    last = ""
    for call in calls:
        status, kind, body = await ask(apps.get(call.app), call, last)
        told: Any = body.decode()
        if "event-stream" in kind:
            told = events_of(told)
        elif "json" in kind:
            told = json.loads(told)
            last = str(told.get("id", last)) if isinstance(told, dict) else last
            told = masked(told)
        found[call.name] = {"status": status, "type": kind, "body": told}
    return found
