"""Taking a port. Apart from the rest of the server, whose imports take longer than a mistake should."""

from __future__ import annotations

import socket

from octavo.errors import OctavoError


class PortInUseError(OctavoError):
    """Nobody can listen there."""


def bind(host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 takes a free one.

    It listens at once: a second server on the port must fail before it loads a model.

    Raises:
        PortInUseError: the address is taken, not ours, or does not exist.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError, OverflowError) as error:
        raise PortInUseError(f"cannot listen on {host}:{port}: {_reason(error)}; change --host") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise PortInUseError(
            f"cannot listen on {host}:{port}: {_reason(error)}; choose another with --port (0: any free one)"
        ) from None
    listener.setblocking(False)
    return listener


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
