"""The limits that a request must keep before any endpoint sees it: key, size, and how many at once.

Before its key is known to be right, a request is given nothing: no place, no memory for its body, and no name
of its own in the metrics. What the limits ask, and in whose words they refuse, is the path's: see apis.Paths.

Plain ASGI, because each must span a whole streamed response without touching its parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.apis import Paths
from octavo.server.engine import Caller
from octavo.server.errors import ApiError
from octavo.server.field_lists import header_of_ignored
from octavo.server.inside import SMALL, check_inside
from octavo.server.openai.fields import IGNORED
from octavo.server.state import OWNER, RETRY, ServerState

MAX_DROPPED_BYTES = 64 << 20
"""Of a body that is too large, read and drop so many bytes before the answer: closing a connection
with unread data resets it, and the client would never see why."""
METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
"""Counted by name. A client may invent others, which are counted as one."""


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
        exchange = _Exchange(scope, send, self.state)
        try:
            if self.state.keys is not None and (path.rules.keyed or scope["method"] != "GET"):
                exchange.caller = self.state.keys.require(scope["headers"])
                scope[OWNER] = exchange.caller.owner
            if scope["method"] in path.rules.counted:
                receive = await self._enter(scope, receive, exchange)
            await self.app(scope, receive, exchange)
        except ClientDisconnectedError:
            pass
        except Exception as error:
            if exchange.started:
                raise  # too late for a status; the server closes the connection
            if isinstance(error, ApiError):  # what an endpoint raised otherwise is no refusal
                self.state.rejections[reason_of(error)] += 1
            await path.dialect.response(error)(scope, receive, exchange)
        finally:
            exchange.release()
            if exchange.entered:
                self.state.leave()
                if exchange.caller is not None:
                    exchange.caller.leave()

    async def _enter(self, scope: Scope, receive: Receive, exchange: _Exchange) -> Receive:
        """Read the body, then take a place: who sends slowly holds none."""
        self.state.admit()
        settings = self.state.settings
        try:
            async with asyncio.timeout(settings.body_timeout_s):
                receive = await read_body(scope, receive, settings.max_body_bytes, exchange.hold)
        except TimeoutError:
            message = f"the body took longer than {settings.body_timeout_s:g} s"
            raise ApiError(408, message, code="timeout") from None
        self.state.admit()
        if exchange.caller is not None:
            exchange.caller.enter()
        self.state.in_flight += 1
        exchange.entered = True
        return receive


def plain(scope: Scope) -> Scope:
    """A slash at the end of a path means nothing; HEAD is GET (the server leaves out the body)."""
    changes: dict[str, str] = {}
    if scope["path"] != "/" and scope["path"].endswith("/"):
        changes["path"] = scope["path"].rstrip("/") or "/"
    if scope["method"] == "HEAD":
        changes["method"] = "GET"
    return {**scope, **changes} if changes else scope


def reason_of(error: ApiError) -> str:
    """Why a request was refused, as a word of the code's."""
    return str(error.code or error.type)


class ClientDisconnectedError(Exception):
    """The connection closed before the request was complete."""


async def read_body(scope: Scope, receive: Receive, limit: int, hold: Callable[[int], None]) -> Receive:
    """Read the whole body; return a receive that gives it back in one piece.

    Args:
        hold: told of so many bytes before they are kept; raises where there is no room for them.

    Raises:
        ApiError: 413, more than limit bytes; 400, more inside than is parsed; what hold raises.
        ClientDisconnectedError: the client left in the middle.
    """
    declared = dict(scope["headers"]).get(b"content-length", b"0")
    too_large = declared.isdigit() and len(declared) < 20 and int(declared) > limit
    if not too_large or int(declared) <= MAX_DROPPED_BYTES:
        parts: list[bytes] = []
        size, more = 0, True
        while more and (size <= MAX_DROPPED_BYTES or not too_large):
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnectedError
            part = message.get("body", b"")
            size, more = size + len(part), message.get("more_body", False)
            too_large = too_large or size > limit
            if too_large:
                parts.clear()
            else:
                hold(len(part))
                parts.append(part)
    if too_large:
        raise ApiError(413, f"the body is larger than {limit} bytes", code="request_too_large")
    if len(body := b"".join(parts)) > SMALL:
        await check_inside(body)
    return _replay(body, receive)


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed


class _Exchange:
    """A send that counts the response by its status, and what the request holds until then.

    Attributes:
        entered: the request is one of ServerState.in_flight.
    """

    def __init__(self, scope: Scope, send: Send, state: ServerState) -> None:
        self.scope, self.send, self.state = scope, send, state
        self.started = self.entered = False
        self.caller: Caller | None = None
        self._held = 0

    def hold(self, size: int) -> None:
        """So many more bytes of the request's body are kept.

        Raises:
            ApiError: 429, all requests together hold as many as they may.
        """
        limit = self.state.settings.max_buffered_bytes
        if self.state.buffered + size > limit:
            message = f"requests hold {limit} bytes already; try again later"
            raise ApiError(429, message, "overloaded_error", code="overloaded", headers=RETRY)
        self.state.buffered += size
        self._held += size

    def release(self) -> None:
        """The body was taken by the endpoint, or is wanted no more."""
        self.state.buffered -= self._held
        self._held = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self.release()
            # The route is known only where one matched: other paths are counted as one.
            route = getattr(self.scope.get("route"), "path", "other")
            known = self.scope["method"] in METHODS and message["status"] != 401
            method = self.scope["method"] if known else "other"
            self.state.metrics.count_http(method, route, message["status"])
            if IGNORED in self.scope:
                message["headers"] = [*message.get("headers", ()), header_of_ignored(self.scope)]
        await self.send(message)
