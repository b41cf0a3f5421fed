"""What this process may use of the machine."""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_threads(root: Path = Path("/")) -> int:
    """min(cores, affinity, cgroup CPU quota), at least 1."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = min(cores, len(os.sched_getaffinity(0)))
    quota = cgroup_cpus(root)
    if quota is not None:
        cores = min(cores, math.ceil(quota))
    return max(cores, 1)


def cgroup_folders(root: Path = Path("/")) -> list[Path]:
    """Where the limits of this process may stand: its own cgroup, and each one above it.

    A container sees its own as the root of all; a service of systemd sees the whole tree, and its limits
    (`MemoryMax=`, `CPUQuota=`) stand below.
    """
    top = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return [top]
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    if not own or ".." in Path(own).parts:  # the root, the first version, or what this container does not see
        return [top]
    folder = top / own
    return [folder, *list(folder.parents)[: len(Path(own).parts)]]


def cgroup_cpus(root: Path = Path("/")) -> float | None:
    """CPUs that the quotas of its cgroups allow (v2, then v1), or None where there is no quota."""
    quotas = [quota for folder in cgroup_folders(root) if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def _quota(folder: Path) -> float | None:
    """CPUs of one cgroup; None: no limit, or none that can be read."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        try:
            quota = (folder / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None  # "max" or -1: no limit
    return int(quota) / int(period)
