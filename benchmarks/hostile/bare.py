"""A listener that refuses every request and does nothing else: what refusals cost at least.

    python benchmarks/hostile/bare.py

Prints its port, then answers whatever it reads by a 429, until standard input ends. What it does for a
refusal is what any server must do: read, write, and accept where a connection is new.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import sys

REFUSAL = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 10\r\nContent-Length: 0\r\n\r\n"


def refuse(client: socket.socket) -> bool:
    """Read and write; False: the client has left."""
    with contextlib.suppress(OSError):
        if client.recv(1 << 16):
            client.sendall(REFUSAL)
            return True
    return False


def main() -> None:
    with (
        socket.create_server(("127.0.0.1", 0), backlog=1024) as listener,
        selectors.DefaultSelector() as ready,
    ):
        ready.register(listener, selectors.EVENT_READ)
        ready.register(sys.stdin, selectors.EVENT_READ)
        print(listener.getsockname()[1], flush=True)
        while True:
            for key, _ in ready.select():
                if key.fileobj is listener:
                    ready.register(listener.accept()[0], selectors.EVENT_READ)
                elif not isinstance(client := key.fileobj, socket.socket):
                    return  # standard input has ended
                elif not refuse(client):
                    ready.unregister(client)
                    client.close()


if __name__ == "__main__":
    main()
