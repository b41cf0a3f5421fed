"""Servers that `octavo bench compare` starts: each file of this folder that holds a PEER is a kind of them.

A kind says where its program is looked for, which models it reads, and the command that serves one. What is
not installed, or does not read the model, is no server; why not is what compare prints of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import pkgutil
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from octavo.bench.wire import Wire
from octavo.checkpoints.sources import resolve
from octavo.errors import InvalidRequestError, OctavoError

END_S = 30.0
"""That a server may take to end when it is asked to."""
PAUSE_S = 0.2
"""Between two questions whether it answers."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A kind of server.

    Attributes:
        program: its command's name, looked for beside this Python and on the PATH.
        gguf, folders: whether it reads such models.
        command: (program, model, port) -> the command, which listens on 127.0.0.1.
    """

    name: str
    program: str
    gguf: bool
    folders: bool
    command: Callable[[str, str, int], list[str]]


def find() -> dict[str, Peer]:
    """Every kind by its name."""
    files = [importlib.import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]
    return {file.PEER.name: file.PEER for file in files}


def installed(program: str) -> str | None:
    """Where a program is; None: nowhere."""
    beside = shutil.which(program, path=str(Path(sys.executable).parent))
    return beside or shutil.which(program)


def command_of(
    peer: Peer, model: str, port: int, program: str | None = None, flags: Sequence[str] = ()
) -> list[str]:
    """The command that serves a model: an alias and a hub id are pulled.

    Args:
        program: another place of it. flags: more of its own.

    Raises:
        OctavoError: it is not installed, does not read the model, or there is no such model.
    """
    place = installed(program or peer.program)
    if place is None:
        where = "" if program else f": --program {peer.name}=PATH says where it is"
        raise OctavoError(f"{program or peer.program} is not installed here{where}")
    path = resolve(model)
    if path.suffix == ".gguf" and not peer.gguf:
        raise OctavoError(f"{peer.name} reads no GGUF file, which {model} is")
    if path.suffix != ".gguf" and not peer.folders:
        raise OctavoError(f"{peer.name} reads GGUF files alone, and {model} is none")
    return [*peer.command(place, str(path), port), *flags]


class Running:
    """A server that was started, until close().

    Attributes:
        url: http://127.0.0.1:port.
    """

    def __init__(self, process: asyncio.subprocess.Process, port: int, said: IO[str]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._process, self._said = process, said

    async def ready(self, timeout_s: float) -> None:
        """Wait until it lists its models.

        Raises:
            OctavoError: it ended, or takes longer; the message has the last line that it wrote.
        """
        wire = Wire(self.url)
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while loop.time() < end:
            if self._process.returncode is not None:
                raise OctavoError(f"it ended with status {self._process.returncode}: {self.last_line()}")
            with contextlib.suppress(OctavoError, OSError, asyncio.IncompleteReadError, TimeoutError):
                async with asyncio.timeout(max(end - loop.time(), PAUSE_S)):
                    await wire.whole("GET", "/v1/models")
                return
            await asyncio.sleep(PAUSE_S)
        raise OctavoError(f"it was not ready within {timeout_s:g} s: {self.last_line()}")

    def last_line(self) -> str:
        """Of what it wrote."""
        self._said.seek(0)
        return (self._said.read().strip().splitlines() or ["no message"])[-1][:200]

    async def close(self) -> None:
        """End it: politely, then not."""
        if self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), END_S)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        self._said.close()


async def start(command: Sequence[str], port: int) -> Running:
    """Run a server's command.

    Raises:
        OctavoError: it cannot be run.
    """
    said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - a pipe would fill up; closed by close()
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
        )
    except OSError as error:
        said.close()
        raise OctavoError(f"{command[0]} cannot be run: {error.strerror}") from None
    return Running(process, port, said)


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kind_of(name: str) -> Peer:
    """
    Raises:
        InvalidRequestError: there is none of this name; the message has those that there are.
    """
    every = find()
    if name not in every:
        raise InvalidRequestError(f"compare starts {', '.join(every)}, and not {name!r}")
    return every[name]
