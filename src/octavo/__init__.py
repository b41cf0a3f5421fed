"""Octavo: an LLM inference engine and server.

The names below are loaded on first use, so `import octavo` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo import compat, plan
    from octavo.assembly.detector import WatermarkDetector
    from octavo.batcher import ContinuousBatcher
    from octavo.bench.inference import BenchmarkResult, benchmark_inference
    from octavo.engine.core import EngineCore
    from octavo.llm import LLM, AsyncEngineArgs, AsyncLLM, AsyncLLMEngine, EngineArgs
    from octavo.params import (
        BeamSearchParams,
        CompletionOutput,
        RequestOutput,
        SamplingParams,
        StructuredOutputsParams,
    )
    from octavo.pipelines import pipeline
    from octavo.pooling import PoolingParams

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchParams",
    "BenchmarkResult",
    "CompletionOutput",
    "ContinuousBatcher",
    "EngineArgs",
    "EngineCore",
    "PoolingParams",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "WatermarkDetector",
    "__version__",
    "benchmark_inference",
    "compat",
    "pipeline",
    "plan",
]

_HOME = {
    "LLM": "octavo.llm",
    "AsyncEngineArgs": "octavo.llm",
    "AsyncLLM": "octavo.llm",
    "AsyncLLMEngine": "octavo.llm",
    "BeamSearchParams": "octavo.params",
    "BenchmarkResult": "octavo.bench.inference",
    "CompletionOutput": "octavo.params",
    "ContinuousBatcher": "octavo.batcher",
    "EngineArgs": "octavo.llm",
    "EngineCore": "octavo.engine.core",
    "PoolingParams": "octavo.pooling",
    "RequestOutput": "octavo.params",
    "SamplingParams": "octavo.params",
    "StructuredOutputsParams": "octavo.params",
    "WatermarkDetector": "octavo.assembly.detector",
    "benchmark_inference": "octavo.bench.inference",
    "compat": "octavo",
    "pipeline": "octavo.pipelines",
    "plan": "octavo",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    if home == "octavo":  # a module of that name
        return importlib.import_module(f"octavo.{name}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
