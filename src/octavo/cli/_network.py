"""How `octavo serve` meets the network: who may come in, by which door, and how long it stays open."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.errors import InvalidRequestError

if TYPE_CHECKING:
    import ssl

    from octavo.cli._observe import Observers
    from octavo.server.cors import CorsRules
    from octavo.server.keys import ApiKeys
    from octavo.server.run import Network


@dataclass(frozen=True, slots=True)
class NetworkFlags:
    """The flags of `octavo serve` that say where it listens and for whom."""

    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; 0.0.0.0: all of this machine.")
    ] = "127.0.0.1"
    port: Annotated[
        int, typer.Option("--port", help="Port to listen on; 0: any free one.", min=0, max=65535)
    ] = 8000
    uds: Annotated[
        Path | None, typer.Option("--uds", help="Unix socket to listen on, instead of an address.")
    ] = None
    root_path: Annotated[
        str, typer.Option("--root-path", help="Path below which a proxy serves this server, such as /llm.")
    ] = ""
    ssl_certfile: Annotated[
        Path | None, typer.Option("--ssl-certfile", help="Serve HTTPS with this certificate (PEM).")
    ] = None
    ssl_keyfile: Annotated[
        Path | None,
        typer.Option("--ssl-keyfile", help="The certificate's private key, if its file does not hold it."),
    ] = None
    ssl_ca_certs: Annotated[
        Path | None,
        typer.Option(
            "--ssl-ca-certs", help="Clients must show a certificate that an authority in this file signed."
        ),
    ] = None
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key",
            help="Refuse requests without this key. May be given several times. Other users of the machine "
            "can read it in the list of processes: prefer --api-key-file, or the variable OCTAVO_API_KEY.",
        ),
    ] = None
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            "--api-key-file",
            help="File of API keys: one a line, or TOML tables with names and limits. The server reads it "
            "again when it changes.",
        ),
    ] = None
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-hosts",
            help="Host name that requests may use while the server listens on this machine alone; *: any. "
            "May be given several times.",
        ),
    ] = None
    allowed_origins: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-origins",
            help="Origin whose pages may use this server from a browser (CORS), such as "
            "http://localhost:3000; *: any. May be given several times, or as a JSON list.",
        ),
    ] = None
    allowed_methods: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-methods", help="HTTP methods that pages of --allowed-origins may use.  [default: all]"
        ),
    ] = None
    allowed_headers: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-headers", help="Headers that pages of --allowed-origins may send.  [default: all]"
        ),
    ] = None
    allow_credentials: Annotated[
        bool, typer.Option("--allow-credentials", help="Pages of --allowed-origins may send cookies.")
    ] = False
    max_connections: Annotated[
        int | None,
        typer.Option(
            "--max-connections",
            help="Most connections at once.  [default: 4 x --max-concurrent-requests, as the limit of open "
            "files allows]",
            min=1,
            show_default=False,
        ),
    ] = None
    max_connections_per_address: Annotated[
        int | None,
        typer.Option(
            "--max-connections-per-address",
            help="Most connections from one address.  [default: half of --max-connections]",
            min=1,
            show_default=False,
        ),
    ] = None
    header_timeout: Annotated[
        float,
        typer.Option(
            "--header-timeout", help="Seconds in which the headers of a request must have come.", min=0.1
        ),
    ] = 10.0
    write_timeout: Annotated[
        float,
        typer.Option(
            "--write-timeout",
            help="Seconds after which a client that reads nothing is disconnected.",
            min=0.1,
        ),
    ] = 60.0
    timeout_keep_alive: Annotated[
        int,
        typer.Option(
            "--timeout-keep-alive", help="Seconds that a connection may be idle between requests.", min=1
        ),
    ] = 5
    drain_delay: Annotated[
        float,
        typer.Option(
            "--drain-delay",
            help="Seconds for which new requests are still served after a signal, while /ready answers 503.",
            min=0.0,
        ),
    ] = 0.0

    def listen(self) -> tuple[socket.socket, str]:
        """The listening socket, and its URL.

        Raises:
            InvalidRequestError: flags that contradict each other. PortInUseError: nobody can listen there.
        """
        from octavo.server.listen import bind, bind_unix

        if self.ssl_certfile is None and (self.ssl_keyfile is not None or self.ssl_ca_certs is not None):
            raise InvalidRequestError("--ssl-keyfile and --ssl-ca-certs need --ssl-certfile")
        if self.root_path and (self.root_path[0] != "/" or self.root_path[-1] == "/"):
            raise InvalidRequestError("--root-path begins with a slash, and does not end with one: /llm")
        self.cors()
        self.tls()  # what is wrong with its files is said before a model is loaded
        scheme = "http" if self.ssl_certfile is None else "https"
        if self.uds is not None:
            return bind_unix(self.uds), f"{scheme}+unix://{self.uds}{self.root_path}"
        listener = bind(self.host, self.port)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return listener, f"{scheme}://{host}:{listener.getsockname()[1]}{self.root_path}"

    def tls(self) -> ssl.SSLContext | None:
        """The certificate and key of an HTTPS server; None: it serves HTTP.

        Raises:
            InvalidRequestError: a file cannot be used.
        """
        if self.ssl_certfile is None:
            return None
        from octavo.server.listen import tls_context

        return tls_context(self.ssl_certfile, self.ssl_keyfile, self.ssl_ca_certs)

    def cors(self) -> CorsRules:
        """Which pages of other origins may use the server from a browser.

        Raises:
            InvalidRequestError: an origin that is none, or credentials for any.
        """
        from octavo.server.cors import CorsRules

        origins = listed(self.allowed_origins, "--allowed-origins")
        methods = [name.upper() for name in listed(self.allowed_methods, "--allowed-methods")]
        headers = listed(self.allowed_headers, "--allowed-headers")
        return CorsRules.of(origins, methods, headers, self.allow_credentials)

    def keys(self) -> ApiKeys | None:
        """The API keys that requests may bring; None: requests need none.

        Raises:
            InvalidRequestError: a key is empty, or their file cannot be read.
        """
        from octavo.server.keys import ApiKeys, from_environment

        environment = from_environment()
        given = tuple(self.api_key or environment)
        if not all(given):
            raise InvalidRequestError("--api-key must not be empty")
        return ApiKeys(given, self.api_key_file) if given or self.api_key_file is not None else None

    def network(
        self, listener: socket.socket, max_requests: int, observers: Observers | None = None
    ) -> Network:
        """How the server meets the network.

        Args:
            max_requests: that are answered at once.
            observers: who writes down what requests did; None: nobody.
        """
        from octavo.server.connections import ConnectionLimits
        from octavo.server.edge import EdgeRules
        from octavo.server.listen import is_loopback, raise_open_files
        from octavo.server.log_lines import ServerLogs
        from octavo.server.notify import Notifier
        from octavo.server.run import Network

        most = min(self.max_connections or 4 * max_requests, raise_open_files())
        each = most if self.uds is not None else max(1, most // 2)
        names = frozenset(name.lower() for name in self.allowed_hosts or ())
        return Network(
            ConnectionLimits(
                most,
                self.max_connections_per_address or each,
                self.header_timeout,
                self.timeout_keep_alive,
                self.write_timeout,
            ),
            EdgeRules(names if is_loopback(listener) else None, self.root_path, self.cors()),
            self.tls(),
            self.drain_delay,
            Notifier.from_environment(),
            ServerLogs() if observers is None else observers.logs,
            () if observers is None else observers.readers,
        )

    def warning(self, listener: socket.socket, keys: ApiKeys | None) -> str | None:
        """A warning for who starts the server: it listens to a network without keys. None: it does not."""
        from octavo.server.listen import is_loopback

        if keys is not None or listener.family == socket.AF_UNIX or is_loopback(listener):
            return None
        return f"whoever reaches {self.host} may use this server: set OCTAVO_API_KEY or --api-key-file"


def listed(values: list[str] | None, flag: str) -> list[str]:
    """The values of a flag that is repeated, or that is given once with a JSON list, as vLLM's is.

    Raises:
        InvalidRequestError: what begins as a list is none of texts.
    """
    found: list[str] = []
    for value in values or ():
        try:
            each = json.loads(value) if value.lstrip().startswith("[") else [value]
        except ValueError:
            each = None
        if not isinstance(each, list) or not all(isinstance(item, str) and item for item in each):
            raise InvalidRequestError(f"{flag} takes a name, or a JSON list of names; not {value[:100]!r}")
        found += each
    return found
