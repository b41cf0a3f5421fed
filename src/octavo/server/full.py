"""The refusal (429) of requests while the engine's queue is full, before their bodies are parsed.

A server that is offered ten times what it can answer refuses nine of ten requests. The engine's threads use
every core, so each refusal takes time from the answers of others. This one therefore parses no body,
validates nothing and looks up no route. Only the API key is checked before it.
"""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope

from octavo.errors import OverloadedError
from octavo.server.apis import Path
from octavo.server.errors import ApiError, to_api_error
from octavo.server.state import ServerState

SHORT_BODY = 1 << 16
"""Bytes of a body that is read to its end: a connection that closes with unread bytes is reset, and the
client may never see why. Longer ones are left to the connection, which reads on until the next request."""


async def refusal_when_full(
    scope: Scope, receive: Receive, path: Path, state: ServerState
) -> ApiError | None:
    """The 429 for a request to an engine whose queue is full; None: the request may go on.

    FairQueue and the engine check such a request again and exactly: they count its completions, know the
    shares of API keys, and see what has arrived meanwhile.

    Raises:
        ApiError: 401, where the key is wrong; 503 while the server drains; 408, the body does not come.
    """
    engine = state.engine
    if engine is None or state.in_flight < engine.max_waiting or scope["method"] != "POST":
        return None
    if not path.rules.queued or (waiting := engine.stats().waiting) < engine.max_waiting:
        return None
    if state.keys is not None:
        state.keys.require(scope["headers"])
    state.admit()
    await _drop_body(scope, receive, state.settings.body_timeout_s)
    message = f"{waiting} requests are waiting already; try again later"
    return to_api_error(OverloadedError(message, state.queue.retry_after_s))


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
