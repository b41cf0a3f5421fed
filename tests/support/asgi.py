"""Call an ASGI app without a network, and leave in the middle if need be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

App = Callable[..., Any]


@dataclass
class Reply:
    """A response, complete or as far as it came."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    complete: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json()["error"]
        return found

    def events(self) -> list[Any]:
        """The stream's data, parsed; it must end with exactly one [DONE]."""
        lines = self.body.decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""], lines[-3:]
        assert lines.count("data: [DONE]") == 1
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


async def call(
    app: App,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
    leave_after: int | None = None,
    parts: list[bytes] | None = None,
) -> Reply:
    """One request.

    Args:
        body: bytes as they are, anything else as JSON.
        leave_after: close the connection after so many parts of the response; 0: at once.
        parts: the request's body in pieces, instead of body.
    """
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    pieces = parts if parts is not None else [data]
    sent = {"content-type": "application/json", **(headers or {})}
    if parts is None:
        sent.setdefault("content-length", str(len(data)))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(k.encode(), v.encode()) for k, v in sent.items()],
        "server": ("test", 80),
        "client": ("test", 1),
        "state": {},
    }
    reply = Reply()
    gone = asyncio.Event()
    if leave_after == 0:
        asyncio.get_running_loop().call_later(0.01, gone.set)
    waiting = list(pieces)

    async def receive() -> MutableMapping[str, Any]:
        if waiting:
            piece = waiting.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(waiting)}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            assert not reply.status, "the response was started twice"
            reply.status = message["status"]
            reply.headers = {k.decode().lower(): v.decode() for k, v in message["headers"]}
            return
        reply.parts.append(message.get("body", b""))
        reply.complete = not message.get("more_body", False)
        if reply.complete or (leave_after and len(reply.parts) >= leave_after):
            gone.set()
        await asyncio.sleep(0)

    await app(scope, receive, send)
    return reply


def post(app: App, path: str, body: Any = None, **options: Any) -> Reply:
    """call() with POST, in a loop of its own."""
    return asyncio.run(call(app, "POST", path, body, **options))


def get(app: App, path: str, **options: Any) -> Reply:
    """call() with GET, in a loop of its own."""
    return asyncio.run(call(app, "GET", path, **options))
