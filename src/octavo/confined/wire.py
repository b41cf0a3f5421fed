"""JSON over a socket, its length before it: the one thing that server and confined processes exchange.

No pickle comes from there: who took over a confined process could otherwise run code in the server.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("!Q")
MAX_BYTES = 256 << 20
"""Of a message: a vocabulary of 256,000 tokens takes a few MB, a long chat's text six bytes a character."""


def send(connection: socket.socket, value: Any) -> None:
    """Send one value.

    Raises:
        OSError: nobody listens, or not in time.
    """
    data = json.dumps(value).encode("ascii")
    connection.sendall(_LENGTH.pack(len(data)))
    connection.sendall(data)


def receive(connection: socket.socket) -> Any:
    """The next value.

    Raises:
        EOFError: the other side is gone, or sends what is no message. OSError: it does not send in time.
    """
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > MAX_BYTES:
        raise EOFError(f"a message of {length} bytes")
    try:
        return json.loads(_exactly(connection, length))
    except (ValueError, RecursionError):
        raise EOFError("not JSON") from None


def _exactly(connection: socket.socket, count: int) -> bytes:
    pieces = []
    while count > 0:
        piece = connection.recv(min(count, 1 << 20))
        if not piece:
            raise EOFError
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)
