"""octavo env: what this machine has, and what Octavo makes of it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import typer

import octavo

PACKAGES = ("numpy", "ml_dtypes", "tokenizers", "jinja2", "safetensors", "fastapi", "uvicorn", "llguidance")


def env(as_json: bool = typer.Option(False, "--json", help="Print one JSON object.")) -> int:
    """Print the version, the machine, the backends, and which instruction set is used and why."""
    facts = collect()
    if as_json:
        print(json.dumps(facts))
        return 0
    for section, values in facts.items():
        if not isinstance(values, dict):
            print(f"{section:<10} {values}")
            continue
        print(section)
        for name, value in values.items():
            print(f"  {name:<20} {_plain(value)}")
    return 0


def collect() -> dict[str, Any]:
    """All facts; sizes in bytes, CPU shares in cores."""
    return {
        "octavo": octavo.__version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "cpu": _cpu(),
        "memory": _memory(),
        "kernels": _kernels(),
        "packages": {name: _package(name) for name in PACKAGES},
    }


def _cpu() -> dict[str, Any]:
    from octavo.runtime.hardware import cgroup_cpus, usable_threads

    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {
        "model": _cpu_model(),
        "cores": os.cpu_count(),
        "affinity": affinity,
        "cgroup_quota": cgroup_cpus(),
        "threads_used": usable_threads(),
    }


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory() -> dict[str, Any]:
    from octavo.runtime.memory import available_memory

    return {"total": _total_memory(), "usable": available_memory()}


def _total_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def _kernels() -> dict[str, Any]:
    return {}


def _package(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "-" if value is None else str(value)
