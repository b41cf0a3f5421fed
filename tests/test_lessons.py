"""examples/lessons: each uses what its lesson uses, and runs."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LESSONS = Path(__file__).resolve().parent.parent / "examples" / "lessons"
USES: dict[str, dict[str, Any]] = json.loads((LESSONS / "uses.json").read_text(encoding="utf-8"))
SAID = {
    "01_vllm_inference.py": "(4 tokens)",
    "02_openai_server.py": "",
    "04_speculative_decoder.py": "drafted and accepted: ",
    "05_quantized_loaders.py": "load_awq_model: 7 tokens",
    "06_continuous_batcher.py": "r2: ",
    "07_benchmark_inference.py": "tokens/second",
    "08_find_optimal_batch_size.py": "24 GB: ",
    "09_continuous_batching.py": "Explain quantum computing -> ",
    "10_estimate_memory_usage.py": "Total: 18.1 GB",
    "11_llama_cpp.py": "",
    "12_pipeline.py": "'answer': ",
}
"""What each prints, beside what a model says."""


def used(source: str) -> dict[str, set[str]]:
    """Names that a program has, keywords that it passes, texts in its lists, keys and attributes it reads."""
    found: dict[str, set[str]] = {"names": set(), "arguments": set(), "flags": set(), "results": set()}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            found["names"].add(node.id)
        elif isinstance(node, ast.Attribute):
            found["names"].add(node.attr)
            if isinstance(node.ctx, ast.Load):
                found["results"].add(node.attr)
        elif isinstance(node, ast.Call):
            found["arguments"] |= {one.arg for one in node.keywords if one.arg is not None}
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            found["results"].add(str(node.slice.value))
        elif isinstance(node, ast.List):
            words = [one.value for one in node.elts if isinstance(one, ast.Constant)]
            found["flags"] |= {word for word in words if isinstance(word, str)}
    found["names"] |= found["flags"]  # a command is a word, too
    return found


def missing(name: str, source: str) -> dict[str, set[str]]:
    """What the lesson uses, and a program does not."""
    there = used(source)
    lacks = {kind: set(USES[name][kind]) - there[kind] for kind in there}
    return {kind: names for kind, names in lacks.items() if names}


def test_every_lesson_is_listed() -> None:
    assert {path.name for path in LESSONS.glob("*.py")} == set(USES) == set(SAID)


@pytest.mark.parametrize("name", USES)
def test_what_the_lesson_uses_is_used(name: str) -> None:
    source = (LESSONS / name).read_text(encoding="utf-8")
    assert missing(name, source) == {}
    doc = ast.get_docstring(ast.parse(source))
    assert doc is not None
    assert "What differs:" in doc


def test_the_judge_sees_what_is_not_used() -> None:
    source = (LESSONS / "07_benchmark_inference.py").read_text(encoding="utf-8")
    less = source.replace("result.memory_gb", "0.0").replace("num_runs=", "runs=")
    assert missing("07_benchmark_inference.py", less) == {"arguments": {"num_runs"}, "results": {"memory_gb"}}
    source = (LESSONS / "11_llama_cpp.py").read_text(encoding="utf-8")
    assert missing("11_llama_cpp.py", source.replace('"-n"', '"--max-tokens"')) == {"flags": {"-n"}}


@pytest.mark.parametrize("name", USES)
def test_it_runs(name: str, smollm2_path: Path) -> None:
    assert smollm2_path.exists()
    arguments = [] if name.startswith(("08", "10", "12")) else ["--max-tokens", "4"]
    command = [sys.executable, "-W", "error", str(LESSONS / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()
    assert SAID[name] in done.stdout
