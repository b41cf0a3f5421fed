"""A model hub on loopback: what huggingface_hub asks for, with interruptions, tokens and gates."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = hashlib.sha1(b"the only commit").hexdigest()


@dataclass
class SmallHub:
    """Repositories, and how they answer.

    Attributes:
        repositories: id -> file name -> content.
        private: ids that are there for `token` only. gated: ids whose conditions nobody accepted.
        cut: file name -> the bytes after which a connection breaks, once.
        served: (file, first byte, bytes sent), in order.
        revisions: names of the only commit.
        spoiled: file name -> other bytes that are sent for it, under the right name and hash.
        large: ends of names of files whose SHA-256 the hub names.
    """

    repositories: dict[str, dict[str, bytes]]
    private: set[str] = field(default_factory=set)
    gated: set[str] = field(default_factory=set)
    token: str = "secret"
    cut: dict[str, int] = field(default_factory=dict)
    served: list[tuple[str, int, int]] = field(default_factory=list)
    revisions: tuple[str, ...] = ("main", "v1")
    spoiled: dict[str, bytes] = field(default_factory=dict)
    large: tuple[str, ...] = (".safetensors", ".gguf")
    url: str = ""

    def bytes_of(self, name: str) -> int:
        return sum(sent for file, _, sent in self.served if file == name)


@contextmanager
def running(hub: SmallHub) -> Iterator[SmallHub]:
    """The hub, listening at hub.url until the end of the block."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: SmallHub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(False)

    def do_GET(self) -> None:
        self._answer(True)

    def _answer(self, body: bool) -> None:
        parts = self.path.split("?")[0].strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        parts = parts[2:] if api else parts
        name, rest = "/".join(parts[:2]), parts[2:]
        files = self.hub.repositories.get(name)
        allowed = name not in self.hub.private or (
            self.headers.get("Authorization") == f"Bearer {self.hub.token}"
        )
        if files is None or not allowed:
            return self._refuse(401 if files is not None else 404, "RepoNotFound")
        revision = rest[1] if len(rest) > 1 else "main"
        if revision not in (*self.hub.revisions, COMMIT):
            return self._refuse(404, "RevisionNotFound")
        if api:
            siblings = [self._sibling(file, data) for file, data in files.items()]
            return self._send(json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode(), body)
        if name in self.hub.gated:
            return self._refuse(403, "GatedRepo")
        file = "/".join(rest[2:])
        if file not in files:
            return self._refuse(404, "EntryNotFound")
        return self._file(file, files[file], body)

    def _sibling(self, name: str, data: bytes) -> dict[str, object]:
        found: dict[str, object] = {"rfilename": name, "size": len(data)}
        if name.endswith(self.hub.large):
            digest = hashlib.sha256(data).hexdigest()
            found["lfs"] = {"size": len(data), "sha256": digest, "pointerSize": 130}
        return found

    def _file(self, name: str, data: bytes, body: bool) -> None:
        span = self.headers.get("Range", "")
        first = int(span.removeprefix("bytes=").split("-")[0]) if span else 0
        self.send_response(206 if span else 200)
        self.send_header("Content-Length", str(len(data) - first))
        if span:
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if not body:
            return
        stop = first + self.hub.cut.pop(name) if name in self.hub.cut else len(data)
        self.hub.served.append((name, first, len(data[first:stop])))  # before whoever asks may go on
        self.wfile.write(self.hub.spoiled.get(name, data)[first:stop])
        self.close_connection = True

    def _send(self, data: bytes, body: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()
