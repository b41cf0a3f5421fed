"""Log lines while a server runs: text or JSON, of each request if wanted, written on a thread of their own.

Who logs never waits for a pipe, a disk or a terminal. What comes faster than it can be written is dropped and
counted. No line has a prompt, an answer, a header or a key in it; docs/how-to/observe.md says what it has.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import Scope

    from octavo.server.request_record import RequestRecord

ACCESS = "octavo.access"
"""The logger of the lines of requests."""
MAX_WAITING = 4 << 20
"""Characters of lines that wait to be written."""
MAX_TEXT = 4000
"""Characters of a message, and of the end of a traceback, in a line of JSON."""
GATHER_S = 0.05
"""Lines of requests wait so long for others. Errors do not: they may be the process's last words."""
CLOSE_S = 1.0
"""At the end, lines that wait have so long to be written."""

access_logger = logging.getLogger(ACCESS)


class LineWriter:
    """Writes lines to a file descriptor, in order, on a thread that starts with the first.

    Args:
        gather_s: a line waits so long for others.

    Attributes:
        dropped: lines that found more than max_waiting characters before them, or that nobody could take.
    """

    def __init__(self, descriptor: int, max_waiting: int = MAX_WAITING, gather_s: float = 0.0) -> None:
        self.dropped = 0
        self._descriptor, self._room, self._gather_s = descriptor, max_waiting, gather_s
        self._lines: list[str] = []  # guarded by _change, as are _room, dropped and _closing
        self._change = threading.Condition()
        self._closing, self._ending = False, threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, line: str) -> None:
        """Write it when its turn comes. Never waits, whoever calls."""
        with self._change:
            if self._closing or len(line) > self._room:
                self.dropped += 1
                return
            self._room -= len(line)
            self._lines.append(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="log", daemon=True)
                self._thread.start()
            if len(self._lines) == 1:
                self._change.notify()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Take no more, and wait for so long until what waits is written."""
        with self._change:
            self._closing = True
            self._ending.set()
            self._change.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _work(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._lines or self._closing)
            # Lines that come together are written together: each wake costs whoever logs more than its line.
            self._ending.wait(self._gather_s)
            with self._change:
                lines, self._lines = self._lines, []
            if not lines:
                return
            text = "".join(lines)
            written = self._write(text.encode("utf-8", "backslashreplace"))
            with self._change:
                self._room += len(text)
                self.dropped += 0 if written else len(lines)

    def _write(self, data: bytes) -> bool:
        # Not through sys.stdout: its lock would hold the process at its end while nobody reads the pipe.
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:  # the reader has left, or the disk is full: there is nobody to tell
            return False
        return True


class WriterHandler(logging.Handler):
    """Makes lines where they are logged, and leaves the writing to a LineWriter."""

    def __init__(self, writer: LineWriter, formatter: logging.Formatter) -> None:
        super().__init__()
        self._writer = writer
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        self._writer.put(self.format(record) + "\n")


class JsonFormatter(logging.Formatter):
    """One JSON object: time (UTC), level, logger, message, and the fields of a request that has ended."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:MAX_TEXT],
        }
        fields |= getattr(record, "request", {})
        if record.exc_info and record.exc_info[0] is not None:
            fields["exception"] = self.formatException(record.exc_info)[-MAX_TEXT:]
        return json.dumps(fields, separators=(",", ":"))


class AccessLog:
    """Writes a line for each request that has ended (request_record.Reader)."""

    def __call__(self, record: RequestRecord, scope: Scope) -> None:
        # As uvicorn writes them, so that who reads such lines can read these. The status stands last: by it
        # log_limit knows the lines that it bounds.
        access_logger.info(
            '%s - "%s %s HTTP/%s" %d',
            record.client,
            record.method,
            record.path,
            record.http_version,
            record.status,
            extra={"request": fields_of(record)},
        )


def fields_of(record: RequestRecord) -> dict[str, Any]:
    """What a line of JSON says of a request; what was not reached is left out."""
    fields: dict[str, Any] = {
        "request_id": record.request_id,
        "client": record.client,
        "method": record.method,
        "path": record.path,
        "route": record.route,
        "status": record.status,
        "duration_s": round(record.duration_s, 6),
    }
    if not record.whole:
        fields["cut"] = True
    if record.model:
        fields |= {
            "model": record.model,
            "response_id": record.answer_id,
            "prompt_tokens": record.prompt_tokens,
            "cached_tokens": record.cached_tokens,
            "completion_tokens": record.completion_tokens,
            "finish_reasons": sorted(set(record.reasons)),
        }
        fields |= {f"{name}_s": round(seconds, 6) for name, seconds in record.spans().items()}
    return {name: value for name, value in fields.items() if value not in ("", [])}


class ServerLogs:
    """How a server logs, from __enter__ to __exit__.

    Args:
        access: a line for each request, on standard output.
        as_json: every line of the process is JSON; what is no request's goes to standard error, as ever.
        outputs: descriptors of both, for tests.
    """

    def __init__(
        self, access: bool = False, as_json: bool = False, outputs: tuple[int, int] = (1, 2)
    ) -> None:
        self.access, self.as_json = access, as_json
        self._out, self._err = LineWriter(outputs[0], gather_s=GATHER_S), LineWriter(outputs[1])
        self._handlers: list[tuple[logging.Logger, logging.Handler]] = []

    @property
    def dropped(self) -> int:
        """Lines that were not written."""
        return self._out.dropped + self._err.dropped

    def __enter__(self) -> ServerLogs:
        lines = JsonFormatter() if self.as_json else logging.Formatter("INFO:     %(message)s")
        if self.access:
            self._handlers.append((access_logger, WriterHandler(self._out, lines)))
            access_logger.setLevel(logging.INFO)
            access_logger.propagate = False
        if self.as_json:
            self._handlers.append((logging.getLogger(), WriterHandler(self._err, lines)))
            logging.captureWarnings(True)
        for logger, handler in self._handlers:
            logger.addHandler(handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for logger, handler in self._handlers:
            logger.removeHandler(handler)
        if self.as_json:
            logging.captureWarnings(False)
        self._handlers.clear()
        for writer in (self._out, self._err):
            writer.close()
