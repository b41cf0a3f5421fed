"""ContentHash: what a checkpoint holds, as one number, found beside loading it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable

from octavo.checkpoints.base import Checkpoint, MappedFile

SLICE_BYTES = 4 << 20


def hash_files(said: bytes, files: Iterable[MappedFile]) -> str:
    """SHA-256, hexadecimal, over `said` and all bytes of these files, each after its length.

    What has been read is given back to the system, as the loader does with what it has packed.
    """
    digest = hashlib.sha256(said)
    for file in files:
        digest.update(b"%d " % file.size)
        with memoryview(file.raw) as view:
            for start in range(0, file.size, SLICE_BYTES):
                stop = min(start + SLICE_BYTES, file.size)
                digest.update(view[start:stop])
                file.release(start, stop)
    return digest.hexdigest()


class ContentHash:
    """Checkpoint.content_hash(), by a thread of its own: hashing leaves the interpreter to others."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._found: str | Exception = ""

        def compute() -> None:
            try:
                self._found = checkpoint.content_hash()
            except Exception as error:
                self._found = error

        self._thread = threading.Thread(target=compute, name="octavo-hash", daemon=True)
        self._thread.start()

    def result(self) -> str:
        """Wait for it.

        Raises:
            CheckpointError: the checkpoint was closed before.
        """
        self._thread.join()
        if isinstance(self._found, Exception):
            raise self._found
        return self._found
