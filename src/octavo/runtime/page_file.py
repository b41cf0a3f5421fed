"""PrefixFile: the file in which pages of the prefix cache outlive the process. An engine PageFile.

    [header | table: one record a block | block 0 | block 1 | ...]      sparse: it grows as blocks are used

Little-endian. The header names the format, the model with all that its pages' bits depend on, and the sizes.
A record is a key, how recently it was used, a checksum of key and page, and one of the record itself: a page
that was half written when the power went, or belongs to another key by now, is not taken for whole.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import stat
import struct
import threading
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from octavo.errors import CapacityError, InvalidRequestError

logger = logging.getLogger("octavo.prefix_cache")

FILE_NAME = "prefix-cache.octavo"
MAGIC, VERSION = b"OCTAVOKV", 1
HEADER = struct.Struct("<8sI32sQQI")  # magic, version, hash of what made the pages, bytes, blocks, CRC-32
RECORD = struct.Struct("<32sQII")  # key, order of use from 1, CRC-32 of key and page, CRC-32 of the record
HEADER_BYTES = 4096
MAX_ORDER = 2**63
"""An order of use beyond that is a made-up one: the next would not fit its field."""
SAVING_BYTES = 64 * 2**20
"""Memory that pages may take while they wait to be written."""

U8 = npt.NDArray[np.uint8]
Stored = Sequence[tuple[bytes, int]]


class PrefixFile:
    """Blocks of page_bytes each. A thread of its own writes them, and fetches what the runner will read.

    Nothing is mapped, so that a full disk and a file that somebody cuts are errors and no signals. The first
    error of writing is logged and ends writing; reading goes on. Made by open().

    Attributes:
        path: the file, locked by this process until close().
    """

    def __init__(self, path: Path, fd: int, page_bytes: int, num_blocks: int) -> None:
        self.path = path
        self._fd, self._page_bytes, self._num_blocks = fd, page_bytes, num_blocks
        self._first = HEADER_BYTES + num_blocks * RECORD.size
        self._uses = 0  # the highest order of use in the table
        self._stored = self._read_table()
        self._scratch = bytearray(page_bytes)
        self._full = self._warned = self._closed = False
        # Under this condition: jobs, news.
        self._wake = threading.Condition()
        self._reads: deque[Callable[[], None]] = deque()
        self._writes: deque[Callable[[], None]] = deque()
        self._working = False
        self._news: list[tuple[int, bool]] = []
        self._thread = threading.Thread(target=self._work, name="octavo-pages", daemon=True)
        self._thread.start()

    @staticmethod
    def open(
        folder: str, made_by: Mapping[str, object], page_bytes: int, num_bytes: int
    ) -> PrefixFile | None:
        """The file in this folder, made if need be. None, and a line in the log: it cannot be used now.

        What is there and not this user's own plain file of pages is neither used nor touched: the folder may
        be one where others write.

        Args:
            made_by: what the pages' bits depend on; a file of anything else is made anew.
            num_bytes: the file's bound.

        Raises:
            InvalidRequestError: the folder is something else.
            CapacityError: so few bytes hold no page.
        """
        num_blocks = (num_bytes - HEADER_BYTES) // (page_bytes + RECORD.size)
        if num_blocks < 1:
            least = HEADER_BYTES + page_bytes + RECORD.size
            raise CapacityError(
                f"prefix_cache_disk_space of {num_bytes} bytes holds no page; one needs {least} bytes"
            )
        path = Path(folder)
        digest = hashlib.sha256(json.dumps(made_by, sort_keys=True).encode()).digest()
        fd = -1
        try:
            check_folder(folder)
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path /= FILE_NAME
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
            _check_owned(fd)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _prepare(path, fd, digest, page_bytes, num_blocks)
            return PrefixFile(path, fd, page_bytes, num_blocks)
        except BlockingIOError:
            why = "another process uses it"
        except OSError as error:
            why = "it is a link" if error.errno == errno.ELOOP else error.strerror or str(error)
        logger.warning("%s: %s: the prefix cache does without a disk", path, why)
        if fd >= 0:
            os.close(fd)
        return None

    # --- for the engine -------------------------------------------------------------------------------

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def max_saving(self) -> int:
        return 0 if self._full else max(SAVING_BYTES // self._page_bytes, 8)

    def stored(self) -> Stored:
        return self._stored

    def reload(self) -> None:
        """Finish what is on its way and forget the news of it; stored() is what the file holds then."""
        with self._wake:
            self._wake.notify_all()  # whoever put the last job there may have been interrupted before that
        self.wait()
        while self.news():
            self.wait()
        self._stored = self._read_table()

    def fetch(self, key: bytes, block: int) -> None:
        self._do(self._reads, block, lambda: self._is_whole(key, block))

    def news(self) -> list[tuple[int, bool]]:
        with self._wake:
            news, self._news = self._news, []
        return news

    def wait(self) -> None:
        with self._wake:
            self._wake.wait_for(lambda: self._news or not (self._reads or self._writes or self._working))

    def clear(self) -> None:
        self._do(self._writes, None, self._clear_table)

    def close(self, stored: Stored) -> None:
        """Write down the order of use and let go of the file."""
        self._do(self._writes, None, lambda: self._write_order(stored))
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        self._thread.join()
        os.close(self._fd)

    # --- for the runner -------------------------------------------------------------------------------

    def save(self, key: bytes, block: int, page: U8) -> None:
        """Write a page, beside the caller. It must not change any more."""
        self._do(self._writes, block, lambda: self._write(key, block, page.data))

    def page(self, block: int) -> U8:
        """A block's bytes, [page_bytes]; fetched before, so the system has them in memory."""
        page = np.empty(self._page_bytes, np.uint8)
        if os.preadv(self._fd, [page.data], self._at(block)) != self._page_bytes:
            raise OSError(f"{self.path} was cut by somebody else")
        return page

    # --- the thread's ---------------------------------------------------------------------------------

    def _do(
        self, queue: deque[Callable[[], None]], block: int | None, job: Callable[[], bool | None]
    ) -> None:
        """Let the thread do a job, which says whether the block is good."""

        def run() -> None:
            good = False
            try:
                good = bool(job())
            except BaseException as error:  # a thread that died would leave whoever waits for it waiting
                self._warn(error)
            finally:
                if block is not None:
                    with self._wake:
                        self._news.append((block, good))

        with self._wake:
            queue.append(run)
            self._wake.notify_all()

    def _work(self) -> None:
        """Reads first: a request waits for them."""
        while True:
            with self._wake:
                self._working = False
                self._wake.notify_all()
                self._wake.wait_for(lambda: self._reads or self._writes or self._closed)
                if not (self._reads or self._writes):
                    return
                job = (self._reads or self._writes).popleft()
                self._working = True
            job()

    def _warn(self, error: BaseException) -> None:
        if not self._full:
            self._full = True
            disk = error.strerror or str(error) if isinstance(error, OSError) else ""
            why = disk or f"{type(error).__name__}: {error}"
            logger.warning("%s: %s: no more pages are saved to disk", self.path, why, exc_info=not disk)

    def _write(self, key: bytes, block: int, page: memoryview) -> bool:
        if self._full:
            return False
        self._uses += 1
        _write_at(self._fd, page, self._at(block))
        _write_at(
            self._fd, _record(key, self._uses, _checksum(key, page)), HEADER_BYTES + block * RECORD.size
        )
        return True

    def _is_whole(self, key: bytes, block: int) -> bool:
        """Read record and page as they are on disk, which brings the page into memory for page()."""
        why = "a page is damaged"
        try:
            record = _parsed(os.pread(self._fd, RECORD.size, HEADER_BYTES + block * RECORD.size))
            count = os.preadv(self._fd, [self._scratch], self._at(block))
            if record is not None and count == self._page_bytes:
                checksum = _checksum(key, self._scratch)
                if (record[0], record[2]) == (key, checksum):
                    return True
        except OSError as error:
            why = error.strerror or str(error)
        if not self._warned:
            self._warned = True
            logger.warning("%s: %s: it is computed anew, and so are others like it", self.path, why)
        return False

    def _clear_table(self) -> None:
        _write_at(self._fd, bytes(self._num_blocks * RECORD.size), HEADER_BYTES)

    def _write_order(self, stored: Stored) -> None:
        """Records hold the order in which blocks were written; from now on that of their use."""
        table = bytearray(self._num_blocks * RECORD.size)
        old = os.pread(self._fd, len(table), HEADER_BYTES)
        for order, (key, block) in enumerate(stored, 1):
            at = block * RECORD.size
            record = _parsed(old[at : at + RECORD.size])
            if record is not None and record[0] == key:
                table[at : at + RECORD.size] = _record(key, order, record[2])
        _write_at(self._fd, table, HEADER_BYTES)

    def _read_table(self) -> Stored:
        found: dict[bytes, tuple[int, int]] = {}
        table = os.pread(self._fd, self._num_blocks * RECORD.size, HEADER_BYTES)
        for block in range(len(table) // RECORD.size):
            record = _parsed(table[block * RECORD.size : (block + 1) * RECORD.size])
            if record is not None and record[1] > found.get(record[0], (0, 0))[0]:
                found[record[0]] = record[1], block
        self._uses = max((order for order, _ in found.values()), default=0)
        return [(key, block) for key, (_, block) in sorted(found.items(), key=lambda item: item[1])]

    def _at(self, block: int) -> int:
        return self._first + block * self._page_bytes


def check_folder(folder: str) -> None:
    """Raise InvalidRequestError if something else lies where the folder should be."""
    for path in (Path(folder), *Path(folder).parents):
        if path.exists():
            if not path.is_dir():
                raise InvalidRequestError(
                    f"prefix_cache_dir {folder} is not a folder"
                    + (f": {path} is a file" if path != Path(folder) else ""),
                    "prefix_cache_dir",
                )
            return


def _check_owned(fd: int) -> None:
    """Raise OSError unless this is a plain file of this user's that no other name leads to."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is no plain file")
    if found.st_uid != os.geteuid():
        raise OSError("it belongs to another user")
    if found.st_nlink != 1:
        raise OSError("it has another name too (a hard link)")


def _prepare(path: Path, fd: int, digest: bytes, page_bytes: int, num_blocks: int) -> None:
    """Leave a file as it is if it is this one; otherwise make it anew, and say why.

    At every moment the file begins with MAGIC, so that the next start knows it for Octavo's own.

    Raises:
        OSError: it is somebody's, and stays as it is.
    """
    size = HEADER_BYTES + num_blocks * (RECORD.size + page_bytes)
    said = HEADER.pack(MAGIC, VERSION, digest, page_bytes, num_blocks, 0)[:-4]
    wanted = said + struct.pack("<I", zlib.crc32(said))
    found, status = os.pread(fd, HEADER.size, 0), os.fstat(fd)
    length, written_by_others = status.st_size, status.st_mode & 0o022
    if length and found[: len(MAGIC)] != MAGIC:
        raise OSError("it is no file of Octavo's prefix cache and stays as it is")
    if status.st_mode & 0o077:
        os.fchmod(fd, 0o600)
    if found == wanted and length == size and not written_by_others:
        return
    if length:
        why = "others may have written to it" if written_by_others else _why_not(found, digest, length)
        logger.warning("%s: %s: it is made anew", path, why)
        os.ftruncate(fd, len(MAGIC))
    _write_at(fd, wanted, 0)
    os.ftruncate(fd, size)


def _why_not(found: bytes, digest: bytes, length: int) -> str:
    if len(found) < HEADER.size:
        return "the file is cut off"
    _, version, made_by, page_bytes, num_blocks, checksum = HEADER.unpack(found)
    if version != VERSION:
        return f"the file has version {version}, not {VERSION}"
    if checksum != zlib.crc32(found[:-4]):
        return "the header is damaged"
    if made_by != digest:
        return "the file is of another model, or of other settings or kernels"
    if length != HEADER_BYTES + num_blocks * (RECORD.size + page_bytes):
        return "the file is cut off"
    return "prefix_cache_disk_space has changed"


def _checksum(key: bytes, page: memoryview | bytearray) -> int:
    return zlib.crc32(page, zlib.crc32(key))


def _record(key: bytes, order: int, checksum: int) -> bytes:
    said = RECORD.pack(key, order, checksum, 0)[:-4]
    return said + struct.pack("<I", zlib.crc32(said))


def _parsed(record: bytes) -> tuple[bytes, int, int] | None:
    """Key, order of use and checksum of a record; None: it is empty or damaged."""
    if len(record) < RECORD.size:
        return None
    key, order, checksum, own = RECORD.unpack(record)
    whole = 0 < order < MAX_ORDER and own == zlib.crc32(record[:-4])
    return (key, order, checksum) if whole else None


def _write_at(fd: int, data: memoryview | bytes | bytearray, at: int) -> None:
    """All of it; the system may take it in parts."""
    left = memoryview(data)
    while left:
        count = os.pwrite(fd, left, at)
        left, at = left[count:], at + count
