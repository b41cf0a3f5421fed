"""Pages of other origins that may use this server, as CORS has it: none, until --allowed-origins names some.

A browser asks first (OPTIONS, a preflight), without a key. An origin that is allowed is answered before the
key is looked at, and learns what it may send and nothing else. Others are answered as if there were no CORS.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.types import Message, Scope, Send

from octavo.errors import InvalidRequestError

Headers = list[tuple[bytes, bytes]]

ANY = "*"
MAX_AGE_S = 600
"""So long a browser need not ask again."""
METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
READABLE = b"x-request-id, request-id, x-octavo-ignored, retry-after"
"""Headers of answers that pages may read."""
_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2048}")


@dataclass(frozen=True, slots=True)
class CorsRules:
    """Who may, and what.

    Attributes:
        origins: such as https://chat.example.org:8443; or "*".
        methods, headers: of requests; "*" in them: any.
        credentials: with cookies and the browser's own keys.
    """

    origins: frozenset[str] = frozenset()
    methods: tuple[str, ...] = (ANY,)
    headers: tuple[str, ...] = (ANY,)
    credentials: bool = False

    @staticmethod
    def of(
        origins: Iterable[str], methods: Iterable[str], headers: Iterable[str], credentials: bool
    ) -> CorsRules:
        """Checked.

        Raises:
            InvalidRequestError: an origin that no browser would send, or any with credentials.
        """
        wanted = [origin.lower() for origin in origins]
        for origin in wanted:
            if origin not in (ANY, "null") and not _is_origin(origin):
                shown = repr(origin[:100])
                raise InvalidRequestError(
                    f"--allowed-origins takes origins such as http://localhost:3000, or *; not {shown}"
                )
        if credentials and (ANY in wanted or not wanted):
            raise InvalidRequestError("--allow-credentials needs --allowed-origins by name, not *")
        return CorsRules(frozenset(wanted), tuple(methods) or (ANY,), tuple(headers) or (ANY,), credentials)

    def origin(self, scope: Scope) -> bytes | None:
        """The origin of a request, if it is allowed."""
        if not self.origins:
            return None
        given = next((value for name, value in scope["headers"] if name == b"origin"), None)
        if given is None or (ANY not in self.origins and given.decode("latin-1") not in self.origins):
            return None
        return bytes(given)

    def granted(self, origin: bytes) -> Headers:
        """Headers of every answer to an allowed origin."""
        anybody = ANY in self.origins and not self.credentials
        found = [(b"access-control-allow-origin", b"*" if anybody else origin), (b"vary", b"Origin")]
        if self.credentials:
            found.append((b"access-control-allow-credentials", b"true"))
        return [*found, (b"access-control-expose-headers", READABLE)]

    def preflight(self, scope: Scope) -> Headers | None:
        """What a preflight is told beside granted(); None: it is none."""
        headers = dict(scope["headers"])
        if scope["method"] != "OPTIONS" or b"access-control-request-method" not in headers:
            return None
        methods = METHODS if ANY in self.methods else ", ".join(self.methods)
        found = [
            (b"access-control-allow-methods", methods.encode("latin-1")),
            (b"access-control-max-age", str(MAX_AGE_S).encode()),
        ]
        asked = headers.get(b"access-control-request-headers", b"")
        if ANY not in self.headers:
            asked = ", ".join(self.headers).encode("latin-1")
        if _NAMES.fullmatch(asked):  # named one by one: a star leaves Authorization out
            found.append((b"access-control-allow-headers", asked))
        if headers.get(b"access-control-request-private-network") == b"true":
            found.append((b"access-control-allow-private-network", b"true"))
        return found


def granting(send: Send, headers: Headers) -> Send:
    """A send whose responses carry these headers."""

    async def granted(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *headers]}
        await send(message)

    return granted


async def answer_preflight(send: Send, headers: Headers) -> None:
    """204, and nothing else."""
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _is_origin(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    whole = f"{parts.scheme}://{shown}" + ("" if port is None else f":{port}")
    return bool(parts.scheme and host) and whole == text
