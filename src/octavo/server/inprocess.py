"""Asking the app without a network: what a POST over HTTP would answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.types import ASGIApp, Message


async def post(app: ASGIApp, path: str, body: Any, token: str | None = None) -> tuple[int, Any]:
    """(status, JSON body) of one request. Cancelling it aborts the work, as a client that leaves does."""
    data = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    if token is not None:
        headers.append((b"authorization", f"Bearer {token}".encode()))
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http",
        "headers": headers, "server": ("batch", 0), "client": ("batch", 0), "state": {},
    }  # fmt: skip
    incoming: list[Message] = [{"type": "http.request", "body": data, "more_body": False}]
    status = 500
    parts: list[bytes] = []

    async def receive() -> Message:
        if incoming:
            return incoming.pop()
        await asyncio.Event().wait()  # the client stays until it has its answer
        raise AssertionError

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return status, json.loads(b"".join(parts) or b"null")
