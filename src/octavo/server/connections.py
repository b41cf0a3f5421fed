"""Connections: how many may be open, how long each may be silent, and when the server closes one.

uvicorn speaks HTTP, with h11. This file adds what uvicorn does not bound: the time in which the headers of a
request must come, the connections in all and from one address, and the time that a client may read nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import functools
import http
import ipaddress
import logging
import socket
import ssl
import struct
import termios
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial

import h11
import uvicorn
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState as UvicornState

logger = logging.getLogger("octavo.server")

SLICE = 16
"""Connections accepted before the event loop goes on to those that are open already."""
PAUSE_S = 1.0
"""Seconds without accepting after the system has run out of file descriptors or memory."""
HANDSHAKE_S = 10.0
LATE_S = 1.0
MAX_BEHIND = 256 << 10
"""Bytes of requests that one client may send behind the one that is being answered."""
MAX_BEHIND_ALL = 16 << 20
"""The same of all clients together."""
DEAD_PEER = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
"""Seconds of silence, seconds between the probes after it, and how many of them: two minutes in all."""
NO_MORE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How much of the server connections may hold.

    Attributes:
        max_connections, max_connections_per_address: beyond them the oldest that has no request gives way,
            and where each has one, the new connection is closed. An IPv6 address counts with its /64 network.
        header_timeout_s: from the connection, or the first byte of a later request, to the end of its head.
        keep_alive_s: between a response and the first byte of the next request.
        write_timeout_s: while something is to be sent and the client takes none of it.
    """

    max_connections: int = 4096
    max_connections_per_address: int = 2048
    header_timeout_s: float = 10.0
    keep_alive_s: int = 5
    write_timeout_s: float = 60.0


class Connections:
    """The connections that are open.

    Args:
        count: told the reason when one is refused or given up.
        at_once: given a connection's whole request, the answer where it needs no app.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        count: Callable[[str], None] = lambda reason: None,
        at_once: Callable[[bytes], Response | None] = lambda data: None,
    ) -> None:
        self.limits = limits
        self.count, self.at_once = count, at_once
        self.open: dict[Connection, None] = {}
        self.idle: dict[Connection, None] = {}  # those without a request, the longest so first
        self.behind = 0
        self._num_open = 0
        self._by_address: Counter[str] = Counter()

    def take(self, address: str) -> bool:
        """A place for a connection from this address; False: there is none."""
        if self._by_address[address] >= self.limits.max_connections_per_address and not self._make_room(
            address
        ):
            self.count("connections_of_address")
            return False
        if self._num_open >= self.limits.max_connections and not self._make_room(None):
            self.count("connections")
            return False
        self._num_open += 1
        self._by_address[address] += 1
        return True

    def give_back(self, address: str) -> None:
        """A connection from this address has ended."""
        self._num_open -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def sweep(self, now: float) -> None:
        """Close the connections whose time is over."""
        for connection in tuple(self.open):
            connection.check(now)

    def abort_busy(self) -> None:
        """Close the connections whose answers have not ended: the drain's time is over."""
        for connection in tuple(self.open):
            if connection.busy or connection.transport.get_write_buffer_size():
                connection.give_up("drain")

    def _make_room(self, address: str | None) -> bool:
        """Close the oldest connection without a request, from this address if one is given."""
        for connection in self.idle:
            if address is None or connection.address == address:
                connection.give_up("idle")
                return True
        return False


