"""One path of two APIs, which tell their requests apart by the body: TGI's /tokenize, and vLLM's.

One file serves the path. The other brings `claims` beside its router: {path: Claim}. The file that serves the
path asks claimed() first. Before the body is read nobody knows whose a request is: the limits speak the
dialect of the file that serves it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pydantic_core
from starlette.requests import Request
from starlette.responses import Response

from octavo.server.errors import Dialect
from octavo.server.openai.body import alone

DIALECT = "octavo.dialect"
"""Where a request's scope has the dialect that its errors are said in, if it is not its path's."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Requests to another file's path.

    Attributes:
        member: whose presence in the body makes a request this API's.
        endpoint: answers it.
        dialect: what its errors are said in.
    """

    member: str
    endpoint: Callable[[Request], Awaitable[Response]]
    dialect: Dialect

    def covers(self, body: bytes) -> bool:
        """Whether the body is an object with that member."""
        if f'"{self.member}"'.encode() not in body:  # most are told so without being read
            return False
        try:
            value = pydantic_core.from_json(body, cache_strings=False)
        except ValueError:
            return False
        return isinstance(value, dict) and self.member in value


async def claimed(request: Request) -> Response | None:
    """The answer of the API that claims this request; None: it is of the file that serves the path."""
    claim: Claim | None = request.app.state.claims.get(request.scope["path"])
    if claim is None:
        return None
    data = await request.body()
    if not await alone(len(data), claim.covers, data):
        return None
    request.scope[DIALECT] = claim.dialect
    return await claim.endpoint(request)
