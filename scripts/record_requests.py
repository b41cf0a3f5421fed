"""Record what clients send, without what they say: tests hold the shapes of their requests.

record_requests.py http://127.0.0.1:8000 FILE.json.gz      listen on a free port and pass on, until Ctrl-C

Field names, types, roles, sizes and nesting stay. Texts become filler of the same length, for they are the
makers' own; ids of machines and sessions become zeros. Of equal requests one is kept.
"""

from __future__ import annotations

import gzip
import http.client
import json
import re
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

WORD = re.compile(r"[\w:./@{}$+-]{0,64}")
"""A text that is no prose: a name, a type, an id."""
UNIQUE = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}|[0-9a-f]{24,}")
OURS = ("arguments",)
"""Members whose text is the scripted engine's own call, and must stay JSON."""
MOST_BYTES = 200_000
"""Of a body; larger ones try how long a prompt may be."""
KEPT = ("anthropic-version", "user-agent")
PASSED = ("authorization", "x-api-key", "content-type", "accept", *KEPT)


def filler(size: int) -> str:
    """So many characters that say nothing."""
    return ("lorem ipsum " * (size // 12 + 1))[:size]


def shape(value: Any, name: str = "") -> Any:
    """A JSON value without what it says."""
    if isinstance(value, dict):
        return {key: shape(member, key) for key, member in value.items()}
    if isinstance(value, list):
        return [shape(member, name) for member in value]
    if not isinstance(value, str) or name in OURS:
        return value
    if not WORD.fullmatch(value):
        return filler(len(value))
    return UNIQUE.sub(lambda found: re.sub("[0-9a-f]", "0", found[0]), value)


class Recorder:
    """Requests so far, each once.

    Attributes:
        upstream: (host, port) of the server that answers.
    """

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self.upstream = parts.hostname or "127.0.0.1", parts.port or 80
        self._found: dict[str, dict[str, Any]] = {}

    def note(self, method: str, path: str, headers: Any, body: bytes) -> None:
        kept = {name: headers[name] for name in KEPT if name in headers}
        if "user-agent" in kept:
            kept["user-agent"] = kept["user-agent"].split(" ")[0]
        found = {"method": method, "path": path, "headers": kept}
        if len(body) > MOST_BYTES:
            return
        if body:
            found["body"] = shape(json.loads(body))
        self._found[json.dumps(found, sort_keys=True)] = found

    def write(self, file: Path) -> int:
        """How many requests the file has now; earlier ones stay."""
        if file.exists():
            for each in json.loads(gzip.decompress(file.read_bytes())):
                self._found.setdefault(json.dumps(each, sort_keys=True), each)
        every = [self._found[key] for key in sorted(self._found)]
        file.write_bytes(gzip.compress(json.dumps(every).encode(), mtime=0))
        return len(every)


def handler(recorder: Recorder) -> type[BaseHTTPRequestHandler]:
    """Passes on what it is asked, and notes it."""

    class Handler(BaseHTTPRequestHandler):
        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            recorder.note(self.command, self.path.partition("?")[0], self.headers, body)
            connection = http.client.HTTPConnection(*recorder.upstream, timeout=120)
            headers = {name: self.headers[name] for name in PASSED if name in self.headers}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            data = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            connection.close()

        do_GET = do_POST = do_DELETE = _pass_on  # noqa: N815 (http.server's names)

        def log_message(self, format: str, *words: Any) -> None:
            pass

    return Handler


def main(upstream: str, file: str) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    recorder = Recorder(upstream)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(recorder))
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print(f"{recorder.write(Path(file))} requests in {file}")


if __name__ == "__main__":
    main(*sys.argv[1:])