class Connection(H11Protocol):
    """One client's connection, which holds a place of `connections` until it is lost or given up."""

    def __init__(
        self, connections: Connections, address: str, config: uvicorn.Config, state: UvicornState
    ) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self.address = address
        self._all = connections
        self._behind = 0  # bytes that wait for the end of the answer in progress
        self._head_since: float | None = self.loop.time()  # since when a request's head is waited for
        self._unsent = (0, 0.0)  # bytes that the client did not take yet, and since when it takes none
        self._placed = True

    @property
    def busy(self) -> bool:
        """A request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        self._all.open[self] = self._all.idle[self] = None
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.leave()
        super().connection_lost(exc)
        # asyncio's transport refers to itself by the method that it reads with, and so would stay until the
        # cyclic collector passes: after a storm, megabytes.
        getattr(self.transport, "__dict__", {}).pop("_read_ready_cb", None)

    def leave(self) -> None:
        """Give the place back; at once where the connection is given up."""
        if self._placed:
            self._placed = False
            self._wait_behind(0)
            self._all.open.pop(self, None)
            self._all.idle.pop(self, None)
            self._all.give_back(self.address)

    def give_up(self, reason: str) -> None:
        """Close without waiting for the client to take what it was sent."""
        self._all.count(reason)
        self.leave()
        self.transport.abort()

    def check(self, now: float) -> None:
        """Give up if the client was silent, or did not read, for too long."""
        limits = self._all.limits
        size = self.transport.get_write_buffer_size()
        if size:
            size += in_kernel(self.transport.get_extra_info("socket"))
        if size == 0 or size != self._unsent[0]:
            self._unsent = (size, now)
        elif now - self._unsent[1] >= limits.write_timeout_s:
            self.give_up("write_timeout")
            return
        if self._head_since is not None and now - self._head_since >= limits.header_timeout_s:
            self.give_up("header_timeout")

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_resting and (answer := self._all.at_once(data)) is not None:
            self._answer(answer)
            return
        if self.busy and self._is_whole:
            # Reading goes on, so that the end of the connection is seen, but not without bound.
            if self.conn.their_state is h11.MUST_CLOSE:
                return  # the client itself has said that nothing follows
            if not self._wait_behind(self._behind + len(data)):
                return
        elif not self.busy and self._head_since is None:
            self._head_since = self.loop.time()
        super().data_received(data)
        self._begun()

    def _answer(self, answer: Response) -> None:
        """Send what h11 need not know of: it has not seen the request, and waits for the next one."""
        phrase = http.HTTPStatus(answer.status_code).phrase
        headers = (*self.server_state.default_headers, *answer.raw_headers)
        head = [f"HTTP/1.1 {answer.status_code} {phrase}".encode()]
        head += [name + b": " + value for name, value in headers]
        self.transport.write(b"\r\n".join([*head, b"", answer.body]))
        self.server_state.total_requests += 1
        self._head_since = None
        if self._placed:
            self._all.idle.pop(self, None)
            self._all.idle[self] = None  # the last in its order
        self._unset_keepalive_if_required()
        late = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        self.timeout_keep_alive_task = late

    def on_response_complete(self) -> None:
        self._wait_behind(0)
        if self._placed:
            self._all.idle[self] = None
        super().on_response_complete()  # which may begin the next request
        self._begun()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP. Where an answer has begun, another cannot be sent in its middle."""
        self._all.count("invalid_http")
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self.busy:
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def _should_upgrade(self) -> bool:
        return False  # nor is it worth a line in the log: anybody can ask

    @property
    def _is_resting(self) -> bool:
        """Nothing of a request has come, and the client has taken all that it was sent."""
        idle = self.conn.our_state is h11.IDLE and self.conn.their_state is h11.IDLE
        return idle and self.conn.trailing_data == (b"", False) and not self.transport.get_write_buffer_size()

    @property
    def _is_whole(self) -> bool:
        """The request in progress was read to its end."""
        return self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)

    def _begun(self) -> None:
        """After bytes were parsed: note whether they began a request, and what waits behind it."""
        if not self.busy:
            return
        self._head_since = None
        self._all.idle.pop(self, None)
        if self.flow.read_paused and self._is_whole:
            self.flow.resume_reading()
            self._wait_behind(len(self.conn.trailing_data[0]))

    def _wait_behind(self, size: int) -> bool:
        """So many bytes wait for the end of the answer now; False: too many, the client is gone."""
        self._all.behind += size - self._behind
        self._behind = size
        if size <= MAX_BEHIND and (size == 0 or self._all.behind <= MAX_BEHIND_ALL):
            return True
        self.give_up("pipelined")
        return False


