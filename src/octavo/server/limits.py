"""The limits that a request must keep before any endpoint sees it: key, size, and how many at once.

What they ask, and in whose words they refuse, is the path's: see apis.Paths.

Plain ASGI, because each must span a whole streamed response without touching its parts.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.apis import Paths
from octavo.server.errors import ApiError
from octavo.server.state import ServerState, bearer_token

DRAIN_BYTES = 64 << 20
"""Of a body that is too large, read and drop so many bytes before the answer: closing a connection
with unread data resets it, and the client would never see why."""


class LimitsMiddleware:
    """Authentication, body size and concurrency, in this order."""

    def __init__(self, app: ASGIApp, state: ServerState, paths: Paths) -> None:
        self.app = app
        self.state = state
        self.paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope = plain(scope)
        path = self.paths[scope["path"]]
        counted = _StatusCounter(scope, send, self.state)
        entered = False
        try:
            if path.rules.keyed:
                self._authenticate(scope)
            if scope["method"] in path.rules.counted:
                self.state.enter()
                entered = True
                receive = await self._body(scope, receive)
            await self.app(scope, receive, counted)
        except ClientDisconnectedError:
            pass
        except Exception as error:
            if counted.started:
                raise  # too late for a status; the server closes the connection
            await path.dialect.response(error)(scope, receive, counted)
        finally:
            if entered:
                self.state.leave()

    def _authenticate(self, scope: Scope) -> None:
        if not self.state.accepts(bearer_token(scope["headers"])):
            raise ApiError(
                401,
                "a valid API key is needed: Authorization: Bearer KEY",
                "authentication_error",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )

    async def _body(self, scope: Scope, receive: Receive) -> Receive:
        settings = self.state.settings
        try:
            async with asyncio.timeout(settings.body_timeout_s):
                return await read_body(scope, receive, settings.max_body_bytes)
        except TimeoutError:
            raise ApiError(408, f"the body took longer than {settings.body_timeout_s:g} s") from None


def plain(scope: Scope) -> Scope:
    """A slash at the end of a path means nothing; HEAD is GET (the server leaves out the body)."""
    changes: dict[str, str] = {}
    if scope["path"] != "/" and scope["path"].endswith("/"):
        changes["path"] = scope["path"].rstrip("/") or "/"
    if scope["method"] == "HEAD":
        changes["method"] = "GET"
    return {**scope, **changes} if changes else scope


class ClientDisconnectedError(Exception):
    """The connection closed before the request was complete."""


async def read_body(scope: Scope, receive: Receive, limit: int) -> Receive:
    """Read the whole body; return a receive that gives it back in one piece.

    Raises:
        ApiError: 413, more than limit bytes.
        ClientDisconnectedError: the client left in the middle.
    """
    declared = dict(scope["headers"]).get(b"content-length", b"0")
    too_large = declared.isdigit() and len(declared) < 20 and int(declared) > limit
    if not too_large or int(declared) <= DRAIN_BYTES:
        parts: list[bytes] = []
        size, more = 0, True
        while more and size <= DRAIN_BYTES:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnectedError
            part = message.get("body", b"")
            size, more = size + len(part), message.get("more_body", False)
            too_large = too_large or size > limit
            if too_large:
                parts.clear()
            else:
                parts.append(part)
    if too_large:
        raise ApiError(413, f"the body is larger than {limit} bytes", code="request_too_large")
    return _replay(b"".join(parts), receive)


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed


class _StatusCounter:
    """A send that counts the response by its status."""

    def __init__(self, scope: Scope, send: Send, state: ServerState) -> None:
        self.scope, self.send, self.state = scope, send, state
        self.started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            # The route is known only where one matched: other paths are counted as one.
            route = getattr(self.scope.get("route"), "path", "other")
            self.state.metrics.count_http(self.scope["method"], route, message["status"])
        await self.send(message)
