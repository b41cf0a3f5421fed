"""Edge: checks each request for what browsers can do to a server, before the app sees it.

A page in somebody's browser can reach a server on the same machine, and send requests in the user's place. So
a server that listens there alone takes no foreign Host (a name of the page's that was made to point here) and
no foreign Origin. Programs send neither. Pages of origins that --allowed-origins names may come in (cors.py).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from octavo.server.apis import Path, Paths
from octavo.server.cors import CorsRules, answer_preflight, granting
from octavo.server.errors import ApiError
from octavo.server.full import is_full, read_whole, refusal, refusal_when_full
from octavo.server.limits import plain, reason_of
from octavo.server.state import ServerState

SIMPLE_TYPES = (b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data")
"""Content types that any page may post anywhere, unasked."""
PACKED = re.compile(rb"gzip|deflate|compress|\b(br|zstd)\b", re.IGNORECASE)
REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
NAMED = frozenset(
    b"host origin sec-fetch-site content-encoding content-type content-length transfer-encoding".split()
)


@dataclass(frozen=True, slots=True)
class EdgeRules:
    """Which requests may pass.

    Attributes:
        hosts: names that a request's Host may have beside addresses and localhost; None, or "*" in it: any.
        root_path: what stands before every path where a proxy leaves it in; it is taken away.
        cors: pages of other origins that may come in.
    """

    hosts: frozenset[str] | None = None
    root_path: str = ""
    cors: CorsRules = field(default_factory=CorsRules)


class Edge:
    """The app as the network sees it."""

    def __init__(self, app: FastAPI, rules: EdgeRules) -> None:
        self._app, self._rules = app, rules
        self._state: ServerState = app.state.octavo
        self._paths: Paths = app.state.paths
        self._hosts = None if rules.hosts is None or "*" in rules.hosts else rules.hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root, path = self._rules.root_path, scope["path"]
        if root and (path == root or path.startswith(root + "/")):
            scope = {**scope, "path": path[len(root) :] or "/"}
        send = closing(send, self._state)
        if any(name == b"x-request-id" for name, _ in scope["headers"]):
            send = naming(send, scope["headers"])
        origin = self._rules.cors.origin(scope)
        if origin is not None:
            send = granting(send, self._rules.cors.granted(origin))
        path, counted = self._paths[plain(scope)["path"]], ("other", "other")
        try:
            self._check(scope, origin is not None)
            refused = await refusal_when_full(scope, receive, path, self._state)
            counted = "POST", path.path
        except ApiError as error:
            refused = error
        if refused is not None:
            await self._refuse(refused, path, counted)(scope, receive, send)
            return
        # A browser asks without the key whether it may send one; only an allowed origin is told.
        if origin is not None and (asked := self._rules.cors.preflight(scope)) is not None:
            self._state.metrics.count_http("OPTIONS", "other", 204)
            await answer_preflight(send, asked)
            return
        await self._app(scope, receive, send)

    def at_once(self, data: bytes) -> Response | None:
        """The answer to a whole request that is refused because the engine's queue is full.

        None: to all others, which the app is given.

        Args:
            data: all that a connection has brought since its last answer.
        """
        if not is_full(self._state) or self._state.draining or (scope := read_whole(data)) is None:
            return None
        path, counted = self._paths.get(scope["path"]), ("other", "other")
        if path is None or not path.rules.queued:
            return None
        try:
            self._check(scope, False)
            refused = refusal(scope, path, self._state)
            counted = "POST", path.path
        except ApiError as error:
            refused = error
        return None if refused is None else self._refuse(refused, path, counted)

    def _refuse(self, why: ApiError, path: Path, counted: tuple[str, str]) -> Response:
        self._state.metrics.count_http(*counted, why.status)
        self._state.rejections[reason_of(why)] += 1
        return path.dialect.response(why)

    def _check(self, scope: Scope, allowed: bool) -> None:
        """
        Args:
            allowed: it comes from an origin that may use this server.

        Raises:
            ApiError: 400, two lengths; 403, a foreign Host or Origin; 415, a body that any page can send,
                or a packed one.
        """
        headers = {name: value for name, value in scope["headers"] if name in NAMED}
        check_framing(headers, scope["http_version"])
        asks = scope["method"] in ("GET", "HEAD")
        if self._hosts is not None and not (asks and not self._paths[plain(scope)["path"]].rules.keyed):
            check_host(headers, self._hosts)
            if not allowed:
                check_origin(headers)
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        # A page can also post a body of no type, unasked; programs that do send no Origin.
        sends = not asks and scope["method"] != "OPTIONS"  # a preflight has neither a body nor a type
        if sends and (kind in SIMPLE_TYPES or (not kind and b"origin" in headers)):
            raise ApiError(415, "send JSON: Content-Type: application/json", code="unsupported_media_type")
        # A small body may unpack into one without end. (What says utf-8 here, as some do, is not packed.)
        if sends and PACKED.search(headers.get(b"content-encoding", b"")):
            message = "send the body as it is: Content-Encoding is not supported"
            raise ApiError(415, message, code="unsupported_media_type")


def closing(send: Send, state: ServerState) -> Send:
    """A send whose responses are the last of their connection once the server drains, also to requests that
    came before: the next one goes to another server."""

    async def closed(message: Message) -> None:
        if message["type"] == "http.response.start" and state.draining:
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await send(message)

    return closed


def naming(send: Send, headers: list[tuple[bytes, bytes]]) -> Send:
    """A send whose responses carry the id that the client, or a proxy, has given to the request.

    An id that has other characters than ids have is not taken over: it may end in a log.
    """
    given = next(value for name, value in headers if name == b"x-request-id")
    if REQUEST_ID.fullmatch(given) is None:
        return send

    async def named(message: Message) -> None:
        if message["type"] == "http.response.start":
            others = [pair for pair in message.get("headers", ()) if pair[0].lower() != b"x-request-id"]
            message = {**message, "headers": [*others, (b"x-request-id", given)]}
        await send(message)

    return named


def check_framing(headers: dict[bytes, bytes], version: str) -> None:
    """Refuse a request whose end two servers may see at different places.

    Raises:
        ApiError: 400; the connection closes.
    """
    if b"transfer-encoding" in headers and (b"content-length" in headers or version == "1.0"):
        message = "Transfer-Encoding with Content-Length, or in HTTP/1.0: where the request ends is not clear"
        raise ApiError(400, message, code="invalid_framing", headers={"connection": "close"})


def check_host(headers: dict[bytes, bytes], names: Iterable[str]) -> None:
    """Refuse a name that is not this machine's. Addresses pass: no page can make one point elsewhere.

    Raises:
        ApiError: 403.
    """
    given = headers.get(b"host")
    if given is None:
        return  # HTTP/1.0, which no browser speaks
    host = hostname("//" + given.decode("latin-1"))
    if host is not None and (is_local_name(host) or host in names or address_of(host) is not None):
        return
    message = f"this server is not {given[:100].decode('latin-1')!r}; allow a name with --allowed-hosts"
    raise ApiError(403, message, "permission_error", code="host_not_allowed")


def check_origin(headers: dict[bytes, bytes]) -> None:
    """Refuse what a page that is none of this machine's has asked for.

    Raises:
        ApiError: 403.
    """
    origin = headers.get(b"origin")
    if origin is None:
        foreign = headers.get(b"sec-fetch-site", b"").strip().lower() == b"cross-site"
    else:
        host = hostname(origin.decode("latin-1"))
        address = None if host is None else address_of(host)
        local = host is not None and (is_local_name(host) or (address is not None and address.is_loopback))
        foreign = not local and origin.partition(b"//")[2] != headers.get(b"host", b"")
    if foreign:
        message = "pages of other sites may not use this server"
        raise ApiError(403, message, "permission_error", code="origin_not_allowed")


def hostname(url: str) -> str | None:
    """The host of an origin, in small letters; None: it has none."""
    try:
        host = urlsplit(url).hostname
    except ValueError:
        return None
    return host.rstrip(".") if host else None


def is_local_name(host: str) -> bool:
    return host == "localhost" or host.endswith(".localhost")


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a host is written as; None: it is a name."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
