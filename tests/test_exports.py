"""The public names of `octavo`, and that importing it costs nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import octavo

PUBLIC = {
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
    "__version__",
    "WatermarkDetector",
    "benchmark_inference",
    "compat",
    "pipeline",
    "plan",
}


def modules_after(statement: str) -> set[str]:
    """Names in sys.modules after the statement has run in a process of its own."""
    code = f"{statement}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names: list[str] = json.loads(done.stdout)
    return set(names)


def test_exported_names() -> None:
    assert set(octavo.__all__) == PUBLIC
    assert set(dir(octavo)) == PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_each_name_is_there(name: str) -> None:
    assert getattr(octavo, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'LLLM'"):
        octavo.LLLM  # noqa: B018


def test_import_octavo_is_light() -> None:
    new = modules_after("import octavo") - modules_after("pass")
    assert {name for name in new if name.startswith("octavo")} == {"octavo"}
    assert not new & {"numpy", "tokenizers", "fastapi", "jinja2", "pydantic", "typer"}


def test_params_need_no_numpy() -> None:
    assert not modules_after("from octavo import SamplingParams") & {"numpy", "tokenizers", "octavo.llm"}


@pytest.mark.parametrize("command", ["bench", "plan", "serve", "chat", "generate", "run_batch"])
def test_no_command_loads_the_laboratory_before_it_is_asked(command: str) -> None:
    loaded = modules_after(f"import octavo.cli.{command}, octavo.bench, octavo.server.app")
    assert f"octavo.cli.{command}" in loaded
    assert not {name for name in loaded if name.startswith("octavo.lab")}


def test_the_names_of_vllm_are_the_same_objects() -> None:
    assert octavo.AsyncLLMEngine is octavo.AsyncLLM
    assert callable(octavo.AsyncEngineArgs)
    assert callable(octavo.pipeline)
