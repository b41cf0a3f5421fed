"""The refusal (429) of requests while the engine's queue is full, before their bodies are parsed.

A server that is offered ten times what it can answer refuses nine of ten requests. The engine's threads use
every core, so each refusal takes time from the answers of others. This one therefore parses no body,
validates nothing and looks up no route. Only the API key is checked before it.

Where the whole request has come in one piece, and is written as clients write theirs (read_whole), it is
answered at once: without h11, a task, and the messages between them, which take most of a refusal's time.
"""

from __future__ import annotations

import asyncio
import re

from starlette.types import Receive, Scope

from octavo.errors import OverloadedError
from octavo.server.apis import Path
from octavo.server.errors import ApiError, to_api_error
from octavo.server.state import ServerState

SHORT_BODY = 1 << 16
"""Bytes of a body that is read to its end: a connection that closes with unread bytes is reset, and the
client may never see why. Longer ones are left to the connection, which reads on until the next request."""
_WHOLE = re.compile(rb"POST (/[a-z0-9/_]*+) HTTP/1\.1\r\n((?:[A-Za-z0-9-]++:[ -~]*+\r\n)++)\r\n")
_FIELD = re.compile(rb"([A-Za-z0-9-]++):([ -~]*+)\r\n")
_OTHERWISE = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"origin", b"x-request-id"})
"""Headers that say where a body ends, or what an answer holds, in ways that are read elsewhere."""
_DIGITS = 7


def is_full(state: ServerState) -> bool:
    """Whether so many requests are in flight that the engine's queue may be full."""
    return state.engine is not None and state.in_flight >= state.engine.max_waiting


def read_whole(data: bytes) -> Scope | None:
    """A POST from its first byte to its last, as an ASGI scope; None: it is not, or not surely, just that.

    Whatever two servers might read differently is None: a header twice, a line that goes on, a newline
    without its return, a length beside chunks, fewer bytes or more than the length says.
    """
    if (head := _WHOLE.match(data)) is None:
        return None
    found = _FIELD.findall(head[2])
    fields = {name.lower(): value.strip(b" ") for name, value in found}
    length = fields.get(b"content-length", b"")
    plain = len(fields) == len(found) and b"host" in fields and _OTHERWISE.isdisjoint(fields)
    if not plain or fields.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    if not length.isdigit() or len(length) > _DIGITS or int(length) != len(data) - head.end():
        return None
    path, headers = head[1].decode(), list(fields.items())
    return {"type": "http", "http_version": "1.1", "method": "POST", "path": path, "headers": headers}


def refusal(scope: Scope, path: Path, state: ServerState) -> ApiError | None:
    """The 429 for a request to an engine whose queue is full; None: the request may go on.

    FairQueue and the engine check such a request again and exactly: they count its completions, know the
    shares of API keys, and see what has arrived meanwhile.

    Raises:
        ApiError: 401, where the key is wrong; 503 while the server drains.
    """
    engine = state.engine
    if engine is None or not is_full(state) or scope["method"] != "POST":
        return None
    if not path.rules.queued or (waiting := engine.stats().waiting) < engine.max_waiting:
        return None
    if state.keys is not None:
        state.keys.require(scope["headers"])
    state.admit()
    message = f"{waiting} requests are waiting already; try again later"
    return to_api_error(OverloadedError(message, state.queue.retry_after_s))


async def refusal_when_full(
    scope: Scope, receive: Receive, path: Path, state: ServerState
) -> ApiError | None:
    """refusal() of a request whose body may still be on its way.

    Raises:
        ApiError: what refusal() raises; 408, the body does not come.
    """
    found = refusal(scope, path, state)
    if found is not None:
        await _drop_body(scope, receive, state.settings.body_timeout_s)
    return found


async def _drop_body(scope: Scope, receive: Receive, timeout_s: float) -> None:
    length = dict(scope["headers"]).get(b"content-length", b"")
    if not length.isdigit() or len(length) > 9 or int(length) > SHORT_BODY:
        return
    try:
        async with asyncio.timeout(timeout_s):
            while (message := await receive())["type"] == "http.request" and message.get("more_body"):
                pass
    except TimeoutError:
        raise ApiError(408, f"the body took longer than {timeout_s:g} s", code="timeout") from None
