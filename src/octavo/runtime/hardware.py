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


def cgroup_cpus(root: Path = Path("/")) -> float | None:
    """CPUs that the cgroup's quota allows (v2, then v1), or None where there is no quota."""
    try:
        quota, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        try:
            quota = (root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text().strip()
            period = (root / "sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None  # "max" or -1: no limit
    return int(quota) / int(period)
