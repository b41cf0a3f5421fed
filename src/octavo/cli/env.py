"""octavo env: what this machine has, and what Octavo makes of it."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import typer

import octavo
from octavo.cli._models import megabytes

PACKAGES = (
    "numpy",
    "ml_dtypes",
    "tokenizers",
    "jinja2",
    "safetensors",
    "fastapi",
    "uvicorn",
    "llguidance",
    "torch",
    "triton",
)
FLAGS = frozenset(
    {"avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"}
    | {"asimd", "asimddp", "i8mm", "bf16"}
)


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
            is_size = section in ("memory", "gpu") and isinstance(value, int)
            print(f"  {name:<20} {megabytes(value) if is_size else _plain(value)}")
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
        "gpu": _gpu(),
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
        "flags": _cpu_flags(),
    }


def _cpu_model() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _cpu_flags() -> list[str]:
    """Those that kernels are chosen by."""
    return sorted(FLAGS.intersection((_cpuinfo("flags") or _cpuinfo("Features") or "").split()))


def _cpuinfo(key: str) -> str | None:
    """A line of Linux's /proc/cpuinfo, of its first CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), None)


def _memory() -> dict[str, Any]:
    from octavo.runtime.free_memory import available_memory

    return {"total": _total_memory(), "usable": available_memory()}


def _total_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def _kernels() -> dict[str, Any]:
    """The backends, the instruction sets this CPU runs (best first), and what "auto" means here."""
    from octavo.kernels.select import registered

    found = registered()
    names = [name for name, one in found.items() if one.missing() is None]
    none: dict[str, Any] = {"isas": [], "isa": None}
    if (why := found["cpu"].missing()) is not None:
        return {"backends": names, "backend": names[0], **none, "why": why}
    try:
        native: Any = importlib.import_module("octavo.kernels._native")
    except ImportError as error:
        why = f"the native kernels cannot be loaded: {error}"
        return {"backends": [name for name in names if name != "cpu"], "backend": None, **none, "why": why}
    isas, isa = list(native.isas()), native.choose_isa("auto")
    why = f"{isa} is the best of what this CPU and its system run"
    return {
        "backends": names, "backend": names[0], "isas": isas, "isa": isa, "why": why,
        "kv_cache_dtype": "int16 (auto)",
    }  # fmt: skip


def _gpu() -> dict[str, Any]:
    """What the driver says, and what --device auto makes of it."""
    from octavo.kernels.cuda.device import Gpu, choose, find_gpu

    found = find_gpu()
    choice = choose("auto", "auto", found)
    facts: dict[str, Any] = {"device_auto": choice.device, "why": choice.why}
    if isinstance(found, Gpu):
        facts |= {
            "name": found.name,
            "compute_capability": "{}.{}".format(*found.capability),
            "memory": found.memory,
            "driver_cuda": "{}.{}".format(*found.driver),
        }
    return facts


def _package(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "-" if value is None else str(value)
