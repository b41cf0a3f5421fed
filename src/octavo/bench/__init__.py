"""Measuring: workloads, a load generator, the roofline, and benchmark_inference(). Experiments are lab/.

The names below are loaded on first use, so that what needs no engine (data sets, tables) comes without one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.bench.inference import BenchmarkResult, benchmark_inference

__all__ = ["BenchmarkResult", "benchmark_inference"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(importlib.import_module("octavo.bench.inference"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
