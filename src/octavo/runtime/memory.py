"""Memory planning: how many pages fit. The code that plans is the code that allocates."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from octavo.errors import CapacityError
from octavo.kernels.ops import Backend, KVCache, KVSpec, LateCopies
from octavo.kernels.split_kv import SplitKVCache, parts_of
from octavo.models.registry import Model
from octavo.runtime.division import LocalNeed, divide

CPU_SHARE = 0.25
"""Share of free memory that pages may take on a CPU when nobody says otherwise."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What will be allocated, in bytes, and how many pages that is.

    Attributes:
        bytes_per_token: of all layers. local: what those with a window need, where they have pages of their
            own: num_local_pages, of which pages own one each while it is seen.
    """

    weights: int
    kv_cache: int
    free: int
    num_pages: int
    page_size: int
    bytes_per_token: int
    num_swap_pages: int = 0
    num_local_pages: int = 0
    local: LocalNeed | None = None

    @property
    def swap_space(self) -> int:
        return self.num_swap_pages * self.page_size * self.bytes_per_token

    @property
    def num_tokens(self) -> int:
        return self.num_pages * self.page_size


def page_specs(model: Model, backend: Backend, dtype: str, asked: bool) -> list[KVSpec]:
    """What a model's layers store: dtype, or what the backend chooses where nobody asked for it.

    A latent that nobody chose a type for keeps float16 where others keep int16: its one scale is that of a
    key of several hundred dimensions, by which its values would lose more than float16 does.
    """
    if asked or backend.kv_dtype is None:
        return list(model.kv_specs(dtype))
    specs = model.kv_specs(backend.kv_dtype)
    return [replace(s, dtype="f16") if s.latent and s.dtype == "int16" else s for s in specs]


def plan_memory(
    specs: Sequence[KVSpec],
    weights: int,
    max_model_len: int,
    max_num_seqs: int,
    page_size: int,
    num_pages: int | None,
    share: float | None,
    free: int | None = None,
    swap_gib: float = 0.0,
    system: int | None = None,
    local: LocalNeed | None = None,
    num_local_pages: int | None = None,
) -> MemoryPlan:
    """Pages for max_num_seqs requests of max_model_len, if that fits in share of what is free.

    Args:
        num_pages: exactly this many, if given.
        share: 0..1 of the free bytes; None is CPU_SHARE.
        free: bytes that are free, weights loaded already; None asks the system.
        swap_gib: GiB of the swap space, which pages and it must share what is free.
        system: free bytes of the system's memory, where pages lie in another one; the swap space is there.
        local: what layers with a window need, where they have pages of their own; num_local_pages: exactly
            this many, if given.

    Raises:
        CapacityError: not even one page fits.
    """
    free = available_memory() if free is None else free
    per_token = sum(spec.bytes_per_token for spec in specs)
    longest, page = -(-max_model_len // page_size), page_size * per_token
    swap = _swapped_pages(swap_gib, page, free if system is None else system)
    if system is None:
        free -= swap * page
    room = int(free * (CPU_SHARE if share is None else share)) if num_pages is None else free
    wanted, local_page, local_pages = max_num_seqs * longest, 0, 0
    if local is None:
        pages = min(wanted, room // page) if num_pages is None else num_pages
    else:
        local_page = page_size * local.bytes_per_token
        local = local.exactly(num_local_pages)
        pages, local_pages = divide(room, page - local_page, local_page, local, longest, wanted, num_pages)
    size = pages * (page - local_page) + local_pages * local_page
    if num_pages is not None and size > free:
        raise CapacityError(
            f"num_pages {num_pages} needs {size} bytes; {free} are free, enough for {free // page} pages"
        )
    if pages < 1:
        raise CapacityError(
            f"a page of {page_size} tokens needs {page} bytes; "
            f"{free} are free: raise --gpu-memory-utilization or free memory"
        )
    if num_local_pages not in (None, local_pages):
        raise CapacityError(
            f"num_local_pages {num_local_pages}: {pages} pages fit beside them, and each owns one at most"
        )
    return MemoryPlan(weights, size, free, pages, page_size, per_token, swap, local_pages, local)


def _swapped_pages(swap_gib: float, page: int, free: int) -> int:
    """Pages of so many bytes that the swap space holds. CapacityError where it exceeds what is free."""
    pages = int(swap_gib * 2**30) // page
    if pages * page > free:
        raise CapacityError(
            f"swap_space {swap_gib:g} GiB is more than the {free / 2**30:.1f} GiB that are free"
        )
    return pages


def window_of(specs: Sequence[KVSpec]) -> int | None:
    """Tokens that the widest of these layers' windows sees; None: one of them sees everything, or there is
    none."""
    windows = [spec.window for spec in specs if spec.window is not None]
    return max(windows) if windows and len(windows) == len(specs) else None


def seconds_to_copy(kv: KVCache, slot: int) -> float:
    """What copying a page takes: to a slot and back, the quickest of a few times.

    Where layers with a window have pages of their own, a local page is copied with it.
    """
    slots = (slot, kv.first_swap) if isinstance(kv, SplitKVCache) else (slot,)
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        for part, at in zip(parts_of(kv), slots, strict=True):
            part.copy_pages([(0, at)])
            part.copy_pages([(at, 0)])
            if isinstance(part, LateCopies):
                part.wait()
        best = min(best, (time.perf_counter() - begin) / 2)
    return best


def free_after(weights: int, available: int | None = None) -> int:
    """Bytes that will be free once the weights are loaded.

    Args:
        available: bytes that are free before; None asks the system.

    Raises:
        CapacityError: the weights do not fit.
    """
    available = available_memory() if available is None else available
    if weights > available:
        raise CapacityError(f"the weights need {weights} bytes, {available} are available")
    return available - weights


def activation_reserve(max_num_seqs: int, vocab_size: int) -> int:
    """Bytes of a device's memory that pages leave: 1 GiB, and the sampled rows' logits four times (as
    computed, where draws find them, edited, and as weights)."""
    return 2**30 + 4 * 4 * max_num_seqs * vocab_size


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may still take: the system's, within the limits of cgroup and `ulimit -v`."""
    free = _system_available(root)
    limit = _cgroup_number(root, ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"))
    used = _cgroup_number(
        root, ("sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory/memory.usage_in_bytes")
    )
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


def _cgroup_number(root: Path, names: tuple[str, ...]) -> int | None:
    for name in names:
        try:
            text = (root / name).read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None  # "max": no limit
    return None


def return_freed() -> None:
    """Give what this process has freed back to the system.

    glibc keeps it for later: after the tokenizer of 262k words that is 68 MB, which nothing asks for again.
    Takes 3 to 8 ms. Does nothing where the C library is another one.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
