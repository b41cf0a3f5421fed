"""Taking a port. Apart from the rest of the server, whose imports take longer than a mistake should."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.errors import InvalidRequestError, OctavoError

if TYPE_CHECKING:
    import ssl

BACKLOG = 2048
MOST_FILES = 65_536
"""Descriptors beyond this number are of no use: each connection has one."""
SPARE_FILES = 64
"""Of descriptors, for what is no connection and not open yet: files of the model, sockets of the loop."""


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
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        # An address that is not this machine's has no free port either.
        foreign = error.errno == errno.EADDRNOTAVAIL
        advice = "change --host" if foreign else "choose another with --port (0: any free one)"
        raise PortInUseError(f"cannot listen on {host}:{port}: {_reason(error)}; {advice}") from None
    listener.setblocking(False)
    return listener


def bind_unix(path: Path) -> socket.socket:
    """A listening unix socket, open to whom the umask lets write. One that a dead server left is replaced.

    Raises:
        PortInUseError: somebody listens there, it is no socket, or it cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise PortInUseError(f"cannot listen on {path}: it is there, and no socket; change --uds")
            if _answers(path):
                raise PortInUseError(f"cannot listen on {path}: Address already in use; change --uds")
            path.unlink()
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except (OSError, PortInUseError) as error:
        listener.close()
        if isinstance(error, PortInUseError):
            raise
        raise PortInUseError(f"cannot listen on {path}: {_reason(error)}; change --uds") from None
    listener.setblocking(False)
    return listener


def is_loopback(listener: socket.socket) -> bool:
    """Programs and pages of this machine alone reach it by TCP. A unix socket no page can reach."""
    if listener.family == socket.AF_UNIX:
        return False
    return ipaddress.ip_address(str(listener.getsockname()[0]).partition("%")[0]).is_loopback


def tls_context(certificate: Path, key: Path | None, authorities: Path | None) -> ssl.SSLContext:
    """What a server of HTTPS shows.

    Args:
        certificate, key: PEM files; the key may stand in the first one.
        authorities: clients must show a certificate that these have signed; None asks for none.

    Raises:
        InvalidRequestError: a file cannot be read, or they do not fit together.
    """
    import ssl

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    file: Path | None = certificate
    try:
        for file in (certificate, key, authorities):
            if file is not None:
                file.open("rb").close()  # ssl's own errors name no file
        file = certificate
        # The empty password: OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate, key, password="")
        if authorities is not None:
            file = authorities
            context.load_verify_locations(authorities)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # of ssl, too
        why = (isinstance(error, ssl.SSLError) and error.reason) or _reason(error)
        raise InvalidRequestError(f"cannot use {file} for TLS: {why}") from None
    return context


def raise_open_files() -> int:
    """Let this process open as many files as it may; returns how many connections that leaves room for."""
    try:
        import resource
    except ImportError:  # no Unix
        return MOST_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    wanted = MOST_FILES if hard == endless else min(hard, MOST_FILES)
    if soft != endless and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    most = MOST_FILES if soft == endless else soft
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:
        used = SPARE_FILES
    return max(1, most - used - SPARE_FILES)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(path))
        except TimeoutError:
            return True  # it listens, and is busy
        except OSError:
            return False
    return True


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
