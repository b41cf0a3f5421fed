"""What the system says of memory, and how quickly pages are copied."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from octavo.kernels.ops import KVCache, LateCopies
from octavo.kernels.split_kv import SplitKVCache, parts_of
from octavo.runtime.hardware import cgroup_folders


def seconds_to_copy(kv: KVCache, block: int) -> float:
    """What copying a page takes: to a block and back, the quickest of a few times.

    Where layers with a window have pages of their own, a sliding page is copied with it.
    """
    blocks = (block, kv.first_swap) if isinstance(kv, SplitKVCache) else (block,)
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        for part, at in zip(parts_of(kv), blocks, strict=True):
            part.copy_pages([(0, at)])
            part.copy_pages([(at, 0)])
            if isinstance(part, LateCopies):
                part.wait()
        best = min(best, (time.perf_counter() - begin) / 2)
    return best


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may still take: the system's, within the limits of cgroups and `ulimit -v`."""
    free = _system_available(root)
    for folder in cgroup_folders(root):
        limit = _cgroup_number(folder, ("memory.max", "memory/memory.limit_in_bytes"))
        used = _cgroup_number(folder, ("memory.current", "memory/memory.usage_in_bytes"))
        if limit is not None and used is not None:
            free = min(free, max(limit - used, 0))
    left = _address_space(root)
    return free if left is None else min(free, left)


def _address_space(root: Path) -> int | None:
    """Bytes of addresses that RLIMIT_AS leaves; None: it is not set, or what is used is not known."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        pages = int((root / "proc/self/statm").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return max(limit - pages * os.sysconf("SC_PAGE_SIZE"), 0)


def _system_available(root: Path) -> int:
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux: ask POSIX for what it knows
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _cgroup_number(folder: Path, names: tuple[str, ...]) -> int | None:
    for name in names:
        try:
            text = (folder / name).read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None  # "max": no limit
    return None
