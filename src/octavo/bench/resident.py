"""Resident memory of a process, and its peak since one asked (Linux's /proc; elsewhere since start)."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path


def resident_bytes(pid: int | None = None) -> int:
    """What the process holds in memory now (VmRSS); this one by default."""
    return _status("VmRSS", pid)


def anonymous_bytes(pid: int | None = None) -> int:
    """What of it is no file's (RssAnon): pages that the system could not drop."""
    return _status("RssAnon", pid)


def peak_bytes(pid: int | None = None) -> int:
    """The most that it has held since reset_peak(), or since it started."""
    return _status("VmHWM", pid)


def reset_peak() -> None:
    """Let peak_bytes() of this process count from now on, where the system can."""
    with suppress(OSError):  # not Linux, or a sandbox: the peak since start is what there is
        Path("/proc/self/clear_refs").write_text("5")


def _status(field: str, pid: int | None) -> int:
    """A line of /proc/<pid>/status, in bytes."""
    path = Path(f"/proc/{pid or os.getpid()}/status")
    try:
        for line in path.read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        if pid is not None:
            raise
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
