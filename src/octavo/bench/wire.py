"""Just enough HTTP/1.1 for one server: a connection a request, streamed answers read line by line.

It stands over asyncio streams alone, because what a load generator costs is taken from the engine beside it.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

from octavo.errors import InvalidRequestError, OctavoError

MAX_LINE = 1 << 20
"""Bytes of one line of a response; a server that sends a longer one is cut off."""
MOST_OF_AN_ERROR = 1 << 14
"""Bytes that are read of an answer whose status is no 200."""
CUT = "the connection ended in the middle of the answer"
Connection = tuple[asyncio.StreamReader, Any]
"""A reader and what is written to: an asyncio.StreamWriter, or what a test puts into its place."""
Connect = Callable[[str, int, bool], Awaitable[Connection]]
"""(host, port, whether over TLS) -> a connection."""


class RefusedError(OctavoError):
    """The server answered a request with an error."""


async def over_tcp(host: str, port: int, tls: bool) -> Connection:
    """A connection of the system."""
    context = ssl.create_default_context() if tls else None
    return await asyncio.open_connection(host, port, limit=MAX_LINE, ssl=context)


class Wire:
    """One server, by its URL."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        connect: Connect = over_tcp,
    ) -> None:
        """
        Args:
            url: http(s)://host:port, with /v1 behind it or without.
            headers: more of them, for every request.

        Raises:
            InvalidRequestError: the URL is none, or a header is none.
        """
        try:
            parts = urlsplit(url if "//" in url else f"//{url}", scheme="http")
            port = parts.port
        except ValueError:
            raise InvalidRequestError(f"{url!r} is no http:// address of a server") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequestError(f"{url!r} is no http:// address of a server")
        self._tls = parts.scheme == "https"
        self._host, self._port = parts.hostname, port or (443 if self._tls else 80)
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._connect = connect
        lines = [f"Host: {parts.netloc}", "Connection: close"]
        if api_key:
            lines.append(f"Authorization: Bearer {api_key}")
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        for line in lines:
            if not re.fullmatch(r"[!-9;-~]+: [ -~]*", line):
                raise InvalidRequestError(f"{line!r} is no header of HTTP")
        self._head = "".join(f"{line}\r\n" for line in lines)

    async def whole(self, method: str, path: str) -> bytes:
        """The body of an answer.

        Raises:
            OctavoError: there is no answer, or its status is no 200.
        """
        answer = b""
        async with aclosing(self.lines(method, path, b"")) as lines:
            async for line in lines:
                answer += line
        return answer

    async def lines(self, method: str, path: str, body: bytes) -> AsyncGenerator[bytes, None]:
        """Send a request and yield the lines of the answer's body, as they arrive.

        Raises:
            RefusedError: the status is no 200, or a line is longer than MAX_LINE.
            OctavoError: nobody answers.
        """
        try:
            reader, writer = await self._connect(self._host, self._port, self._tls)
        except OSError as error:
            raise OctavoError(f"no answer from {self._host}:{self._port}: {error}") from None
        try:
            writer.write(
                f"{method} {self._path}{path} HTTP/1.1\r\n{self._head}Content-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            rest = b""
            async for block in _blocks(reader, await _length(reader)):
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    yield line
                if len(rest) > MAX_LINE:
                    raise RefusedError("a line of the answer is longer than 1 MiB")
            if rest:
                yield rest
        finally:
            writer.close()


async def first_model(wire: Wire) -> str:
    """The name of the model that a server lists first.

    Raises:
        OctavoError: it lists none, or does not answer.
    """
    answer = await wire.whole("GET", "/v1/models")
    try:
        return str(json.loads(answer)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise OctavoError("the server lists no models: name one") from None


async def _length(reader: asyncio.StreamReader) -> int | None:
    """Read the status and the headers: the body's bytes, -1 if it comes in chunks, None: until the end."""
    words = (await reader.readline()).split(b" ", 2)
    length: int | None = None
    while (line := await reader.readline()) not in (b"\r\n", b"\n", b""):
        name, _, value = line.lower().partition(b":")
        if name == b"transfer-encoding" and b"chunked" in value:
            length = -1
        elif name == b"content-length" and length is None:
            length = int(value)
    if len(words) < 2:
        raise RefusedError("no HTTP answer")
    if words[1] != b"200":
        raise RefusedError(f"HTTP {words[1].decode(errors='replace')}{await _why(reader, length)}")
    return length


async def _why(reader: asyncio.StreamReader, length: int | None) -> str:
    """What a refusal says, after a colon; nothing where it says nothing that can be shown."""
    body = b""
    try:
        async for block in _blocks(reader, length):
            body += block
            if len(body) > MOST_OF_AN_ERROR:
                return ""
        said = json.loads(body)["error"]
        text = said.get("message", "") if isinstance(said, dict) else said
    except (ValueError, KeyError, TypeError, RecursionError, asyncio.IncompleteReadError, OSError):
        return ""
    return f": {' '.join(str(text).split())[:200]}" if text else ""


async def _blocks(reader: asyncio.StreamReader, length: int | None) -> AsyncIterator[bytes]:
    """The body, as it arrives; length as _length has it."""
    if length is None or length >= 0:
        left = float("inf") if length is None else length
        while left > 0 and (block := await reader.read(int(min(1 << 16, left)))):
            left -= len(block)
            yield block
        return
    while size := int((await _line(reader)).split(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)  # the line's end after a chunk


async def _line(reader: asyncio.StreamReader) -> bytes:
    """
    Raises:
        RefusedError: there is none any more.
    """
    line = await reader.readline()
    if not line:
        raise RefusedError(CUT)
    return line
