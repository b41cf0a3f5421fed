"""Sends one call and notes when its answer comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from octavo.bench.serving.apis import Api, Piece
from octavo.bench.serving.exchange import Asked, LoadRequest, Reply
from octavo.bench.wire import CUT, RefusedError, Wire
from octavo.errors import InvalidRequestError, OctavoError


@dataclass(frozen=True, slots=True)
class Client:
    """One server, asked in one API.

    Attributes:
        path: instead of the API's own, where it is not empty.
        timeout_s: for one answer.
    """

    wire: Wire
    api: Api
    asked: Asked
    path: str = ""
    timeout_s: float = 600.0

    def body(self, call: LoadRequest) -> bytes:
        """
        Raises:
            InvalidRequestError: the API has nothing for such a prompt, or for what is asked.
        """
        body = self.api.body(call, self.asked)
        try:
            return json.dumps(body, allow_nan=False).encode()
        except ValueError:
            raise InvalidRequestError(
                "JSON has no NaN and no Infinity: they can be neither --top-p nor in --extra-body"
            ) from None

    async def send(self, body: bytes, reply: Reply, begin_s: float) -> None:
        """Send a body and fill the reply; whatever fails is its error.

        Args:
            begin_s: of the load, on the loop's clock.
        """
        try:
            async with asyncio.timeout(self.timeout_s):
                await self._stream(body, reply, begin_s)
        except TimeoutError:
            reply.error = "timed out"
        except OctavoError as error:
            reply.error = str(error)
        except (asyncio.IncompleteReadError, ConnectionError):
            reply.error = CUT
        except (OSError, ValueError) as error:
            reply.error = f"broken answer: {type(error).__name__}"

    async def _stream(self, body: bytes, reply: Reply, begin_s: float) -> None:
        clock = asyncio.get_running_loop().time
        ended = self.api.ends_with is None
        reply.sent_s = clock() - begin_s
        async with aclosing(self.wire.lines("POST", self.path or self.api.path, body)) as lines:
            async for line in lines:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == self.api.ends_with:
                    ended = True
                    break
                piece = self._read(data)
                if piece.error is not None:
                    raise RefusedError(piece.error)
                if piece.has_text:
                    reply.arrivals.append(clock() - begin_s)
                for name in ("tokens", "prompt_tokens", "cached_tokens"):
                    if (count := getattr(piece, name)) is not None:
                        setattr(reply, name, count)
        if not ended:
            raise RefusedError("the stream ended early")
        reply.end_s = clock() - begin_s

    def _read(self, data: bytes) -> Piece:
        """
        Raises:
            ValueError: it is not what the API has there.
        """
        try:
            event: Any = json.loads(data)
            if not isinstance(event, Mapping):
                raise ValueError("no object")
            return self.api.read(event)
        except (AttributeError, KeyError, IndexError, TypeError, RecursionError) as error:
            raise ValueError(f"an event that is none: {error}") from None
