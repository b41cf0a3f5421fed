"""One JSON answer, sent when it has been computed, unless its client has left."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.server.errors import Dialect
from octavo.server.sse import run_until_disconnect


class Answer(Response):
    """A JSON body that is still to be computed. Nothing is sent if the client leaves first.

    Args:
        work: makes the body.
        dialect, names: how to say what work raises (see Dialect).
    """

    def __init__(
        self,
        work: Callable[[], Coroutine[Any, Any, bytes]],
        headers: Mapping[str, str],
        dialect: Dialect,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self._work, self._extra = work, dict(headers)
        self._dialect, self._names = dialect, names
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer() -> None:
            try:
                response = Response(await self._work(), headers=self._extra, media_type="application/json")
            except Exception as error:
                response = self._dialect.response(error, self._names)
            await response(scope, receive, send)

        await run_until_disconnect(receive, answer())
