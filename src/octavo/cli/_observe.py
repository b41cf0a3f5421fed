"""What `octavo serve` writes down of its requests, and where: log lines, and spans for OpenTelemetry."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.errors import InvalidRequestError

if TYPE_CHECKING:
    from octavo.server.log_lines import ServerLogs
    from octavo.server.request_record import Reader
    from octavo.server.tracing import Tracer


class LogFormat(StrEnum):
    """How log lines are written."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class ObserveFlags:
    """The flags of `octavo serve` that say what it logs and traces."""

    access_log: Annotated[bool, typer.Option("--access-log", help="Log a line for each HTTP request.")] = (
        False
    )
    log_format: Annotated[
        LogFormat,
        typer.Option(
            "--log-format",
            help="Write log lines as text or JSON. json also logs each request, and switches --json on.",
        ),
    ] = LogFormat.TEXT
    otlp_traces_endpoint: Annotated[
        str | None,
        typer.Option(
            "--otlp-traces-endpoint",
            help="Send a span for each request to this OpenTelemetry collector (OTLP over HTTP), such as "
            "http://localhost:4318/v1/traces. Needs octavo[otel].",
        ),
    ] = None

    @property
    def as_json(self) -> bool:
        """Whether the process writes JSON lines and nothing else."""
        return self.log_format is LogFormat.JSON

    def observers(self) -> Observers:
        """The log and the tracer that these flags ask for.

        Raises:
            InvalidRequestError: the endpoint is no URL of a collector, or what speaks to it is not installed.
        """
        from octavo.server.log_lines import ServerLogs

        return Observers(ServerLogs(self.access_log or self.as_json, self.as_json), self._tracer())

    def _tracer(self) -> Tracer | None:
        if self.otlp_traces_endpoint is None:
            return None
        try:
            from octavo.server.tracing import open_tracer
        except ImportError as error:
            if (error.name or "").partition(".")[0] != "opentelemetry":
                raise
            raise InvalidRequestError(
                f"--otlp-traces-endpoint needs OpenTelemetry ({error.name} is not installed): "
                "pip install 'octavo[otel]'"
            ) from None
        return open_tracer(self.otlp_traces_endpoint)


@dataclass(frozen=True, slots=True)
class Observers:
    """The log and the tracer, which write down what requests did."""

    logs: ServerLogs
    tracer: Tracer | None = None

    @property
    def readers(self) -> tuple[Reader, ...]:
        """Whom the server gives the record of each request that has ended."""
        from octavo.server.log_lines import AccessLog

        access: tuple[Reader, ...] = (AccessLog(),) if self.logs.access else ()
        return access if self.tracer is None else (*access, self.tracer)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Let logs and tracer write; at the end each writes what still waits, within a time of its own."""
        with self.logs:
            try:
                yield
            finally:
                if self.tracer is not None:
                    self.tracer.close()