class Acceptor:
    """Accepts from one listening socket, as uvicorn's servers do.

    asyncio's own would take thousands before it looks at anything else, and would log as many lines when the
    system has no sockets left.
    """

    def __init__(
        self,
        listener: socket.socket,
        connections: Connections,
        make: Callable[[str], Connection],
        tls: ssl.SSLContext | None,
    ) -> None:
        self.sockets = (listener,)
        self._listener, self._connections, self._make, self._tls = listener, connections, make, tls
        self._loop = asyncio.get_running_loop()
        self._begun: set[asyncio.Task[None]] = set()
        self._later: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Accept from now on."""
        self._later = None
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Accept no more."""
        self._loop.remove_reader(self._listener)
        if self._later is not None:
            self._later.cancel()

    async def wait_closed(self) -> None:
        """Nothing is left to be waited for."""

    def _accept(self) -> None:
        for _ in range(SLICE):
            try:
                client, name = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # The kernel keeps those that wait, and would say so again and again.
                self._connections.count("system" if error.errno in NO_MORE else "accept")
                logger.warning("cannot accept connections: %s", error.strerror)
                self._loop.remove_reader(self._listener)
                self._later = self._loop.call_later(PAUSE_S, self.start)
                return
            address = network_of(name)
            if not self._connections.take(address):
                client.close()
                continue
            task = self._loop.create_task(self._begin(client, address))
            self._begun.add(task)
            task.add_done_callback(self._begun.discard)

    async def _begin(self, client: socket.socket, address: str) -> None:
        """Give the connection its protocol, after the handshake where there is one."""
        connection = self._make(address)
        try:
            client.setblocking(False)
            find_dead_peers(client)
            times = {} if self._tls is None else {
                "ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": HANDSHAKE_S
            }  # fmt: skip
            await self._loop.connect_accepted_socket(lambda: connection, client, ssl=self._tls, **times)
        except (OSError, asyncio.CancelledError):  # of TLS too: the client speaks something else, or left
            connection.leave()
            client.close()


def find_dead_peers(client: socket.socket) -> None:
    """Let the kernel ask a silent peer whether it still is there."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if client.family != socket.AF_UNIX:
        for name, value in DEAD_PEER:
            if hasattr(socket, name):
                client.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def in_kernel(client: socket.socket) -> int:
    """Bytes that the system has taken and the client has not; 0 where the system does not tell.

    It takes more only when a third of its own megabytes is free again, which a slow reader needs minutes for.
    """
    try:
        answer = fcntl.ioctl(client.fileno(), termios.TIOCOUTQ, bytes(4))
        return int(struct.unpack("i", answer)[0])
    except OSError:
        return 0


def network_of(name: object) -> str:
    """Whom a peer's connections are counted for: its IPv4 address, or its IPv6 /64; "" is a unix socket."""
    if not isinstance(name, tuple):
        return ""
    return _network(str(name[0]))


@functools.lru_cache(1024)
def _network(host: str) -> str:
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.IPv6Network((address, 64), strict=False))
        address = address.ipv4_mapped
    return str(address)


class HttpServer(uvicorn.Server):
    """uvicorn over connections that are bounded, and without its signal handlers."""

    def __init__(
        self,
        config: uvicorn.Config,
        listener: socket.socket,
        connections: Connections,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(config)
        self.connections = connections
        self._listener, self._tls = listener, tls
        limits = connections.limits
        self._every = min(1.0, min(limits.header_timeout_s, limits.write_timeout_s) / 4)
        self._next = 0.0  # when to sweep

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """None: the first signal must drain before connections close."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        make = partial(Connection, self.connections, config=self.config, state=self.server_state)
        acceptor = Acceptor(self._listener, self.connections, make, self._tls)
        self.servers = [acceptor]  # type: ignore[list-item]  # it has what uvicorn calls
        acceptor.start()
        self.started = True

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        now = asyncio.get_running_loop().time()
        if now >= self._next:
            # After the loop stood still, what clients have sent meanwhile is read before they are judged.
            if now < self._next + LATE_S:
                self.connections.sweep(now)
            self._next = now + self._every
        return await super().on_tick(counter)
