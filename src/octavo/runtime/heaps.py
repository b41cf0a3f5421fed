"""glibc's heaps: what a process has freed, and how it goes back to the system."""

from __future__ import annotations

import contextlib
import ctypes
import sys

_M_ARENA_MAX = -8


def return_freed() -> None:
    """Give what this process has freed back to the system.

    glibc keeps it for later: after the tokenizer of 262k words that is 68 MB, which nothing asks for again.
    Takes 3 to 8 ms. Does nothing where the C library is another one.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def share_heaps(most: int = 1) -> None:
    """Let threads started from now on share so many heaps of glibc's.

    It gives each of the first threads one of its own, and malloc_trim() gives back the free end of the first
    heap alone: megabytes a thread stay, 60 in all after texts were encoded in eight of them. Does nothing
    where the C library is another one. mallopt(3).
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, most)
