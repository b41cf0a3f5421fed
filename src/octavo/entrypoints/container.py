"""What the image starts: `octavo`, or where flags come first `octavo serve` for whoever maps its port.

    docker run -p 8080:80 -v DIR:/data IMAGE --model-id M         serves M on port 80
    docker run IMAGE plan M                                       any other command
    python -m octavo.entrypoints.container --healthy              asks the server in this container

The port is --port's, else the variable PORT's, else 80. The address is all of the container's, unless --host,
--hostname or --uds say otherwise.
"""

from __future__ import annotations

import os
import ssl
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from octavo.cli import main
from octavo.errors import InvalidRequestError

PORT = 80
MODULE = "octavo.entrypoints.container"
COMMAND_LINE = Path("/proc/1/cmdline")
"""Of the container's first process: the server, or the one that waits for it and names it."""


def command_of(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The words after `octavo`.

    Raises:
        InvalidRequestError: PORT is no port.
    """
    if words and not words[0].startswith("-"):
        return list(words)
    return ["serve", *words, *_defaults(words, environment)]


def _defaults(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    said = {word.partition("=")[0] for word in words}
    if said & {"--uds", "--help", "-h"}:
        return []
    host = [] if said & {"--host", "--hostname"} else ["--host", "0.0.0.0"]
    return [*host, *([] if "--port" in said else ["--port", str(port_of(words, environment))])]


def port_of(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Where a server listens that was started with these words after the image's name.

    Raises:
        InvalidRequestError: PORT is no port.
    """
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == "--port":
            found = value if equals else "".join(words[place + 1 : place + 2])
            return int(found) if found.isdigit() else PORT
    given = environment.get("PORT") or str(PORT)
    if not given.isdigit() or not 0 < int(given) < 65536:
        raise InvalidRequestError(f"the variable PORT must be a port from 1 to 65535, not {given[:40]!r}")
    return int(given)


def unwritable(folder: str) -> str | None:
    """Why models cannot be kept there; None: they can."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        why = f"{folder} cannot be written by user {os.getuid()} ({error.strerror})"
        return f"{why}: a model that lies there is served, none is pulled"


def healthy(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Exit status: 0 where the server that was started with these words says that it is ready."""
    secure = any(word.partition("=")[0] == "--ssl-certfile" for word in words)
    try:
        url = f"{'https' if secure else 'http'}://127.0.0.1:{port_of(words, environment)}/ready"
        # The certificate has the name that others know, and nobody stands between.
        context = ssl._create_unverified_context() if secure else None
        with urllib.request.urlopen(url, timeout=4, context=context) as answer:
            return 0 if answer.status == 200 else 1
    except (OSError, InvalidRequestError):
        return 1


def started_with(command_line: bytes) -> list[str]:
    """The words after the image's name, of a process's command line."""
    every = command_line.decode(errors="replace").split("\0")[:-1]
    return every[every.index(MODULE) + 1 :] if MODULE in every else []


def start(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run what was asked for; the exit status."""
    try:
        command = command_of(words, environment)
    except InvalidRequestError as error:
        print(f"octavo: error: {error}", file=sys.stderr)
        return 2
    folder = environment.get("XDG_CACHE_HOME", "")
    if command[:1] == ["serve"] and folder and (why := unwritable(folder)) is not None:
        print(f"octavo: warning: {why}", file=sys.stderr)
    return main(command)


if __name__ == "__main__":
    if sys.argv[1:] == ["--healthy"]:
        raise SystemExit(healthy(started_with(COMMAND_LINE.read_bytes()), os.environ))
    raise SystemExit(start(sys.argv[1:], os.environ))
